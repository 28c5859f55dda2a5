// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// boundTo returns the host and the generation of a port's binding.
func boundTo(t *testing.T, s *Store, port string) (*wire.Bind, int64) {
	t.Helper()
	objects, err := s.Get(t.Context(), KindBind, port)
	if err != nil {
		t.Fatal(err)
	}
	if len(objects) == 0 {
		return nil, 0
	}
	return objects[0].Message.(*wire.Bind), objects[0].Revision
}

// The transaction that declares a port binds it to the host that has it.
func TestApplyBindsWaitingPort(t *testing.T) {
	s := testMember(t).Store()
	s.SetWaiting(func(p *wire.Port) string { return map[string]string{"p1": "h1", "p2": "unknown", "p3": "h1"}[p.Id] })
	apply(t, s, setNet("blue", 1), setHost("h1", 1), setHost("h2", 2))

	first := apply(t, s, setPort(port("p1", "blue", 1)), setPort(port("p2", "blue", 2)))
	want := &wire.Bind{Port: "p1", Host: "h1", Endpoint: []byte{192, 0, 2, 1}}
	if b, generation := boundTo(t, s, "p1"); !proto.Equal(b, want) || generation != first {
		t.Errorf("declared in revision %d: %v of generation %d", first, b, generation)
	}
	if b, _ := boundTo(t, s, "p2"); b != nil {
		t.Errorf("bound to a host that is not declared: %v", b)
	}
	// the hub asks for the binding, too
	if generation := bind(t, s, bindTo("p1", "h1", 1, 0)); generation != first {
		t.Errorf("bound again in generation %d", generation)
	}
	// a change of a port does not bind it
	release := bindTo("p1", "h1", 1, first)
	release.Release = true
	if r := s.Bind(t.Context(), []BindRequest{release}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	changed := port("p1", "blue", 1)
	changed.Name = "other"
	apply(t, s, setPort(changed))
	if b, _ := boundTo(t, s, "p1"); b != nil {
		t.Errorf("a change has bound the port: %v", b)
	}
	// a port that is deleted and declared again gets a larger generation
	apply(t, s, deletePort("p1"))
	again := apply(t, s, setPort(port("p1", "blue", 1)))
	if _, generation := boundTo(t, s, "p1"); generation != again || again <= first {
		t.Errorf("declared again in revision %d: generation %d, before %d", again, generation, first)
	}
	if n := s.BoundAtOnce(); n != 2 {
		t.Errorf("%d bindings are counted", n)
	}
	wantGuards(t, s)
}

// A binding gets the endpoint that the host has when the port is declared. A host that
// is deleted meanwhile gets no binding.
func TestWaitingHostChangesMeanwhile(t *testing.T) {
	e := testMember(t)
	s, other := e.Store(), e.Store()
	apply(t, s, setNet("blue", 1), setHost("h1", 1), setHost("h2", 2))
	for n, change := range []*wire.Change{setHost("h1", 9), deleteHost("h2")} {
		id := fmt.Sprint("p", n+1)
		objects := mustCollect(t, []*wire.Change{setPort(port(id, "blue", n+1))})
		s.SetWaiting(func(*wire.Port) string { return fmt.Sprint("h", n+1) })
		v := s.newView(false)
		if err := v.plan(t.Context(), objects); err != nil {
			t.Fatal(err)
		}
		if bound, err := v.bindWaiting(t.Context(), objects); bound != 1 || err != nil {
			t.Fatalf("%d bindings, %v", bound, err)
		}
		apply(t, other, change)
		if r := commitView(t, s, v); r {
			t.Errorf("the binding to a changed host is written")
		}
		apply(t, s, setPort(port(id, "blue", n+1)))
	}
	if b, _ := boundTo(t, s, "p1"); b.GetEndpoint()[3] != 9 {
		t.Errorf("bound as %v", b)
	}
	if b, _ := boundTo(t, s, "p2"); b != nil {
		t.Errorf("bound as %v to a deleted host", b)
	}
}

func commitView(t *testing.T, s *Store, v *view) bool {
	t.Helper()
	var ops []clientv3.Op
	for _, c := range v.changes() {
		ops = append(ops, c.op())
	}
	r, err := s.commit(t.Context(), attemptTimeout, v.unchanged(false), ops)
	if err != nil {
		t.Fatal(err)
	}
	return r.Succeeded
}
