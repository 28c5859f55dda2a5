// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"weft/central/centraltest"
	"weft/central/hub"
	"weft/central/store"
	"weft/central/wire"
	"weft/control/agent"
	"weft/internal/waitfor"
)

// rig has a hub with a store in memory, and agents with simulated switches. The
// agents follow the hub over gRPC on a unix socket.
type rig struct {
	t      *testing.T
	memory *centraltest.Memory
	hub    *hub.Hub
	socket string
	grace  time.Duration
	codec  encoding.CodecV2 // of the hub's server; nil: hub.Codec
	stop   func()
	hosts  map[string]*testHost // by id
	added  uint64               // ports added to switches
}

type testHost struct {
	id, name string
	agent    *agent.Agent
	recorder *centraltest.Recorder
	local    []agent.LocalPort
	file     string
	stop     func()
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, memory: centraltest.NewMemory(), socket: filepath.Join(t.TempDir(), "hub"), hosts: map[string]*testHost{}}
	r.start()
	t.Cleanup(func() {
		for _, h := range r.hosts {
			h.stop()
		}
		r.stop()
	})
	return r
}

// start starts a new hub, which knows nothing of earlier sessions. The metadata of a
// request has the name of the host that sends it.
func (r *rig) start() {
	ctx, cancel := context.WithCancel(context.Background())
	r.hub = hub.New(r.memory, func(ctx context.Context) (string, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		if name := md.Get("weft-host"); len(name) == 1 {
			return name[0], nil
		}
		return "", fmt.Errorf("no host")
	}, slog.New(slog.DiscardHandler))
	r.hub.MoveGrace = r.grace
	l, err := net.Listen("unix", r.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	options := hub.ServerOptions()
	if r.codec != nil {
		options = append(options, grpc.ForceServerCodecV2(r.codec))
	}
	server := grpc.NewServer(options...)
	wire.RegisterHubServer(server, r.hub)
	ended, served := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(served)
		server.Serve(l)
	}()
	go func() {
		defer close(ended)
		r.hub.Run(ctx)
	}()
	r.stop = func() {
		cancel()
		<-ended
		server.Stop()
		<-served // the listener is closed, so that the next hub can listen
	}
}

func endpoint(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }

// host declares a host and starts its agent.
func (r *rig) host(n int, local ...agent.LocalPort) *testHost {
	h := &testHost{id: fmt.Sprint("h", n), name: fmt.Sprint("host", n), local: local, file: filepath.Join(r.t.TempDir(), "state")}
	r.hosts[h.id] = h
	r.memory.Put(store.Object{Kind: store.KindHost, ID: h.id, Message: &wire.Host{Id: h.id, Name: h.name, Endpoint: endpoint(n).AsSlice()}})
	r.startAgent(h)
	return h
}

// startAgent starts the agent of a host. The agent programs a new recorder (a simulated
// switch) that has the host's ports.
func (r *rig) startAgent(h *testHost) {
	h.recorder = centraltest.NewRecorder(h.local...)
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.Background(), "weft-host", h.name))
	h.agent = agent.New(agent.Config{Centrals: []string{"unix:" + r.socket}, Credentials: insecure.NewCredentials(),
		File: h.file, Log: slog.New(slog.DiscardHandler)}, h.recorder)
	if err := h.agent.Restore(); err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.agent.Run(ctx)
	}()
	h.stop = func() {
		cancel()
		<-ended
	}
}

func (r *rig) net(id string, vni uint32, flood bool) {
	r.memory.Put(netObject(id, vni, flood))
}

func netObject(id string, vni uint32, flood bool) store.Object {
	return store.Object{Kind: store.KindNet, ID: id, Message: &wire.Net{Id: id, Name: "net-" + id, Vni: vni, Flood: flood}}
}

func portObject(n int, net, host string) store.Object {
	id := fmt.Sprint("p", n)
	mac := make([]byte, 8)
	binary.BigEndian.PutUint64(mac, 0x020000000000|uint64(n))
	return store.Object{Kind: store.KindPort, ID: id, Message: &wire.Port{Id: id, Name: fmt.Sprint("port", n), Net: net, Host: host,
		Mac: mac[2:], Addresses: [][]byte{{192, 168, byte(n >> 8), byte(n)}}}}
}

func onDemand(d *centraltest.Declaration) func(string) bool {
	count := map[string]int{}
	for _, p := range d.Ports {
		count[p.Net]++
	}
	return func(net string) bool { return count[net] > 1000 }
}

// settled waits until the switch of every host has the state that the oracle expects.
func (r *rig) settled() {
	r.t.Helper()
	var difference string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if difference = r.difference(); difference == "" {
			return
		}
	}
	for id, h := range r.hosts {
		r.t.Logf("%s: %+v", id, h.agent.Stats())
	}
	r.t.Fatalf("%s; the hub: %+v", difference, r.hub.Stats())
}

func (r *rig) difference() string {
	d := r.memory.Declaration()
	for id, h := range r.hosts {
		if difference := d.Expect(id, h.local, onDemand(d)).Difference(h.recorder); difference != "" {
			return id + ": " + difference
		}
	}
	return ""
}

func locals(names ...string) (list []agent.LocalPort) {
	for _, name := range names {
		list = append(list, agent.LocalPort{Name: name, Up: true})
	}
	return list
}

func TestPortsReachEachOther(t *testing.T) {
	r := newRig(t)
	r.net("n1", 100, false)
	r.memory.Put(portObject(1, "n1", ""), portObject(2, "n1", ""))
	one, two := r.host(1, locals("port1")...), r.host(2, agent.LocalPort{Name: "tap0", ID: "p2"})
	three := r.host(3)
	r.settled()
	if n := one.recorder.Addresses(); n != 2 {
		t.Errorf("host 1 has %d addresses, want 2", n)
	}
	if n := two.recorder.Addresses(); n != 2 {
		t.Errorf("host 2 has %d addresses, want 2", n)
	}
	if s := r.hub.Stats(); s.Delivered == 0 || s.DeliveredBytes <= s.Delivered {
		t.Errorf("the hub counts %d messages of %d bytes to its hosts", s.Delivered, s.DeliveredBytes)
	}
	if n := three.recorder.Addresses(); n != 0 {
		t.Errorf("host 3 has no port and %d addresses", n)
	}
}

// If one host loses a port and another host gets it, the port is bound to the other
// host. This also holds if the first host has no session when it loses the port.
func TestPortChangesHosts(t *testing.T) {
	r := newRig(t)
	r.net("n1", 100, false)
	r.memory.Put(portObject(1, "n1", ""))
	one, two := r.host(1, locals("port1")...), r.host(2)
	bound := func(host string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); r.memory.Declaration().Binds["p1"].GetHost() != host; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the port is bound to %q, expected %s", r.memory.Declaration().Binds["p1"].GetHost(), host)
			}
		}
	}
	bound("h1")
	one.local = nil
	one.recorder.SetPorts()
	one.agent.PortsChanged()
	two.local = locals("port1")
	two.recorder.SetPorts(two.local...)
	two.agent.PortsChanged()
	bound("h2")
	two.stop()
	two.local, two.file = nil, filepath.Join(t.TempDir(), "new") // it knows nothing of the port
	r.startAgent(two)
	one.local = locals("port1")
	one.recorder.SetPorts(one.local...)
	one.agent.PortsChanged()
	bound("h1")
	r.settled()
}

// If a port of the switch is deleted and added again before the agent notices, the agent gives the switch
// the port's declaration again, because the switch has lost it.
func TestPortAddedAgain(t *testing.T) {
	r := newRig(t)
	r.net("n1", 100, false)
	r.memory.Put(portObject(1, "n1", ""))
	one := r.host(1, locals("port1")...)
	r.settled()
	if !one.recorder.Here(100, 0x020000000001) {
		t.Fatal("the host does not have its port")
	}
	one.local = []agent.LocalPort{{Name: "port1", Added: 1}}
	one.recorder.SetPorts()
	one.recorder.SetPorts(one.local...)
	one.agent.PortsChanged()
	r.settled()
}

// A guest restarts while no hub is reachable, and its port has another name afterwards,
// like taps of libvirt. The switch gets the port's declaration and its address at once.
func TestPortAddedAgainWithoutHub(t *testing.T) {
	r := newRig(t)
	r.net("n1", 100, false)
	r.memory.Put(portObject(1, "n1", ""))
	one := r.host(1, agent.LocalPort{Name: "tap1", ID: "p1", Up: true})
	r.settled()
	r.stop()
	waitfor.True(t, "the session ends", func() bool { return !one.agent.Stats().Connected })
	one.local = []agent.LocalPort{{Name: "tap2", ID: "p1", Up: true, Added: 1}}
	one.recorder.SetPorts(one.local...)
	one.agent.PortsChanged()
	waitfor.True(t, "the new port has the address", func() bool { return one.recorder.Here(100, 0x020000000001) })
	r.start()
	r.settled()
}

// After any sequence of declarations, moves, renamings, deletions and restarts, the
// switch of every host finally has the declared state.
func TestRandomHistory(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t)
	const hosts, ports, nets = 5, 40, 4
	for n := range hosts {
		r.host(n + 1)
	}
	steps := 400
	if testing.Short() {
		steps = 100
	}
	for range steps {
		r.step(random, hosts, ports, nets)
		if random.IntN(10) == 0 {
			r.settled()
		}
	}
	r.settled()
}

func (r *rig) step(random *rand.Rand, hosts, ports, nets int) {
	host := func() string { return fmt.Sprint("h", random.IntN(hosts)+1) }
	net := fmt.Sprint("n", random.IntN(nets))
	port := random.IntN(ports)
	switch random.IntN(14) {
	case 0:
		r.net(net, uint32(100+random.IntN(1000)*nets+int(net[1]-'0')), random.IntN(2) == 0)
	case 1, 2, 3:
		where := ""
		if random.IntN(2) == 0 {
			where = host()
		}
		r.memory.Put(portObject(port, net, where))
	case 4:
		r.memory.Put(store.Object{Kind: store.KindPort, ID: fmt.Sprint("p", port)}, store.Object{Kind: store.KindBind, ID: fmt.Sprint("p", port)})
	case 5:
		d := r.memory.Declaration()
		if p := d.Ports[fmt.Sprint("p", port)]; p != nil {
			p = proto.CloneOf(p)
			p.MoveTo = host()
			r.memory.Put(store.Object{Kind: store.KindPort, ID: p.Id, Message: p})
		}
	case 6, 7, 8, 9:
		h := r.hosts[host()]
		name := fmt.Sprint("port", port)
		if i := slices.IndexFunc(h.local, func(l agent.LocalPort) bool { return l.Name == name }); i >= 0 {
			h.local = slices.Delete(slices.Clone(h.local), i, i+1)
		} else {
			r.added++
			h.local = append(slices.Clone(h.local), agent.LocalPort{Name: name, Added: r.added})
		}
		h.recorder.SetPorts(h.local...)
		h.agent.PortsChanged()
	case 10:
		h := r.hosts[host()]
		h.stop()
		r.startAgent(h)
	case 11:
		r.stop()
		r.start()
	case 12:
		r.memory.Reset()
	case 13:
		h := r.hosts[host()]
		h.agent.Seen(fmt.Sprint("port", port))
	}
}

// A network with more than 1,000 ports is not pushed: hosts ask for its addresses.
func TestLargeNetworkIsAsked(t *testing.T) {
	r := newRig(t)
	objects := []store.Object{netObject("n1", 100, false)}
	for n := range 1500 {
		objects = append(objects, portObject(n, "n1", ""))
	}
	r.memory.Put(objects...)
	one, two := r.host(1, locals("port1")...), r.host(2, locals("port2", "port3")...)
	r.settled()
	waitfor.True(t, "host 1 has its own port", func() bool { return one.recorder.Here(100, 0x020000000001) })
	if n := one.recorder.Addresses(); n != 1 {
		t.Fatalf("host 1 has %d addresses of the network, want its own port's", n)
	}
	ask := func(mac uint64, ip netip.Addr, known func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !known(); time.Sleep(5 * time.Millisecond) {
			one.agent.Ask("port1", 100, mac, ip)
			if time.Now().After(end) {
				t.Fatal("no answer")
			}
		}
	}
	ask(0x020000000002, netip.Addr{}, func() bool { return one.recorder.Has(100, 0x020000000002) })
	ask(0, netip.AddrFrom4([4]byte{192, 168, 0, 3}), func() bool { return one.recorder.Has(100, 0x020000000003) })
	ask(0x020000000009, netip.Addr{}, func() bool { return one.recorder.Unknown() > 0 })
	r.settled()
	// A host that has asked for an address gets later changes of the address: its
	// removal, or its first location if nobody had the address when the host asked.
	two.local = locals("port9")
	two.recorder.SetPorts(two.local...)
	two.agent.PortsChanged()
	for end := time.Now().Add(time.Minute); one.recorder.Has(100, 0x020000000002) || !one.recorder.Has(100, 0x020000000009); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("host 1 has a stale place, or not the new one: %+v", r.hub.Stats())
		}
	}
	r.settled()
	r.stop()
	r.start()
	r.settled()
}

// Answered questions, deleted ports and deleted networks do not count against the limit
// of addresses for which a host may ask.
func TestQuestionsAreReleased(t *testing.T) {
	r := newRig(t)
	objects := []store.Object{netObject("n1", 100, false)}
	for n := range 1200 {
		objects = append(objects, portObject(n, "n1", ""))
	}
	r.memory.Put(objects...)
	one, two := r.host(1, locals("port1")...), r.host(2, locals("port2")...)
	r.settled()
	for _, mac := range []uint64{0x020000000002, 0x020000009999} {
		before := r.hub.Held()
		waitfor.True(t, "the hub takes the question", func() bool {
			one.agent.Ask("port1", 100, mac, netip.Addr{})
			return r.hub.Held() > before
		})
	}
	before := r.hub.Held()
	late := portObject(0x9999, "n1", "")
	r.memory.Put(late)
	two.local = append(two.local, locals("port39321")...)
	two.recorder.SetPorts(two.local...)
	two.agent.PortsChanged()
	waitfor.True(t, "the host gets the address for which it asked", func() bool { return one.recorder.Has(100, 0x020000009999) })
	r.settled()
	if n := r.hub.Held(); n != before+1 { // the interest of host 2 in its own port
		t.Errorf("%d questions and interests, %d before the answer", n, before)
	}
	objects = append(objects, late)
	for i := range objects {
		objects[i].Message = nil
	}
	r.memory.Put(objects...)
	waitfor.True(t, "the host forgets the network", func() bool { return one.recorder.Addresses() == 0 })
	if n := r.hub.Held(); n != 0 || r.hub.Stats().Interests != 0 {
		t.Errorf("%d questions and interests stay, %d interests are counted", n, r.hub.Stats().Interests)
	}
}

// When the addresses of a network are no longer pushed, a host in it keeps the
// addresses of its own ports. It gets changes of the addresses for which it asks.
func TestNetworkGrowsLarge(t *testing.T) {
	r := newRig(t)
	r.net("n1", 100, false)
	add := func(from, to int) {
		var objects []store.Object
		for n := from; n < to; n++ {
			objects = append(objects, portObject(n, "n1", ""))
		}
		r.memory.Put(objects...)
	}
	add(0, 900)
	one, two := r.host(1, locals("port1")...), r.host(2, locals("port2")...)
	waitfor.True(t, "both hosts have both ports", func() bool { return one.recorder.Addresses() == 2 && two.recorder.Addresses() == 2 })
	add(900, 1100)
	waitfor.True(t, "host 1 has only its own port", func() bool { return one.recorder.Addresses() == 1 })
	r.settled()
	waitfor.True(t, "host 1 learns the other port", func() bool {
		one.agent.Ask("port1", 100, 0x020000000002, netip.Addr{})
		return one.recorder.Has(100, 0x020000000002)
	})
	two.stop()
	two.local, two.file = nil, filepath.Join(t.TempDir(), "new")
	// While host 2 has a session, the hub binds the port to host 2 again.
	waitfor.True(t, "the session of host 2 ends", func() bool { return r.hub.Stats().Sessions == 1 })
	r.memory.Put(store.Object{Kind: store.KindBind, ID: "p2"})
	waitfor.True(t, "host 1 gets the change of the address", func() bool { return !one.recorder.Has(100, 0x020000000002) })
	r.startAgent(two)
	r.settled()
}

// A port that moves is bound to its new host after the first frame there.
func TestMove(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.grace = time.Hour
	r.start()
	r.net("n1", 100, false)
	r.memory.Put(portObject(1, "n1", "h1"), portObject(2, "n1", "h2"))
	r.host(1, locals("port1")...)
	two := r.host(2, locals("port2")...)
	r.settled()
	moving := proto.CloneOf(r.memory.Declaration().Ports["p1"])
	moving.MoveTo = "h2"
	r.memory.Put(store.Object{Kind: store.KindPort, ID: "p1", Message: moving})
	two.local = locals("port1", "port2")
	two.recorder.SetPorts(two.local...)
	two.agent.PortsChanged()
	r.settled()
	if b := r.memory.Declaration().Binds["p1"]; b.Host != "h1" {
		t.Fatalf("the port is bound to %s before its first frame", b.Host)
	}
	two.agent.Seen("port1")
	for end := time.Now().Add(time.Minute); r.memory.Declaration().Binds["p1"].Host != "h2"; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the first frame does not complete the move")
		}
	}
	for end := time.Now().Add(time.Minute); !two.recorder.Here(100, 0x020000000001); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the new host does not have the port")
		}
	}
	one := r.hosts["h1"]
	if !one.recorder.Has(100, 0x020000000001) {
		t.Error("the old host does not know where the port is now")
	}
	r.grace = 0
	r.stop()
	r.start()
	r.settled()
	if one.recorder.Has(100, 0x020000000001) {
		t.Error("the old host keeps the port's network")
	}
	if p := r.memory.Declaration().Ports["p1"]; p.Host != "h2" || p.MoveTo != "" {
		t.Errorf("the port is declared as %v after its move", p)
	}
	two.recorder.SetPorts(locals("port2")...)
	two.agent.PortsChanged()
	waitfor.True(t, "the port that moved here and was deleted is unbound", func() bool { return r.memory.Declaration().Binds["p1"].Bind == nil })
}

func TestSync(t *testing.T) {
	r := newRig(t)
	r.net("n1", 100, false)
	for n := range 5 {
		r.memory.Put(portObject(n+1, "n1", ""))
		r.host(n+1, locals(fmt.Sprint("port", n+1))...)
	}
	r.settled()
	revision := r.memory.Put(portObject(9, "n1", ""))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	hosts, err := r.hub.Sync(ctx, revision)
	if err != nil || len(hosts) != 5 {
		t.Errorf("Sync: %v %v", hosts, err)
	}
}

// A host that is not declared gets an error with the reason and no session.
func TestUndeclaredHost(t *testing.T) {
	r := newRig(t)
	h := &testHost{id: "x", name: "stranger"}
	r.startAgent(h)
	defer h.stop()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if s := h.agent.Stats(); !s.Connected && s.Trouble != "" {
			t.Log(s.Trouble)
			return
		}
		if time.Now().After(end) {
			t.Fatal("a host that is not declared gets no reason")
		}
	}
}

// A central may die while it deletes a host, and leave a binding to the deleted host.
// This binding does not prevent another host from getting the port. Neither does a
// binding whose host is deleted later.
func TestBindingToUndeclaredHost(t *testing.T) {
	r := newRig(t)
	r.net("n1", 100, false)
	r.memory.Put(portObject(1, "n1", ""), portObject(2, "n1", ""), store.Object{Kind: store.KindBind, ID: "p1", Message: &wire.Bind{
		Port: "p1", Host: "gone", Endpoint: endpoint(9).AsSlice()}})
	r.host(1, locals("port1", "port2")...)
	waitfor.True(t, "port 1 at host 1", func() bool { return r.memory.Declaration().Binds["p1"].GetHost() == "h1" })
	two := r.host(2)
	r.settled()

	r.hosts["h1"].stop()
	delete(r.hosts, "h1")
	r.memory.Put(store.Object{Kind: store.KindHost, ID: "h1"})
	two.local = locals("port1")
	two.recorder.SetPorts(two.local...)
	two.agent.PortsChanged()
	waitfor.True(t, "port 1 at host 2, and port 2 nowhere", func() bool {
		binds := r.memory.Declaration().Binds
		return binds["p1"].GetHost() == "h2" && binds["p2"].Bind == nil
	})
	r.settled()
}

// Stats reports by how many revisions the slowest host is behind.
func TestLag(t *testing.T) {
	r := newRig(t)
	r.net("n1", 100, false)
	r.memory.Put(portObject(1, "n1", ""))
	r.host(1, locals("port1")...)
	r.settled()
	waitfor.True(t, "no lag", func() bool { s := r.hub.Stats(); return s.Sessions == 1 && s.Lag == 0 })
	var behind int64 // right after a change, which the host can hardly have applied
	n := 1
	waitfor.True(t, "a lag", func() bool {
		n++
		r.memory.Put(portObject(n, "n1", ""))
		o := portObject(1, "n1", "")
		o.Message.(*wire.Port).Mac[0] = byte(4 * n)
		r.memory.Put(o)
		behind = r.hub.Stats().Lag
		return behind > 0
	})
	waitfor.True(t, "no lag again", func() bool { return r.hub.Stats().Lag == 0 })
}
