// SPDX-License-Identifier: Apache-2.0

package tracking

import (
	"errors"
	"strings"
	"testing"

	"weft/conntrack"
	"weft/control/change/changetest"
	"weft/control/workers"
	"weft/control/workers/workertest"
	"weft/internal/waitfor"
)

// A flush returns the number of ended connections. It fails without an engine.
func TestFlushWithoutEngine(t *testing.T) {
	const connections = 100 // more than one command ends
	r := newRig(t)
	workertest.Connect(t, r.table(), connections)
	refused := func(request string, n int, err error) {
		t.Helper()
		if !errors.Is(err, workers.ErrGone) || !strings.Contains(err.Error(), "try again") || n != 0 {
			t.Errorf("%s: %d connections, %v", request, n, err)
		}
	}
	flush := func() (int, error) { return r.Flush(&conntrack.Filter{}) }

	present := r.w
	r.w = nil
	n, err := flush()
	refused("before the first engine", n, err)
	r.w = workers.New(r.memory, nil)
	r.w.MarkGone()
	n, err = flush()
	refused("without an engine", n, err)
	r.w = present
	if n, err := flush(); n != connections || err != nil {
		t.Errorf("with an engine: %d connections, %v", n, err)
	}

	r.worker.Stalled.Store(true)
	type answer struct {
		n   int
		err error
	}
	ended := make(chan answer)
	go func() {
		n, err := flush()
		ended <- answer{n, err}
	}()
	waitfor.True(t, "the flush holds the configuration lock", func() bool {
		return changetest.Held(&r.configuration)
	})
	r.kill()
	a := <-ended
	refused("the engine dies meanwhile", a.n, a.err)
}
