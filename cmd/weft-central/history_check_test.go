// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"weft/central/centraltest"
	"weft/central/store"
	"weft/central/wire"
)

// settle waits until every host is programmed as the declaration demands. All faults
// have ended by now.
func (s *historySite) settle() {
	s.t.Helper()
	began := time.Now()
	near, last := store.New(s.centrals[0].etcd()), ""
	for time.Since(began) < historySettle {
		before := last
		if last = s.difference(near); last == "" {
			s.t.Logf("all hosts are as expected after %s", time.Since(began).Round(time.Millisecond))
			return
		}
		if last != before {
			s.t.Logf("%s after the faults: %s", time.Since(began).Round(time.Millisecond), last)
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.t.Errorf("after %s: %s", historySettle, last)
}

// difference compares the hosts with the declaration and the bindings in the store
// near. It returns the first difference as text, or "".
func (s *historySite) difference(near *store.Store) string {
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
	defer cancel()
	_, objects, err := near.Objects(ctx, store.KindNet, store.KindHost, store.KindPort, store.KindBind)
	if err != nil {
		return err.Error()
	}
	d := centraltest.DeclarationOf(slices.Values(objects))
	asked := func(net string) bool { return net == "bulk" }
	for _, h := range s.hosts {
		if got := d.Expect(h.name, h.local, asked).Difference(h.recorder); got != "" {
			return h.name + ": " + got + s.portsIn(d, got)
		}
	}
	for id, p := range d.Ports {
		if got := s.wrongHost(id, p, d.Binds[id].GetHost()); got != "" {
			return got
		}
	}
	return ""
}

// portsIn returns the declarations and bindings of the ports that a text names, in brackets, and the hosts
// that have them.
func (s *historySite) portsIn(d *centraltest.Declaration, text string) (list string) {
	for id, p := range d.Ports {
		if strings.Contains(text, "port "+p.Name+":") || strings.Contains(text, "Port:"+p.Name+" ") {
			var have []string
			for _, h := range s.hosts {
				if h.hasPort(id, p) {
					have = append(have, h.name)
				}
			}
			list += fmt.Sprintf(" [%v; %v; at %v]", p, d.Binds[id], have)
		}
	}
	return list
}

// wrongHost returns why the port must not stay bound to the host with the name "bound", or must not stay
// unbound if the name is "". A port must be bound to a host that has it plugged in. If the declaration
// allows some of these hosts, the port must be bound to one of them, except while a move waits for the
// first frame on the new host.
func (s *historySite) wrongHost(id string, p *wire.Port, bound string) string {
	var have, may []string
	for _, h := range s.hosts {
		if !h.hasPort(id, p) {
			continue
		}
		have = append(have, h.name)
		if p.Host == "" || p.Host == h.name || p.MoveTo == h.name {
			may = append(may, h.name)
		}
	}
	moves := p.MoveTo != "" && slices.Equal(may, []string{p.MoveTo})
	switch {
	case bound != "" && !slices.Contains(have, bound), bound == "" && len(may) > 0,
		len(may) > 0 && !slices.Contains(may, bound) && !moves:
		return fmt.Sprintf("port %s is bound to %q; %v have it, %v may have it", id, bound, have, may)
	}
	return ""
}

// hasPort reports whether the host has a port of the declared name or id.
func (h *historyHost) hasPort(id string, p *wire.Port) bool {
	for _, l := range h.local {
		if l.Name == id || l.Name == p.Name {
			return true
		}
	}
	return false
}

// check reads the whole history of the store from etcd, revision by revision, and
// checks these invariants:
//
//   - Two objects never have the same name, MAC or IP address.
//   - A port goes from one host to another only after the first host has released it,
//     or if the declaration of the port names the other host, or has named it shortly
//     before.
//   - Each acknowledged write is in the store at the acknowledged revision, and stays
//     there until the next write of the same writer. Nothing else changes a port,
//     except the end of a move. A request takes effect once.
//   - The many ports of a large request change together.
//   - A list has what the store had at the list's revision, and all that was
//     acknowledged before the list was asked for.
//   - A host programs only places that the store had. No two hosts program different
//     hosts for the same address and generation.
func (s *historySite) check() {
	s.t.Helper()
	r := newReplay(s)
	r.readAll(s.centrals[1].etcd())
	r.checkAcks()
	r.checkPlaces()
	writes, refused := 0, 0
	for _, w := range s.writers {
		writes, refused = writes+w.requests, refused+w.refused
	}
	s.t.Logf("%d revisions, %d requests of which %d were refused, %d bindings, %d lists, %d places; %d clusters of ports changed at once",
		r.revision, writes, refused, r.bindings, len(s.seen.lists), len(s.seen.places), r.large)
	if r.bindings < historyLeast || writes < historyLeast || r.large == 0 {
		s.t.Error("the test tests nothing")
	}
}

// version is the value of a port as one revision of the store wrote it.
type version struct {
	revision int64
	port     *wire.Port // nil: deleted
}

// replay has the state of the store at one revision, and all versions of ports up to
// it.
type replay struct {
	s        *historySite
	revision int64
	applying bool // a large request takes effect
	ports    map[string]*wire.Port
	binds    map[string]*wire.Bind
	boundAt  map[string]int64          // revision of the last binding
	bound    map[int64]map[string]bool // for each generation, the hosts to which a port was bound
	owners   map[string][]string       // for each name or address, the ids of the objects that have it
	versions map[string][]version
	requests map[string]int64
	lists    []listing // sorted by revision
	bindings int
	large    int // effects of large requests
}

func newReplay(s *historySite) *replay {
	r := &replay{s: s, ports: map[string]*wire.Port{}, binds: map[string]*wire.Bind{}, boundAt: map[string]int64{}, bound: map[int64]map[string]bool{},
		owners: map[string][]string{}, versions: map[string][]version{}, requests: map[string]int64{}, lists: slices.Clone(s.seen.lists)}
	slices.SortStableFunc(r.lists, func(a, b listing) int { return int(a.revision - b.revision) })
	return r
}

// readAll reads the history of the store from etcd, up to the present revision.
func (r *replay) readAll(client *clientv3.Client) {
	t := r.s.t
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	now, err := client.Get(ctx, store.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	watch := client.Watch(ctx, store.Prefix, clientv3.WithPrefix(), clientv3.WithRev(1), clientv3.WithProgressNotify())
	_ = client.RequestProgress(ctx)
	for r.revision < now.Header.Revision {
		select {
		case <-ctx.Done():
			t.Fatalf("the history ends at revision %d of %d", r.revision, now.Header.Revision)
		case <-time.After(time.Second):
			_ = client.RequestProgress(ctx)
		case m := <-watch:
			if err := m.Err(); err != nil {
				t.Fatal(err)
			}
			for events := m.Events; len(events) > 0; {
				n := slices.IndexFunc(events, func(e *clientv3.Event) bool { return e.Kv.ModRevision != events[0].Kv.ModRevision })
				if n < 0 {
					n = len(events)
				}
				r.take(events[0].Kv.ModRevision, events[:n])
				events = events[n:]
			}
			if m.IsProgressNotify() {
				r.checkLists(m.Header.Revision)
				r.revision = m.Header.Revision
			}
		}
	}
	r.checkLists(r.revision + 1)
}

// take applies one transaction of the history to the replay, and checks it.
func (r *replay) take(revision int64, events []*clientv3.Event) {
	r.checkLists(revision)
	r.revision = revision
	for _, e := range events {
		kind, id, _ := strings.Cut(strings.TrimPrefix(string(e.Kv.Key), store.Prefix), "/")
		deleted := e.Type == clientv3.EventTypeDelete
		switch kind {
		case "port":
			r.takePort(id, e.Kv, deleted)
		case "writer":
			var w struct{ Committed bool }
			if !deleted {
				if err := json.Unmarshal(e.Kv.Value, &w); err != nil {
					r.s.t.Error(err)
				}
			}
			if r.applying && deleted {
				r.large++
			}
			r.applying = w.Committed
		case "request":
			if !deleted && r.requests[id] != 0 {
				r.s.t.Errorf("request %s takes effect at revisions %d and %d", id, r.requests[id], revision)
			}
			r.requests[id] = revision
		}
	}
	// bindings come after ports, because the end of a move writes both in one
	// transaction
	for _, e := range events {
		if id, ok := strings.CutPrefix(string(e.Kv.Key), store.Prefix+"bind/"); ok {
			r.takeBind(id, e.Kv, e.Type == clientv3.EventTypeDelete)
		}
	}
	if !r.applying {
		r.checkSettled()
	}
}

// marks returns the values of a port that only one object may have: name, MAC and IP
// address.
func marks(p *wire.Port) []string {
	if p == nil {
		return nil
	}
	list := []string{"name " + p.Name, fmt.Sprintf("mac %s %x", p.Net, p.Mac)}
	for _, a := range p.Addresses {
		list = append(list, fmt.Sprintf("address %s %x", p.Net, a))
	}
	return list
}

func (r *replay) takePort(id string, kv *mvccpb.KeyValue, deleted bool) {
	var p *wire.Port
	if !deleted {
		p = &wire.Port{}
		if err := proto.Unmarshal(kv.Value, p); err != nil {
			r.s.t.Error(err)
		}
	}
	for _, m := range marks(r.ports[id]) {
		r.owners[m] = slices.DeleteFunc(r.owners[m], func(o string) bool { return o == id })
	}
	for _, m := range marks(p) {
		r.owners[m] = append(r.owners[m], id)
	}
	if r.ports[id] = p; p == nil {
		delete(r.ports, id)
	}
	r.versions[id] = append(r.versions[id], version{kv.ModRevision, p})
}

func (r *replay) takeBind(id string, kv *mvccpb.KeyValue, deleted bool) {
	if deleted {
		delete(r.binds, id)
		return
	}
	b := &wire.Bind{}
	if err := proto.Unmarshal(kv.Value, b); err != nil {
		r.s.t.Error(err)
	}
	p, old := r.ports[id], r.binds[id]
	switch {
	case p == nil:
		r.s.t.Errorf("revision %d binds port %s, which is not declared", kv.ModRevision, id)
	case p.Host != "" && p.Host != b.Host && p.MoveTo != b.Host:
		r.s.t.Errorf("revision %d binds port %s to %s; its declaration allows %s %s", kv.ModRevision, id, b.Host, p.Host, p.MoveTo)
	case old != nil && old.Host != b.Host && p.Host == "" && !r.named(id, b.Host):
		r.s.t.Errorf("revision %d binds port %s to %s, while %s has it", kv.ModRevision, id, b.Host, old.Host)
	}
	r.binds[id], r.boundAt[id] = b, kv.ModRevision
	if r.bound[kv.ModRevision] == nil {
		r.bound[kv.ModRevision] = map[string]bool{}
	}
	r.bound[kv.ModRevision][id+" "+b.Host] = true
	r.bindings++
}

// named reports whether any declaration of the port since its last binding has named
// the host. A hub may bind the port as such a declaration says, shortly after a newer
// one.
func (r *replay) named(id, host string) bool {
	versions := r.versions[id]
	for i := len(versions) - 1; i >= 0; i-- {
		if p := versions[i].port; p.GetHost() == host || p.GetMoveTo() == host {
			return true
		}
		if versions[i].revision <= r.boundAt[id] {
			break
		}
	}
	return false
}

// checkSettled checks the state of the store at a revision in which no large request is
// half done.
func (r *replay) checkSettled() {
	for m, ids := range r.owners {
		if len(ids) > 1 {
			r.s.t.Errorf("revision %d: %s is of %v", r.revision, m, ids)
		}
		if len(ids) == 0 {
			delete(r.owners, m)
		}
	}
	first := r.ports["bulk0"]
	for n := range bulkPorts {
		p := r.ports[fmt.Sprint("bulk", n)]
		if (p == nil) != (first == nil) || p != nil && p.Mac[3] != first.Mac[3] {
			r.s.t.Errorf("revision %d: port bulk0 is %v and port bulk%d is %v", r.revision, first, n, p)
			return
		}
	}
}

// checkLists checks lists that clients got at revisions below the given one. It
// compares them with the present state.
func (r *replay) checkLists(revision int64) {
	for len(r.lists) > 0 && r.lists[0].revision < revision {
		l := r.lists[0]
		r.lists = r.lists[1:]
		if l.revision < l.oldest {
			r.s.t.Errorf("a list of revision %d was asked for after revision %d was acknowledged", l.revision, l.oldest)
		}
		if got := equalPorts(l.ports, r.ports); got != "" {
			r.s.t.Errorf("the list of revision %d: %s", l.revision, got)
		}
	}
}

// checkAcks compares the acknowledged writes with the versions of the ports in the
// store.
func (r *replay) checkAcks() {
	for _, w := range r.s.writers {
		for _, id := range slices.Sorted(maps.Keys(w.acks)) {
			r.checkPort(id, w.acks[id])
		}
	}
}

func (r *replay) checkPort(id string, acks []ack) {
	t := r.s.t
	versions := r.versions[id]
	var now *wire.Port  // acknowledged state
	var last *wire.Port // of the store
	for n := 0; len(versions) > 0 || n < len(acks); {
		if n < len(acks) && (len(versions) == 0 || acks[n].revision < versions[0].revision) {
			if now = acks[n].port; !proto.Equal(now, last) {
				t.Errorf("port %s: %v was acknowledged at revision %d, the store has %v", id, now, acks[n].revision, last)
			}
			n++
			continue
		}
		v := versions[0]
		versions = versions[1:]
		moved := proto.CloneOf(last)
		if moved.GetMoveTo() != "" {
			moved.Host, moved.MoveTo = moved.MoveTo, ""
		}
		// A large request writes its objects at several revisions, and its
		// acknowledgement has the last one.
		of := n < len(acks) && proto.Equal(v.port, acks[n].port) && (acks[n].revision == v.revision || strings.HasPrefix(id, "bulk"))
		if !of && (last.GetMoveTo() == "" || !proto.Equal(v.port, moved)) {
			t.Errorf("port %s: at revision %d the store gets %v, which nobody has written; before it had %v", id, v.revision, v.port, last)
		}
		last = v.port
		if n < len(acks) && acks[n].revision == v.revision {
			n++
		}
	}
}

// checkPlaces compares the places of MAC addresses that hosts have programmed with the
// bindings.
func (r *replay) checkPlaces() {
	r.s.seen.mu.Lock() // the agents still run
	defer r.s.seen.mu.Unlock()
	for k, hosts := range r.s.seen.places {
		if len(hosts) > 1 && constant(k.mac) {
			r.s.t.Errorf("the address %x is at several hosts at generation %d: %v", k.mac, k.generation, hosts)
		}
		for host, by := range hosts {
			if !r.hasBound(k, host) {
				r.s.t.Errorf("host %s has the address %x at %s at generation %d, at which that host got no such port", by, k.mac, host, k.generation)
			}
		}
	}
}

// constant reports whether the MAC address belongs to the same port during the whole
// test.
func constant(mac uint64) bool { return mac&0xff >= 0xa0 }

// hasBound reports whether the transaction of this generation bound a port with the MAC
// address to the host. If the MAC address is not constant, any port counts.
func (r *replay) hasBound(k placeKey, host string) bool {
	for bound := range r.bound[k.generation] {
		id, at, _ := strings.Cut(bound, " ")
		if at != host {
			continue
		}
		number := byte(0xa0)
		if strings.HasPrefix(id, "m") {
			number = 0xb0
		}
		if !constant(k.mac) && strings.HasPrefix(id, "w") || constant(k.mac) && id[1]-'0'+number == byte(k.mac) {
			return true
		}
	}
	return false
}
