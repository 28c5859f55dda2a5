// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"errors"
	"strings"
	"testing"

	"weft/conntrack"
	"weft/control/workers"
)

// A flush fails if no engine runs or if the engine dies during the flush. With a new
// engine, it returns the number of connections ended.
func TestFlushWithoutEngine(t *testing.T) {
	const connections = 100 // more than one command ends
	f := newRig(t)
	f.connect(connections)
	refused := func(what string, n int, err error) {
		t.Helper()
		if !errors.Is(err, workers.ErrGone) || !strings.Contains(err.Error(), "try again") || n != 0 {
			t.Errorf("%s: %d connections, %v", what, n, err)
		}
	}
	flush := func() (int, error) { return f.p.FlushConnections(&conntrack.Filter{}) }

	f.withoutEngine(func() {
		n, err := flush()
		refused("no engine", n, err)
	})
	if n, err := flush(); n != connections || err != nil {
		t.Errorf("with a new engine: %d connections, %v", n, err)
	}

	f.worker().Stalled.Store(true)
	type answer struct {
		n   int
		err error
	}
	ended := make(chan answer)
	go func() {
		n, err := flush()
		ended <- answer{n, err}
	}()
	f.changing()
	f.kill()
	a := <-ended
	refused("the engine dies meanwhile", a.n, a.err)
}
