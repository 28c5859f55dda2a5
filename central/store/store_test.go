// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

func testMember(t testing.TB) *Embedded {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir)
	e, err := Embed(t.Context(), EmbedConfig{
		Name: "a", Dir: dir + "/data", PeerURL: "unix://peer:1", ClientURL: "unix://client:1",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func setNet(id string, vni uint32) *wire.Change {
	return &wire.Change{Change: &wire.Change_SetNet{SetNet: &wire.Net{Id: id, Name: id, Vni: vni}}}
}

func setHost(id string, last byte) *wire.Change {
	return &wire.Change{Change: &wire.Change_SetHost{SetHost: &wire.Host{Id: id, Name: id, Endpoint: []byte{192, 0, 2, last}}}}
}

func port(id, net string, n int) *wire.Port {
	return &wire.Port{Id: id, Name: id, Net: net, Mac: []byte{2, 0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)},
		Addresses: [][]byte{{10, byte(n >> 16), byte(n >> 8), byte(n)}}}
}

func setPort(p *wire.Port) *wire.Change {
	return &wire.Change{Change: &wire.Change_SetPort{SetPort: p}}
}

func deleteNet(id string) *wire.Change {
	return &wire.Change{Change: &wire.Change_DeleteNet{DeleteNet: id}}
}

func deletePort(id string) *wire.Change {
	return &wire.Change{Change: &wire.Change_DeletePort{DeletePort: id}}
}

func setGroup(id string, rules ...*wire.GroupRule) *wire.Change {
	return &wire.Change{Change: &wire.Change_SetGroup{SetGroup: &wire.Group{Id: id, Name: id, Rules: rules}}}
}

func deleteGroup(id string) *wire.Change {
	return &wire.Change{Change: &wire.Change_DeleteGroup{DeleteGroup: id}}
}

func deleteHost(id string) *wire.Change {
	return &wire.Change{Change: &wire.Change_DeleteHost{DeleteHost: id}}
}

func apply(t testing.TB, s *Store, changes ...*wire.Change) int64 {
	t.Helper()
	revision, err := s.Apply(t.Context(), &wire.ChangeRequest{Changes: changes})
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func refused(t *testing.T, s *Store, words string, changes ...*wire.Change) {
	t.Helper()
	_, err := s.Apply(t.Context(), &wire.ChangeRequest{Changes: changes})
	wantRefusal(t, err, words)
}

func wantRefusal(t *testing.T, err error, words string) {
	t.Helper()
	var r *Refused
	if !errors.As(err, &r) {
		t.Errorf("%v, expected a refusal with %q", err, words)
		return
	}
	if !strings.Contains(r.Why, words) || strings.Contains(r.Why, "\n") {
		t.Errorf("refused with %q, expected %q", r.Why, words)
	}
}

func dump(t testing.TB, s *Store) map[string]string {
	t.Helper()
	r, err := s.client.Get(t.Context(), Prefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]string{}
	for _, kv := range r.Kvs {
		if k := string(kv.Key); !strings.HasPrefix(k, requestPrefix) && k != intentKey {
			objects[k] = string(kv.Value)
		}
	}
	return objects
}

// wantGuards checks that the guard keys in the store agree with the objects.
func wantGuards(t testing.TB, s *Store) {
	t.Helper()
	keys := dump(t, s)
	want := map[string]string{}
	for k, value := range keys {
		o, object, err := decode([]byte(k), []byte(value), false, 0)
		if err != nil {
			t.Error(err)
		}
		if !object {
			continue
		}
		for _, g := range guards(o.Message) {
			if want[g] != "" {
				t.Errorf("%s is wanted by %s and %s", g, want[g], o.ID)
			}
			want[g] = o.ID
		}
		for _, r := range references(o.Message) {
			if _, there := keys[r]; !there {
				t.Errorf("%s refers to %s, which is not there", k, r)
			}
		}
	}
	for k, v := range keys {
		if strings.HasPrefix(k, guardPrefix) && want[k] != v {
			t.Errorf("%s belongs to %s, expected %q", k, v, want[k])
		}
	}
	for k, v := range want {
		if keys[k] != v {
			t.Errorf("%s belongs to %q, expected %s", k, keys[k], v)
		}
	}
}

// A port whose id is the name of another port, stored by a version that accepted this, can be
// edited and renamed, but neither port can get such a name.
func TestStoredNamesakesCanBeEdited(t *testing.T) {
	s := testMember(t).Store()
	apply(t, s, setNet("blue", 1))
	id, name := port("a", "blue", 1), port("b", "blue", 2)
	name.Name = "a"
	id.Name = "other"
	for _, p := range []*wire.Port{id, name} {
		value, err := encode(p)
		if err != nil {
			t.Fatal(err)
		}
		pairs := map[string]string{portKey(p.Id): string(value)}
		for _, g := range guards(p) {
			pairs[g] = p.Id
		}
		for k, v := range pairs {
			if _, err := s.client.Put(t.Context(), k, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	name.Mac[5], id.Mac[5] = 8, 9
	apply(t, s, setPort(name), setPort(id))
	name.Name = "free"
	apply(t, s, setPort(name))
	name.Name = "a"
	refused(t, s, "the id of another port", setPort(name))
}

func TestApplyRefusesWhatIsWrong(t *testing.T) {
	s := testMember(t).Store()
	red := &wire.Net{Id: "red", Name: "red-name", Vni: 2}
	apply(t, s, setNet("blue", 1), &wire.Change{Change: &wire.Change_SetNet{SetNet: red}}, setHost("h1", 1), setPort(port("p1", "blue", 1)))
	named := port("p1b", "blue", 3)
	named.Name = "p1-name"
	apply(t, s, setPort(named), setPort(named)) // a port is no namesake of itself
	grouped := port("p3", "blue", 4)
	grouped.Groups = []string{"g1"}
	apply(t, s, setGroup("g1"), setGroup("g2"), setGroup("g3", &wire.GroupRule{Group: "g2"}, &wire.GroupRule{Group: "g3"}), setPort(grouped))
	before := dump(t, s)
	with := func(change func(*wire.Port)) *wire.Change {
		p := port("p2", "blue", 2)
		change(p)
		return setPort(p)
	}
	for _, c := range []struct {
		words  string
		change *wire.Change
	}{
		{"id of network is empty", setNet("", 9)},
		{"character '/'", setNet("a/b", 9)},
		{"at most 64", setNet(strings.Repeat("x", 65), 9)},
		{"vni 0: expected 1 to 16777215", setNet("x", 0)},
		{"vni 16777216", setNet("x", 1<<24)},
		{"vni 2 belongs to network red-name;", setNet("x", 2)},
		{"name belongs to the network of id red", &wire.Change{Change: &wire.Change_SetNet{SetNet: &wire.Net{Id: "x", Name: "red-name", Vni: 9}}}},
		{"mtu 10", &wire.Change{Change: &wire.Change_SetNet{SetNet: &wire.Net{Id: "x", Name: "x", Vni: 9, Mtu: 10}}}},
		{"network blue cannot be deleted: port p1", deleteNet("blue")},
		{"port p9: there is no group of id x", with(func(p *wire.Port) { p.Name, p.Groups = "p9", []string{"x"} })},
		{"port p2 is in the group of id g1 twice", with(func(p *wire.Port) { p.Groups = []string{"g1", "g1"} })},
		{"port p2 is in 9 groups; expected at most 8", with(func(p *wire.Port) { p.Groups = make([]string, 9) })},
		{"group x: there is no group of id y", setGroup("x", &wire.GroupRule{Group: "y"})},
		{"group x has 129 rules", setGroup("x", make([]*wire.GroupRule, 129)...)},
		{"17 ranges of ports", setGroup("x", &wire.GroupRule{Protocol: 6, Ports: make([]*wire.PortRange, 17)})},
		{"ports of protocol 1: expected tcp, udp or sctp", setGroup("x", &wire.GroupRule{Protocol: 1, Ports: []*wire.PortRange{{}}})},
		{"ports 5-4", setGroup("x", &wire.GroupRule{Protocol: 6, Ports: []*wire.PortRange{{First: 5, Last: 4}}})},
		{"an ICMP type of protocol 6", setGroup("x", &wire.GroupRule{Protocol: 6, IcmpType: new(uint32)})},
		{"prefix 10.0.0.1/8: expected one without bits of a host", setGroup("x", &wire.GroupRule{Prefix: []byte{10, 0, 0, 1}, PrefixBits: 8})},
		{"a prefix and a group", setGroup("x", &wire.GroupRule{Prefix: []byte{10, 0, 0, 0}, PrefixBits: 8, Group: "g1"})},
		{"group g1 cannot be deleted: port p3 uses it", deleteGroup("g1")},
		{"group g2 cannot be deleted: group g3 uses it", deleteGroup("g2")},
		{"no network of id x to delete", deleteNet("x")},
		{"no port of id x to delete", deletePort("x")},
		{"no host of id x to delete", deleteHost("x")},
		{"endpoint: 0 bytes", &wire.Change{Change: &wire.Change_SetHost{SetHost: &wire.Host{Id: "h2", Name: "h2"}}}},
		{"endpoint 192.0.2.1 belongs to host h1;", setHost("h2", 1)},
		{"mac: 5 bytes", with(func(p *wire.Port) { p.Mac = p.Mac[:5] })},
		{"is a group's", with(func(p *wire.Port) { p.Mac[0] = 1 })},
		{"is nobody's", with(func(p *wire.Port) { p.Mac = make([]byte, 6) })},
		{"mac 02:00:00:00:00:01 belongs to port p1 in network blue;", with(func(p *wire.Port) { p.Mac[5] = 1 })},
		{"address: 5 bytes", with(func(p *wire.Port) { p.Addresses[0] = make([]byte, 5) })},
		{"expected the address of one machine", with(func(p *wire.Port) { p.Addresses[0] = []byte{224, 0, 0, 1} })},
		{"IPv4 address in 16 bytes", with(func(p *wire.Port) {
			p.Addresses[0] = []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1}
		})},
		{"is there twice", with(func(p *wire.Port) { p.Addresses = append(p.Addresses, p.Addresses[0]) })},
		{"mac 02:00:00:00:00:03 belongs to port p1-name in network blue;", with(func(p *wire.Port) { p.Mac[5] = 3 })},
		{"address 10.0.0.1 belongs to port p1 in network blue;", with(func(p *wire.Port) { p.Addresses[0][3] = 1 })},
		{"expected at most 64", with(func(p *wire.Port) {
			for i := range 64 {
				p.Addresses = append(p.Addresses, []byte{10, 9, 9, byte(i + 1)})
			}
		})},
		{"no network of id x", with(func(p *wire.Port) { p.Net = "x" })},
		{"no host of id x", with(func(p *wire.Port) { p.Host = "x" })},
		{"without a host", with(func(p *wire.Port) { p.MoveTo = "h1" })},
		{"name belongs to the port of id p1", with(func(p *wire.Port) { p.Name = "p1" })},
		{"id p1-name is the name of the port of id p1b", with(func(p *wire.Port) { p.Id, p.Name = "p1-name", "other" })},
		{"name is the id of another port", with(func(p *wire.Port) { p.Id, p.Name = "other", "p1b" })},
		{"change 2 of the request is empty", &wire.Change{}},
	} {
		// the valid change of a refused request has no effect either
		refused(t, s, c.words, setHost("good", 99), c.change)
	}
	if after := dump(t, s); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("refused requests changed the store: %q, before %q", after, before)
	}
	wantGuards(t, s)
}

func TestApplyIsOfTheWholeRequest(t *testing.T) {
	s := testMember(t).Store()
	// changes in any order
	apply(t, s, setPort(port("p1", "blue", 1)), setPort(port("p2", "blue", 2)), setNet("blue", 1))
	wantGuards(t, s)
	// an exchange of addresses
	p1, p2 := port("p1", "blue", 2), port("p2", "blue", 1)
	apply(t, s, setPort(p1), setPort(p2))
	wantGuards(t, s)
	// another network may use the same address; a port that moves to another network
	// frees it
	p3 := port("p3", "red", 1)
	apply(t, s, setNet("red", 2), setPort(p3))
	wantGuards(t, s)
	p1.Net = "green"
	apply(t, s, setNet("green", 3), setPort(p1), setPort(port("p4", "blue", 2)))
	wantGuards(t, s)
	// a network may be deleted with its ports
	apply(t, s, deleteNet("blue"), deletePort("p2"), deletePort("p4"))
	wantGuards(t, s)
	apply(t, s, deletePort("p1"), deletePort("p3"), deleteNet("red"), deleteNet("green"))
	if objects := dump(t, s); len(objects) != 0 {
		t.Errorf("left: %q", objects)
	}
}

func TestApplyTwiceIsOnce(t *testing.T) {
	s := testMember(t).Store()
	request := &wire.ChangeRequest{Id: "r1", Changes: []*wire.Change{setNet("blue", 1)}}
	first, err := s.Apply(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, s, deleteNet("blue"))
	again, err := s.Apply(t.Context(), request)
	if err != nil || again != first {
		t.Errorf("the retry returns %d, %v; expected %d", again, err, first)
	}
	if objects := dump(t, s); len(objects) != 0 {
		t.Errorf("the retry wrote %q", objects)
	}
	r, err := s.client.Get(t.Context(), requestKey("r1"))
	if err != nil || len(r.Kvs) != 1 {
		t.Fatal(r, err)
	}
	ttl, err := s.client.TimeToLive(t.Context(), clientv3.LeaseID(r.Kvs[0].Lease))
	if err != nil || ttl.TTL < int64(requestTTL.Seconds()) {
		t.Errorf("the request is known for %+v, %v", ttl, err)
	}
}

func TestApplyExpected(t *testing.T) {
	s := testMember(t).Store()
	seen := apply(t, s, setNet("blue", 1))
	request := func(expected int64, c *wire.Change) error {
		_, err := s.Apply(t.Context(), &wire.ChangeRequest{Expected: expected, Changes: []*wire.Change{c}})
		return err
	}
	if err := request(seen, setNet("red", 2)); err != nil {
		t.Error(err)
	}
	wantRefusal(t, request(seen, setNet("green", 3)), "has changed since revision")
	// a request without changes is no change
	now := apply(t, s, setNet("green", 3))
	apply(t, s, setNet("green", 3))
	if err := request(now, setNet("white", 4)); err != nil {
		t.Error(err)
	}
}

// Fields of later versions are kept.
func TestUnknownFieldsAreKept(t *testing.T) {
	s := testMember(t).Store()
	later := &wire.Net{Id: "blue", Name: "blue", Vni: 1}
	later.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 7))
	apply(t, s, &wire.Change{Change: &wire.Change_SetNet{SetNet: later}}, setPort(port("p1", "blue", 1)), setHost("h1", 1))
	apply(t, s, setNet("blue", 2))
	var got wire.Net
	if err := proto.Unmarshal([]byte(dump(t, s)[netKey("blue")]), &got); err != nil {
		t.Fatal(err)
	}
	if string(got.ProtoReflect().GetUnknown()) != string(later.ProtoReflect().GetUnknown()) || got.Vni != 2 {
		t.Errorf("stored %v with unknown fields %x", &got, got.ProtoReflect().GetUnknown())
	}
	bound := &wire.Bind{Port: "p1", Host: "h0", Endpoint: []byte{192, 0, 2, 9}}
	bound.ProtoReflect().SetUnknown(later.ProtoReflect().GetUnknown())
	value, err := encode(bound)
	if err != nil {
		t.Fatal(err)
	}
	put, err := s.client.Put(t.Context(), bindKey("p1"), string(value))
	if err != nil {
		t.Fatal(err)
	}
	if r := s.Bind(t.Context(), []BindRequest{{Port: "p1", Host: "h1", Endpoint: []byte{192, 0, 2, 1}, Expected: put.Header.Revision}}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	var b wire.Bind
	if err := proto.Unmarshal([]byte(dump(t, s)[bindKey("p1")]), &b); err != nil || b.Host != "h1" || len(b.ProtoReflect().GetUnknown()) == 0 {
		t.Errorf("stored %v, %v", &b, err)
	}
}

// manyPorts returns the changes that declare n ports, 250 in each network.
func manyPorts(n int) []*wire.Change {
	var changes []*wire.Change
	for i := range n {
		if i%250 == 0 {
			changes = append(changes, setNet(fmt.Sprint("net", i/250), uint32(i/250+1)))
		}
		changes = append(changes, setPort(port(fmt.Sprint("port", i), fmt.Sprint("net", i/250), i+1)))
	}
	return changes
}

func TestApplyLarge(t *testing.T) {
	e := testMember(t)
	for name, s := range map[string]*Store{"embedded": e.Store(), "foreign": New(e.Client())} {
		n := 10_000
		if name == "foreign" {
			n = 1_000
		}
		start := time.Now()
		request := &wire.ChangeRequest{Id: "r-" + name, Changes: manyPorts(n)}
		revision, err := s.Apply(t.Context(), request)
		if err != nil {
			t.Fatal(name, err)
		}
		t.Logf("%s: %d ports in %s", name, n, time.Since(start).Round(time.Millisecond))
		wantGuards(t, s)
		objects := dump(t, s)
		ports := 0
		for k := range objects {
			if strings.HasPrefix(k, portPrefix) {
				ports++
			}
			if strings.HasPrefix(k, journalPrefix) || k == writerKey {
				t.Errorf("%s: %s is left", name, k)
			}
		}
		if ports != n {
			t.Errorf("%s: %d ports", name, ports)
		}
		if again, err := s.Apply(t.Context(), request); err != nil || again != revision {
			t.Errorf("%s: the retry returns %d, %v; expected %d", name, again, err, revision)
		}
		var gone []*wire.Change
		for _, c := range request.Changes {
			if n := c.GetSetNet(); n != nil {
				gone = append(gone, deleteNet(n.Id))
			} else {
				gone = append(gone, deletePort(c.GetSetPort().Id))
			}
		}
		apply(t, s, gone...)
		if objects := dump(t, s); len(objects) != 0 {
			t.Errorf("%s: %d keys left", name, len(objects))
		}
	}
}

// A binding to the host in move_to completes the move. Only the bound host can
// release a port.
func TestMoveAndRelease(t *testing.T) {
	s := testMember(t).Store()
	moving := port("p1", "blue", 1)
	moving.Host, moving.MoveTo = "h0", "h1"
	apply(t, s, setNet("blue", 1), setHost("h0", 10), setHost("h1", 1), setPort(moving))
	bind := func(host string, expected int64, release bool) BindResult {
		return s.Bind(t.Context(), []BindRequest{{Port: "p1", Host: host, Endpoint: []byte{192, 0, 2, 1}, Expected: expected, Release: release}})[0]
	}
	first := bind("h0", 0, false)
	moved := bind("h1", first.Generation, false)
	if first.Err != nil || moved.Err != nil || moved.Generation <= first.Generation {
		t.Fatalf("%+v, then %+v", first, moved)
	}
	var after wire.Port
	if err := proto.Unmarshal([]byte(dump(t, s)[portKey("p1")]), &after); err != nil || after.Host != "h1" || after.MoveTo != "" {
		t.Errorf("after the move: %v, %v", &after, err)
	}
	wantGuards(t, s)
	apply(t, s, deleteHost("h0")) // no port names this host any more
	apply(t, s, setHost("h0", 10))
	if r := bind("h0", moved.Generation, false); r.Err == nil {
		t.Error("the old host binds the port again")
	}
	if r := bind("h0", moved.Generation, true); r.Err != nil || dump(t, s)[bindKey("p1")] == "" {
		t.Errorf("the old host releases the binding of the new one: %v", r.Err)
	}
	if r := bind("h1", moved.Generation, true); r.Err != nil || dump(t, s)[bindKey("p1")] != "" {
		t.Errorf("a released binding stays: %v", r.Err)
	}
}
