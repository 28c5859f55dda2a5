// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"testing"
)

// A store may read from its own member of etcd, which may be behind when the write of
// another store returns. It still decides by the state of the whole cluster.
func TestLocalReadsMayBeOld(t *testing.T) {
	c := startCluster(t)
	leader := c.leader()
	other, s := New(c.clients[leader]), New(c.clients[(leader+1)%len(c.clients)])
	s.local = true
	for n := range 30 {
		net, host, id := fmt.Sprint("n", n), fmt.Sprint("h", n), fmt.Sprint("p", n)
		apply(t, other, setNet(net, uint32(n+1)), setHost(host, byte(n+1)))
		apply(t, s, setPort(port(id, net, n+1)))
		bound := bind(t, other, bindTo(id, host, byte(n+1), 0))
		if again := bind(t, s, bindTo(id, host, byte(n+1), 0)); again != bound {
			t.Errorf("bound there already: generation %d, before %d", again, bound)
		}
		release := bindTo(id, host, byte(n+1), bound)
		release.Release = true
		if r := s.Bind(t.Context(), []BindRequest{release})[0]; r.Err != nil {
			t.Error(r.Err)
		}
		if r := other.Bind(t.Context(), []BindRequest{bindTo(id, host, byte(n+1), bound)})[0]; r.Err == nil {
			t.Error("the binding is not released")
		}
		bind(t, other, bindTo(id, host, byte(n+1), 0))
		apply(t, other, deletePort(id))
		bindRefused(t, s, "no port of this id", bindTo(id, host, byte(n+1), 0))
		if r := s.Bind(t.Context(), []BindRequest{release})[0]; r.Err != nil {
			t.Error(r.Err)
		}
	}
}
