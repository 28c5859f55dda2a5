// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"weft/engine"
	"weft/internal/testnet"
	"weft/tap"
)

// attachError is an engine client whose Attach returns an error.
type attachError struct {
	noEngine
	err error
}

func (e attachError) Client() Client                    { return e }
func (e attachError) Attach(engine.Attach, []int) error { return e.err }

// If the engine refuses a tap with its new MTU, the tap gets its former MTU again. If there is no
// engine, the tap keeps the new MTU, because the next engine uses it.
func TestRefusedMTU(t *testing.T) {
	testnet.NeedsRoot(t, "makes a tap")
	testnet.New(t).Do(func() {
		for _, c := range []struct {
			err  error
			want int
		}{{nil, 1400}, {engine.ErrGone, 1400}, {unix.EINVAL, 1500}} {
			made, err := tap.Create(tap.Config{Dev: "t0", MTU: 1500, Queues: 1})
			if err != nil {
				t.Fatal(err)
			}
			p := &tapPort{portContext: portContext{number: 1, name: "t0", engine: attachError{err: c.err}, held: func(uint32) error { return nil }}, tap: made}
			err = p.setMTU(1400)
			if refused := c.want == 1500; (err != nil) != refused || refused && !errors.Is(err, c.err) {
				t.Errorf("engine's error %v: %v", c.err, err)
			}
			if got := made.Status().MTU; got != c.want {
				t.Errorf("engine's error %v: MTU %d, want %d", c.err, got, c.want)
			}
			p.close()
		}
	})
}
