// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"encoding/binary"
	"net"
	"sync"
	"testing"
	"time"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofp/ofptest"
)

// role sends a role request, and returns the role and the generation_id of the reply. refused is
// true if the reply is an error.
func (p *peer) role(role ofp.Role, generation uint64) (now ofp.Role, newest uint64, refused bool) {
	p.t.Helper()
	p.write(ofptest.Message(p.v, 24, 9, uint32(role), uint32(0), generation))
	for {
		switch m := p.read(); m[1] {
		case ofp.TypeError:
			return 0, 0, true
		case ofp.TypeRoleReply:
			return ofp.Role(binary.BigEndian.Uint32(m[8:])), binary.BigEndian.Uint64(m[16:]), false
		}
	}
}

// A peer that may only read cannot take the role of master from a controller, and cannot make
// the controllers' generation_ids stale.
func TestReaderTakesNoRole(t *testing.T) {
	r := newRig(t)
	master := r.connect(openflow.Version13)
	if now, _, refused := master.role(ofp.RoleMaster, 1); refused || now != ofp.RoleMaster {
		t.Fatalf("role %d, refused %v", now, refused)
	}
	r.role.Store(int32(Read))
	reader := r.connect(openflow.Version13)
	for _, role := range []ofp.Role{ofp.RoleMaster, ofp.RoleSlave, ofp.RoleEqual} {
		if _, _, refused := reader.role(role, 1<<62); !refused {
			t.Errorf("a peer that may only read gets role %d", role)
		}
	}
	if now, _, refused := reader.role(ofp.RoleNoChange, 0); refused || now != ofp.RoleEqual {
		t.Errorf("the question for the role is answered by %d, refused %v", now, refused)
	}
	if now, newest, refused := master.role(ofp.RoleNoChange, 0); refused || now != ofp.RoleMaster || newest != 1 {
		t.Errorf("the master has role %d in generation %d, refused %v; want master in 1", now, newest, refused)
	}
}

// Of two controllers that become master at the same time, only the one with the newer
// generation_id stays master.
func TestOneMaster(t *testing.T) {
	r := newRig(t)
	connect := func() *Conn {
		c := newConn(r.service, discard{}, "controller", Write)
		c.version = openflow.Version13
		r.service.enter(c)
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
			r.service.leave(c)
		}
	}
}

// discard is a connection to a peer that reads everything and sends nothing.
type discard struct{ net.Conn }

func (discard) Write(b []byte) (int, error)      { return len(b), nil }
func (discard) SetWriteDeadline(time.Time) error { return nil }
func (discard) RemoteAddr() net.Addr             { return nil }
func (discard) Close() error                     { return nil }
