// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"net"
	"sync"
	"testing"
	"time"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofp/ofptest"
)

// Of two controllers that become master at the same time, only the one with the newer
// generation_id stays master.
func TestOneMaster(t *testing.T) {
	r := newRig(t)
	connect := func() *Conn {
		c := newConn(r.service, discard{}, "controller", Write)
		c.version = openflow.Version13
		r.service.enter(c, false)
		return c
	}
	slow := connect() // each new master takes its lock
	for n := range uint64(100) {
		old, newer := connect(), connect()
		var done sync.WaitGroup
		slow.mu.Lock()
		for generation, c := range []*Conn{old, newer} {
			m := ofptest.Message(c.version, 24, 9, uint32(ofp.RoleMaster), uint32(0), 2*n+uint64(generation))
			done.Go(func() {
				if err := c.handle(m); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Millisecond) // makes it likely that both requests wait for slow; the test needs no such wait
		slow.mu.Unlock()
		done.Wait()
		if old.master == ofp.RoleMaster || newer.master != ofp.RoleMaster {
			t.Fatalf("round %d: roles %d and %d, want only the second as master (%d)", n, old.master, newer.master, ofp.RoleMaster)
		}
		for _, c := range []*Conn{old, newer} {
			r.service.leave(c, false)
		}
	}
}

// discard is a connection to a peer that reads everything and sends nothing.
type discard struct{ net.Conn }

func (discard) Write(b []byte) (int, error)      { return len(b), nil }
func (discard) SetWriteDeadline(time.Time) error { return nil }
func (discard) RemoteAddr() net.Addr             { return nil }
func (discard) Close() error                     { return nil }
