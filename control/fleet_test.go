// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"weft/api"
	"weft/control/agent"
	"weft/control/workers/workertest"
	"weft/flowtable"
	"weft/internal/waitfor"
	"weft/openflow"
	"weft/packet"
	"weft/port"
)

// fleetHost is a switch that weft-central manages, in the network with VNI 7. The guest of switch n has
// the addresses 02:00:00:00:00:0n and 10.0.0.n.
type fleetHost struct {
	*fakes
	n uint32
}

func (h *fleetHost) endpoint() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(h.n)}) }

func guestMAC(n uint32) uint64 { return 0x020000000000 | uint64(n) }

func guestIP(n uint32) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }

func (h *fleetHost) addGuest(name string, options ...string) {
	h.t.Helper()
	words := append([]string{"type=vhost-user", "path=" + filepath.Join(h.t.TempDir(), name)}, options...)
	if _, err := h.d.ports.Add(name, words); err != nil {
		h.t.Fatal(err)
	}
}

func (h *fleetHost) apply(c agent.Changes) {
	h.t.Helper()
	if err := h.d.fleet.Apply(&c); err != nil {
		h.t.Error(err)
	}
}

func (h *fleetHost) address(n uint32, host *fleetHost, generation int64) agent.Address {
	a := agent.Address{VNI: 7, MAC: guestMAC(n), IPs: []netip.Addr{guestIP(n)}, Generation: generation}
	if host == h {
		a.Port = "vm"
	} else {
		a.Remote = host.endpoint()
	}
	return a
}

func declaredVM(n uint32) agent.Port {
	return agent.Port{Name: "vm", VNI: 7, MAC: guestMAC(n), IPs: []netip.Addr{guestIP(n)}}
}

func (h *fleetHost) declaration(hosts []*fleetHost, flood bool) agent.Changes {
	c := agent.Changes{Endpoint: h.endpoint(), Nets: []agent.Net{{VNI: 7, Flood: flood}}, Ports: []agent.Port{declaredVM(h.n)}}
	for _, o := range hosts {
		if o != h {
			c.Nets[0].Members = append(c.Nets[0].Members, o.endpoint())
		}
		c.Addresses = append(c.Addresses, h.address(o.n, o, 1))
	}
	return c
}

func newFleet(t *testing.T, n int, flood bool) []*fleetHost {
	t.Helper()
	var hosts []*fleetHost
	for i := range n {
		h := &fleetHost{newFakes(t), uint32(i + 1)}
		h.addGuest("vm")
		hosts = append(hosts, h)
	}
	for _, h := range hosts {
		h.apply(h.declaration(hosts, flood))
	}
	return hosts
}

// fromTunnel adds tunnel fields to a key, as if its frame had arrived with this VNI from the endpoint
// "remote".
func fromTunnel(key flowtable.Key, vni uint32, remote netip.Addr) flowtable.Key {
	a := remote.As4()
	key.SetInPort(uint32(port.MaxPorts - 1))
	key[flowtable.WTunID] = uint64(vni)
	key[flowtable.WTunID+1] = uint64(a[0])<<56 | uint64(a[1])<<48 | uint64(a[2])<<40 | uint64(a[3])<<32
	return key
}

func (h *fleetHost) run(key flowtable.Key) []flowtable.Action {
	h.t.Helper()
	h.worker().Frame(key, 100)
	h.settle()
	return h.actionsOf(&key)
}

// sentTo traces a frame to guest n. It returns the host to which the switch sends the frame. If the
// switch sends it to no host, sentTo returns the drop reason or the actions.
func (h *fleetHost) sentTo(n uint32) string {
	h.t.Helper()
	tr, err := h.trace(fmt.Sprintf("in_port=vm,udp,dl_src=02:00:00:00:00:%02x,dl_dst=02:00:00:00:00:%02x,nw_src=10.0.0.%d", h.n, n, h.n), "")
	if err != nil {
		h.t.Fatal(err)
	}
	for _, s := range tr.Steps {
		if place, found := strings.CutPrefix(s.Note, "declared by central: "); found {
			return place
		}
	}
	return tr.Drop + tr.Actions
}

// Three switches forward frames between their guests. They know all addresses from weft-central's
// declarations.
func TestFleetPings(t *testing.T) {
	hosts := newFleet(t, 3, false)
	for _, from := range hosts {
		for _, to := range hosts {
			if from == to {
				continue
			}
			vm := from.port("vm").Number
			sent := from.run(workertest.UDPKey(vm, from.n, to.n, 9))
			if len(sent) != 1 || sent[0].Op != flowtable.OpTunnel || sent[0].U16 != port.MaxPorts-1 || sent[0].U64 != 7 {
				t.Errorf("from %d to %d: %+v", from.n, to.n, sent)
			}
			if got, want := from.sentTo(to.n), "behind "+to.endpoint().String(); got != want {
				t.Errorf("from %d to %d: %q, want %q", from.n, to.n, got, want)
			}
			received := to.run(fromTunnel(workertest.UDPKey(0, from.n, to.n, 9), 7, from.endpoint()))
			if len(received) != 1 || received[0].Op != flowtable.OpOutput || received[0].U32 != to.port("vm").Number {
				t.Errorf("at %d from %d: %+v", to.n, from.n, received)
			}
			if a := to.run(fromTunnel(workertest.UDPKey(0, from.n, to.n, 9), 8, from.endpoint())); len(a) != 1 || a[0].Op != flowtable.OpDrop {
				t.Errorf("a frame of another VNI at %d: %+v", to.n, a)
			}
		}
		tr, err := from.trace(fmt.Sprintf("in_port=vm,dl_src=02:00:00:00:00:%02x,dl_dst=ff:ff:ff:ff:ff:ff,arp,arp_op=1,arp_sha=02:00:00:00:00:%02x,arp_spa=10.0.0.%d,arp_tpa=10.0.0.%d",
			from.n, from.n, from.n, from.n%3+1), "")
		if err != nil || tr.Drop != "" || strings.Contains(tr.Actions, "tunnel") {
			t.Errorf("the ARP request of %d: %+v, %v", from.n, tr, err)
		}
		if n := from.d.pipeline.Counts().MACs; n != 0 {
			t.Errorf("host %d has learned %d addresses", from.n, n)
		}
	}
}

// In a network with Flood, each other host gets a broadcast once. A broadcast from the tunnel goes only
// to guests. In a network without Flood, broadcasts stay on their host.
func TestFleetBroadcasts(t *testing.T) {
	for _, flood := range []bool{false, true} {
		hosts := newFleet(t, 3, flood)
		h := hosts[0]
		h.addGuest("vm2", "vni=7")
		key := workertest.UDPKey(h.port("vm").Number, 1, 0, 9)
		key[flowtable.WEthDst] |= 0xffffffffffff << 16
		tunnels, outputs := 0, 0
		for _, a := range h.run(key) {
			switch a.Op {
			case flowtable.OpTunnel:
				tunnels++
			case flowtable.OpOutput:
				outputs++
			}
		}
		if want := map[bool]int{true: 2}[flood]; tunnels != want || outputs != 1 {
			t.Errorf("flood %v: %d tunnels, %d outputs", flood, tunnels, outputs)
		}
		for _, a := range h.run(fromTunnel(key, 7, hosts[1].endpoint())) {
			if a.Op != flowtable.OpOutput {
				t.Errorf("flood %v, from the tunnel: %+v", flood, a)
			}
		}
	}
}

// When Apply returns, no megaflow uses an old address. Apply ignores declarations with a smaller
// generation than the present one. A removed address is unknown to the switch.
func TestFleetAddressMoves(t *testing.T) {
	hosts := newFleet(t, 3, false)
	a, b, c := hosts[0], hosts[1], hosts[2]
	key := workertest.UDPKey(a.port("vm").Number, 1, 2, 9)
	was := a.run(key)
	a.apply(agent.Changes{Addresses: []agent.Address{a.address(2, c, 5)}})
	if left := a.actionsOf(&key); left != nil {
		t.Errorf("a megaflow goes by the old place: %+v", left)
	}
	if now := a.run(key); len(was) != 1 || len(now) != 1 || now[0].U32 == was[0].U32 {
		t.Errorf("before %+v, after %+v", was, now)
	}
	a.apply(agent.Changes{Addresses: []agent.Address{a.address(2, b, 4)}, Removed: []agent.RemovedAddress{{VNI: 7, MAC: guestMAC(2), Generation: 4}}})
	if got := a.sentTo(2); got != "behind 192.0.2.3" {
		t.Errorf("after an older place: %q", got)
	}
	// Apply removes addresses before it adds others in the same change.
	a.apply(agent.Changes{Addresses: []agent.Address{a.address(2, c, 5)}, Removed: []agent.RemovedAddress{{VNI: 7, MAC: guestMAC(2), Generation: 5}}})
	if got := a.sentTo(2); got != "behind 192.0.2.3" {
		t.Errorf("after an older place: %q", got)
	}
	a.apply(agent.Changes{Removed: []agent.RemovedAddress{{VNI: 7, MAC: guestMAC(2), Generation: 5}}})
	if got := a.sentTo(2); strings.HasPrefix(got, "behind") {
		t.Errorf("after the removal: %q", got)
	}
	a.apply(agent.Changes{Nets: []agent.Net{{VNI: 7, Gone: true}}})
	if got := a.sentTo(3); got != "no-portdrop(no-port)" {
		t.Errorf("in a network that is gone: %q", got)
	}
}

// A port may be declared before it exists. An undeclared port forwards nothing.
func TestFleetPortsComeAndGo(t *testing.T) {
	hosts := newFleet(t, 2, false)
	a, b := hosts[0], hosts[1]
	if err := a.d.ports.Delete("vm"); err != nil {
		t.Fatal(err)
	}
	toGuest := fromTunnel(workertest.UDPKey(0, 2, 1, 9), 7, b.endpoint())
	if got := a.run(toGuest); len(got) != 1 || packet.DropReason(got[0].U32) != packet.DropNoPort {
		t.Errorf("to a guest that is gone: %+v", got)
	}
	a.addGuest("other")
	a.addGuest("vm")
	if got := a.run(toGuest); len(got) != 1 || got[0].Op != flowtable.OpOutput || got[0].U32 != a.port("vm").Number {
		t.Errorf("to a guest that is back: %+v", got)
	}
	if got := a.sentTo(2); got != "behind 192.0.2.2" {
		t.Error(got)
	}
	a.apply(agent.Changes{Ports: []agent.Port{{Name: "vm", Gone: true}}})
	if got := a.sentTo(2); !strings.HasPrefix(got, "table-miss") {
		t.Errorf("a port that is not declared any more: %q", got)
	}
	// Only a port with Unchecked may send from addresses other than its declared ones.
	p := declaredVM(1)
	for _, p.Unchecked = range []bool{false, true} {
		a.apply(agent.Changes{Ports: []agent.Port{p}})
		got := a.run(workertest.UDPKey(a.port("vm").Number, 9, 2, 9))
		if spoofed := len(got) == 1 && got[0].Op == flowtable.OpDrop; spoofed == p.Unchecked {
			t.Errorf("unchecked %v: %+v", p.Unchecked, got)
		}
	}
}

// Megaflows and counts of weft-central's table 250 survive a restart of control if the agent has its
// saved state. Otherwise the switch removes them.
func TestFleetAfterControlsDeath(t *testing.T) {
	hosts := newFleet(t, 2, false)
	a := hosts[0]
	vm := a.port("vm").Number
	key := workertest.UDPKey(vm, 1, 2, 9)
	was := a.run(key)
	a.worker().Frame(key, 100)
	flow := func() string {
		flows, err := a.d.bridges.Megaflows().DumpFlows("table=250,in_port=vm", 0)
		if err != nil || len(flows) != 1 {
			t.Fatalf("%+v, %v", flows, err)
		}
		return fmt.Sprint(flows[0].Actions, " ", flows[0].Packets)
	}
	counted := flow()
	a.die()
	d, err := newDaemon(a.config)
	if err != nil {
		t.Fatal(err)
	}
	state := a.declaration(hosts, false)
	if err := d.fleet.Apply(&state); err != nil {
		t.Fatal(err)
	}
	a.beginWith(d)
	if now := a.actionsOf(&key); !slices.Equal(now, was) {
		t.Errorf("with the agent's state: %+v, before %+v", now, was)
	}
	if got := flow(); got != counted || !strings.HasPrefix(counted, "NORMAL 2") {
		t.Errorf("counts %q, before %q", got, counted)
	}
	a.die()
	a.begin()
	if now := a.actionsOf(&key); now != nil {
		t.Errorf("without the agent's state: %+v", now)
	}
	list, err := a.d.ports.List("")
	if err != nil || len(list) != 1 {
		t.Errorf("ports %+v, %v", list, err)
	}
}

// An operator sees weft-central's port and flows, but cannot change them.
func TestFleetIsNotTheOperators(t *testing.T) {
	h := newFleet(t, 1, false)[0]
	d := h.d
	if err := d.ports.Delete("central"); err == nil || err.Error() != "central: weft-central's tunnel; expected another port" {
		t.Error(err)
	}
	if _, err := d.ports.Add("central", []string{"type=tap"}); err == nil || !strings.HasPrefix(err.Error(), "port name central: weft-central's tunnel has it") {
		t.Error(err)
	}
	if err := d.bridges.Megaflows().ModTable(api.ModTable{Table: 250, Settings: []string{"evict"}}); err == nil {
		t.Error("the settings of table 250 can be changed")
	}
	if err := d.bridges.Megaflows().ModTable(api.ModTable{Table: -1, Settings: []string{"limit:1"}}); err != nil {
		t.Error(err)
	}
	flows := func() int {
		list, err := d.bridges.Megaflows().DumpFlows("", 0)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if _, err := d.bridges.Megaflows().DeleteFlows("", false); err != nil || flows() != 2 {
		t.Errorf("del-flows: %v, %d flows are left", err, flows())
	}
	if _, err := d.bridges.Megaflows().ChangeFlows(api.ChangeFlows{Op: "replace", Text: "actions=drop\n", File: true}); err != nil || flows() != 3 {
		t.Errorf("replace-flows: %v, %d flows", err, flows())
	}
	if got := h.sentTo(2); got != "flow-dropdrop(flow-drop)" {
		t.Errorf("an operator's flow of table 0 does not go first: %q", got)
	}
}

// Ports lists the ports of guests, but not the operator's vxlan ports.
func TestFleetListsPorts(t *testing.T) {
	h := newFleet(t, 1, false)[0]
	h.addGuest("vm3", "id=3f0e")
	h.vxlanPorts(1)
	got := h.d.fleet.Ports()
	want := []agent.LocalPort{{Name: "vm", Added: 1}, {Name: "vm3", ID: "3f0e", Added: 2}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	words := []string{"type=vhost-user", "path=" + filepath.Join(t.TempDir(), "x"), "id=3f0e"}
	if _, err := h.d.ports.Add("vm4", words); err == nil || err.Error() != "id=3f0e: port vm3 has it already; expected another" {
		t.Error(err)
	}
}

// The error of Apply names the changes that were not applied, in one line.
func TestFleetErrors(t *testing.T) {
	h := newFleet(t, 1, false)[0]
	bad := agent.Changes{Nets: []agent.Net{{VNI: 1 << 24}, {VNI: 8}}, Ports: []agent.Port{{Name: "x", VNI: 8, MAC: 1 << 40}},
		Addresses: []agent.Address{{VNI: 9, MAC: 2}, {VNI: 8, MAC: 0}, {VNI: 8, MAC: 2, Remote: netip.MustParseAddr("192.0.2.9")}}}
	const want = "network: vni 16777216: expected a number from 0 to 16777215; port x: MAC address 010000000000: expected a unicast one; " +
		"address 000000000002: vni 9 is no network of this host; and 1 more"
	if err := h.d.fleet.Apply(&bad); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if rows := h.d.macs.List(0); len(rows) != 2 {
		t.Errorf("%+v", rows)
	}
}

// recorder implements agent.Events, and passes the events to channels.
type recorder struct{ seen, changed chan string }

func (r *recorder) PortsChanged()                               { r.changed <- "" }
func (r *recorder) Seen(port string)                            { r.seen <- port }
func (r *recorder) Ask(string, uint32, uint64, netip.Addr) bool { return false }

// follow passes the host's events to "events". It returns after the recorder r got the first one.
func (h *fleetHost) follow(events agent.Events, r *recorder) {
	h.t.Helper()
	go h.d.fleet.Run(h.t.Context(), events)
	<-r.changed
}

// The switch reports the first frame of a declared port, once after each addition of the port.
func TestFleetSeesFirstFrames(t *testing.T) {
	h := newFleet(t, 1, false)[0]
	r := &recorder{make(chan string, 100), make(chan string, 100)}
	h.follow(r, r)
	h.addGuest("vm5")
	<-r.changed
	h.run(workertest.UDPKey(h.port("vm5").Number, 1, 9, 9))
	for i := range uint16(3) {
		h.run(workertest.UDPKey(h.port("vm").Number, 1, 8, i))
	}
	if got := <-r.seen; got != "vm" || len(r.seen) != 0 {
		t.Errorf("%q, and %d more", got, len(r.seen))
	}
	if err := h.d.ports.Delete("vm"); err != nil {
		t.Fatal(err)
	}
	h.addGuest("vm")
	h.run(workertest.UDPKey(h.port("vm").Number, 1, 8, 9))
	if got := <-r.seen; got != "vm" {
		t.Error(got)
	}
}

// asker records the addresses for which the switch asks the agent. If refuses is set, its method Ask
// returns false.
type asker struct {
	recorder
	refuses  atomic.Bool
	requests chan string
}

func (a *asker) Ask(port string, vni uint32, mac uint64, ip netip.Addr) bool {
	a.requests <- fmt.Sprint(port, " ", vni, " ", mac&0xff, " ", ip)
	return !a.refuses.Load()
}

// newAsked returns a host and its agent. If onDemand is true, the switch gets the network's addresses
// only when it asks for them.
func newAsked(t *testing.T, onDemand bool) (*fleetHost, *asker) {
	t.Helper()
	h := &fleetHost{newFakes(t), 1}
	h.addGuest("vm")
	h.addGuest("vm2")
	p := declaredVM(1)
	p.Name, p.Unchecked = "vm2", true
	h.apply(agent.Changes{Endpoint: h.endpoint(), Nets: []agent.Net{{VNI: 7, Asked: onDemand}}, Ports: []agent.Port{declaredVM(1), p},
		Addresses: []agent.Address{h.address(1, h, 1)}})
	a := &asker{recorder: recorder{make(chan string, 1000), make(chan string, 1000)}, requests: make(chan string, 1000)}
	h.follow(a, &a.recorder)
	return h, a
}

// A frame to an unknown address waits until the agent answers the switch's question.
func TestFleetAsks(t *testing.T) {
	h, a := newAsked(t, true)
	vm, other := h.port("vm").Number, h.port("vm2").Number
	key := workertest.UDPKey(vm, 1, 2, 9)
	h.worker().Frame(key, 100)
	h.worker().Frame(workertest.UDPKey(vm, 1, 2, 10), 100)
	if got := <-a.requests; got != "vm 7 2 invalid IP" {
		t.Error(got)
	}
	if h.worker().Waiting() != 2 || len(a.requests) != 0 {
		t.Errorf("%d frames wait, %d more questions", h.worker().Waiting(), len(a.requests))
	}
	h.apply(agent.Changes{Addresses: []agent.Address{h.address(2, &fleetHost{n: 2}, 1)}})
	h.settle()
	if got := h.actionsOf(&key); len(got) != 1 || got[0].Op != flowtable.OpTunnel {
		t.Errorf("once the address is known: %+v", got)
	}
	key = workertest.UDPKey(vm, 1, 3, 9)
	h.worker().Frame(key, 100)
	if got := <-a.requests; got != "vm 7 3 invalid IP" {
		t.Error(got)
	}
	h.apply(agent.Changes{Unknown: []agent.UnknownAddress{{VNI: 7, MAC: guestMAC(3)}}})
	h.settle()
	if got := h.actionsOf(&key); len(got) != 1 || got[0].Op != flowtable.OpOutput || got[0].U32 != other {
		t.Errorf("once nobody has the address: %+v", got)
	}
	tr, err := h.trace("in_port=vm,dl_src=02:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff,arp,arp_op=1,arp_sha=02:00:00:00:00:01,arp_spa=10.0.0.1,arp_tpa=10.0.0.9", "")
	if text := fmt.Sprint(tr); err != nil || !strings.Contains(text, "asks weft-central") {
		t.Errorf("%s, %v", text, err)
	}
	// frames from other hosts make the switch ask nothing
	if got := h.run(fromTunnel(workertest.UDPKey(0, 9, 4, 9), 7, netip.MustParseAddr("192.0.2.9"))); len(got) == 0 || len(a.requests) != 0 {
		t.Errorf("from the tunnel: %+v, %d questions", got, len(a.requests))
	}
}

// A frame is dropped if no answer arrives in time. If its port has asked as many questions as it may, a
// frame is dropped at once. Each port has its own limit.
func TestFleetQuestionsAreBounded(t *testing.T) {
	const limit = 64
	h, a := newAsked(t, true)
	vm, other := h.port("vm").Number, h.port("vm2").Number
	for i := range uint32(limit + 10) {
		h.worker().Frame(workertest.UDPKey(vm, 1, 1000+i, 9), 100)
	}
	h.worker().Frame(workertest.UDPKey(other, 5, 7, 9), 100)
	row := func(holder string) (used, refused uint64) {
		rows, err := h.d.rest.LimitsOf("")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			if r.Name == "questions" && r.Holder == holder {
				return r.Used, r.Refused
			}
		}
		return 0, 0
	}
	for asked := ""; asked != "vm2 7 7 invalid IP"; {
		asked = <-a.requests
	}
	waitfor.True(t, "frames above the limit are dropped", func() bool {
		_, refused := row("vm")
		return refused >= 10
	})
	h.settle()
	if used, refused := row("vm"); used != 0 || refused != limit+10 {
		t.Errorf("after the time for an answer %d frames wait, %d are dropped", used, refused)
	}
	if used, refused := row("vm2"); used != 0 || refused != 1 {
		t.Errorf("of the other port %d frames wait, %d are dropped", used, refused)
	}
	a.refuses.Store(true)
	h.worker().Frame(workertest.UDPKey(other, 5, 8, 9), 100)
	h.settle()
	if _, refused := row("vm2"); refused != 2 {
		t.Errorf("%d frames are dropped after a refusal", refused)
	}
}

// If weft-central sends all addresses of a network unasked, a frame to an unknown address also waits for
// an answer. The switch forwards the frame to all ports of the network in three cases: the agent refuses
// the question, no answer arrives, or the port has asked as many questions as it may.
func TestFleetForwardsWithoutAnswer(t *testing.T) {
	const limit = 64
	h, a := newAsked(t, false)
	vm, other := h.port("vm").Number, h.port("vm2").Number
	flooded := func(name string, key flowtable.Key) {
		t.Helper()
		if got := h.actionsOf(&key); len(got) != 1 || got[0].Op != flowtable.OpOutput || got[0].U32 != other {
			t.Errorf("%s: %+v", name, got)
		}
	}
	h.worker().Frame(workertest.UDPKey(vm, 1, 2, 9), 100)
	<-a.requests
	if n := h.worker().Waiting(); n != 1 {
		t.Errorf("%d frames wait for an answer", n)
	}
	h.apply(agent.Changes{Addresses: []agent.Address{h.address(2, &fleetHost{n: 2}, 1)}})
	h.settle()
	key := workertest.UDPKey(vm, 1, 2, 9)
	if got := h.actionsOf(&key); len(got) != 1 || got[0].Op != flowtable.OpTunnel {
		t.Errorf("once the address is known: %+v", got)
	}
	for i := range uint32(limit + 1) {
		h.worker().Frame(workertest.UDPKey(vm, 1, 1000+i, 9), 100)
	}
	h.settle()
	flooded("without an answer", workertest.UDPKey(vm, 1, 1000, 9))
	flooded("above the limit", workertest.UDPKey(vm, 1, 1000+limit, 9))
	a.refuses.Store(true)
	h.worker().Frame(workertest.UDPKey(vm, 1, 3, 9), 100)
	h.settle()
	flooded("after a refusal", workertest.UDPKey(vm, 1, 3, 9))
	rows, err := h.d.rest.LimitsOf("")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if r.Name == "questions" && (r.Used != 0 || r.Refused != 0) {
			t.Errorf("%+v", r)
		}
	}
}

// slowFleet is a simple model of central.Switch, with which a test compares it.
type slowFleet struct {
	nets     map[uint32]bool
	ports    map[string]agent.Port
	list     []agent.Address
	declared map[string]bool // ports that exist on the host
}

func (f *slowFleet) forget(removed func(*agent.Address) bool) {
	f.list = slices.DeleteFunc(f.list, func(a agent.Address) bool { return removed(&a) })
}

func (f *slowFleet) apply(c *agent.Changes) {
	for _, n := range c.Nets {
		if f.nets[n.VNI] = !n.Gone; n.Gone {
			f.forget(func(a *agent.Address) bool { return a.VNI == n.VNI })
		}
	}
	for _, p := range c.Ports {
		if f.ports[p.Name] = p; p.Gone {
			delete(f.ports, p.Name)
		}
	}
	for _, r := range c.Removed {
		f.forget(func(a *agent.Address) bool { return a.VNI == r.VNI && a.MAC == r.MAC && a.Generation <= r.Generation })
	}
	for _, a := range c.Addresses {
		newer := slices.ContainsFunc(f.list, func(o agent.Address) bool {
			return o.VNI == a.VNI && o.MAC == a.MAC && o.Generation > a.Generation
		})
		if f.nets[a.VNI] && !newer {
			f.forget(func(o *agent.Address) bool { return o.VNI == a.VNI && o.MAC == a.MAC })
			f.list = append(f.list, a)
		}
	}
}

func (f *slowFleet) destination(port string, number uint32) string {
	p, declared := f.ports[port]
	switch {
	case !declared:
		return "table-miss"
	case !f.nets[p.VNI]:
		return "no-port"
	}
	for _, a := range f.list {
		if a.VNI != p.VNI || a.MAC != guestMAC(number) {
			continue
		}
		if a.Remote.IsValid() {
			return "declared by central: behind " + a.Remote.String()
		}
		if o, member := f.ports[a.Port]; member && o.VNI == p.VNI && f.declared[a.Port] {
			return "declared by central: at port " + a.Port
		}
		return "declared by central, but its port is not on this host now"
	}
	return "unknown"
}

// TestFleetAgainstASlowOne compares central.Switch with its model after random changes. All megaflows
// must equal new translations of their keys.
func TestFleetAgainstASlowOne(t *testing.T) {
	h := &fleetHost{newFakes(t), 1}
	r := rand.New(rand.NewPCG(7, 7))
	slow := &slowFleet{nets: map[uint32]bool{}, ports: map[string]agent.Port{}, declared: map[string]bool{}}
	names := []string{"a", "b", "c"}
	h.apply(agent.Changes{Endpoint: h.endpoint()})
	for step := range 150 {
		name := names[r.IntN(3)]
		switch {
		case r.IntN(4) > 0:
			c := randomChanges(r, names, int64(step), slow.nets)
			if err := h.d.fleet.Apply(&c); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			slow.apply(&c)
		case slow.declared[name]:
			if err := h.d.ports.Delete(name); err != nil {
				t.Fatal(err)
			}
			slow.declared[name] = false
		default:
			h.addGuest(name)
			slow.declared[name] = true
		}
		for _, name := range names {
			for to := range uint32(4) {
				if slow.declared[name] {
					h.compare(slow, name, to, step)
				}
			}
		}
		if t.Failed() {
			return
		}
	}
}

func randomChanges(r *rand.Rand, names []string, now int64, nets map[uint32]bool) (c agent.Changes) {
	vni := 7 + uint32(r.IntN(2))
	if r.IntN(2) == 0 {
		c.Nets = []agent.Net{{VNI: vni, Gone: r.IntN(5) == 0, Flood: r.IntN(2) == 0, Members: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}}
	}
	if r.IntN(2) == 0 {
		c.Ports = []agent.Port{{Name: names[r.IntN(3)], Gone: r.IntN(4) == 0, VNI: vni, MAC: guestMAC(9)}}
	}
	for range r.IntN(3) {
		a := agent.Address{VNI: vni, MAC: guestMAC(uint32(r.IntN(4))), Generation: now - int64(r.IntN(3)), Port: names[r.IntN(3)]}
		if r.IntN(2) == 0 {
			a.Port, a.Remote = "", netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + r.IntN(3))})
		}
		if present := nets[vni]; len(c.Nets) > 0 && !c.Nets[0].Gone || len(c.Nets) == 0 && present {
			c.Addresses = append(c.Addresses, a)
		}
	}
	if r.IntN(3) == 0 {
		c.Removed = []agent.RemovedAddress{{VNI: vni, MAC: guestMAC(uint32(r.IntN(4))), Generation: now - int64(r.IntN(3))}}
	}
	return c
}

func (h *fleetHost) compare(slow *slowFleet, name string, number uint32, step int) {
	h.t.Helper()
	tr, err := h.trace(fmt.Sprintf("in_port=%s,udp,dl_src=02:00:00:00:00:09,dl_dst=02:00:00:00:00:%02x,nw_src=10.0.0.9,nw_dst=10.0.0.%d,nw_ttl=64,tp_src=1000,tp_dst=9", name, number, number), "")
	if err != nil {
		h.t.Fatal(err)
	}
	want, got := slow.destination(name, number), "unknown"
	for _, s := range tr.Steps {
		if strings.HasPrefix(s.Note, "declared by central") {
			got = s.Note
		}
	}
	if got == "unknown" && (tr.Drop == "table-miss" || tr.Drop == "no-port") {
		got = tr.Drop
	}
	if got != want {
		h.t.Errorf("step %d, from %s to %d: %q, want %q", step, name, number, got, want)
	}
	key := workertest.UDPKey(h.port(name).Number, 9, number, 9)
	if left := h.actionsOf(&key); left != nil {
		if now := openflow.FormatDatapathActions(left, h.d.pipeline.View()); now != tr.Actions {
			h.t.Errorf("step %d, from %s to %d: a megaflow does %s, a frame now %s", step, name, number, now, tr.Actions)
		}
	}
	h.run(key)
}

// A network that is removed and added again in one change has only its new addresses.
func TestFleetNetworkGoesAndComesBack(t *testing.T) {
	hosts := newFleet(t, 3, false)
	h := hosts[0]
	c := h.declaration(hosts[:2], false)
	c.Nets = append([]agent.Net{{VNI: 7, Gone: true}}, c.Nets...)
	h.apply(c)
	if got, want := h.sentTo(2), "behind "+hosts[1].endpoint().String(); got != want {
		t.Errorf("to a guest that stays: %q, want %q", got, want)
	}
	if got := h.sentTo(3); strings.HasPrefix(got, "behind") {
		t.Errorf("to a guest that is not declared any more: %q", got)
	}
}
