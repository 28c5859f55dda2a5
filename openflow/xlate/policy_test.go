// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/packet"
)

// groupPort is a port in the reference model. Ports 0 to 2 are on host 0, ports 3 to 5 on host 1. The
// last byte of the port's MAC address and of its IP addresses is its index + 1.
type groupPort struct {
	index  int
	groups []string // nil: no groups
	rules  []PolicyRule
	sender map[groupConn]int // the connections in the zone of the port, with the port that began each
}

func (p *groupPort) host() int { return p.index / 3 }
func (p *groupPort) number() uint32 {
	return uint32(p.index%3 + 1)
}

// groupConn identifies a connection. Both directions have the same value.
type groupConn struct {
	low, high         int // indexes of the ports
	protocol          string
	lowPort, highPort uint16
	v6                bool
}

// groupFrame is a frame between two ports.
type groupFrame struct {
	from, to       int
	protocol       string // tcp, udp or icmp
	source, target uint16 // ports; for ICMP, target is 8 (request) or 0 (reply)
	v6             bool
}

func (f *groupFrame) conn() groupConn {
	if f.protocol == "icmp" {
		return groupConn{min(f.from, f.to), max(f.from, f.to), f.protocol, 0, 0, f.v6}
	}
	if f.from < f.to {
		return groupConn{f.from, f.to, f.protocol, f.source, f.target, f.v6}
	}
	return groupConn{f.to, f.from, f.protocol, f.target, f.source, f.v6}
}

func groupAddr(index int, v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00::%d:%d", index%2, index+1))
	}
	return netip.AddrFrom4([4]byte{10, 0, byte(index % 2), byte(index + 1)})
}

var groupProtocols = map[string]uint8{"tcp": 6, "udp": 17, "icmp": 1, "icmp6": 58}

// groupFleet has two hosts with three ports each. Maps track their connections.
type groupFleet struct {
	t     *testing.T
	p     *ofproto.Tables
	ports []*groupPort
	hosts [2]*recircEnv
	// megaflows of each host since the last change
	megaflows [2][]Translation
	keys      [2][]flowtable.Key
	// conns has the sender of a connection's first packet, by host, zone and connection. replied is
	// true for connections with a reply.
	conns   map[string]int
	replied map[string]bool
}

// plainly is the reference: it decides about a frame directly by the declared rules. Both ends of the
// connection check their rules against its first packet, each by what its own zone knows about the
// connection.
func (g *groupFleet) plainly(f *groupFrame) bool {
	conn := f.conn()
	for _, end := range []int{f.from, f.to} {
		p := g.ports[end]
		if p.groups == nil {
			continue
		}
		first, known := p.sender[conn]
		if !known {
			first = f.from
			if f.protocol == "icmp" && f.target == 0 {
				return false // a reply begins no connection
			}
		}
		peer, port := f.from+f.to-end, f.target
		if first != f.from {
			port = f.source
		}
		if f.protocol == "icmp" {
			port = 8
		}
		if !g.ruleAllows(p, first == end, peer, f, port) {
			return false
		}
		p.sender[conn] = first
	}
	return true
}

func (g *groupFleet) ruleAllows(p *groupPort, began bool, peer int, f *groupFrame, port uint16) bool {
	filtered := !began
	for _, r := range p.rules {
		filtered = filtered || r.Sent
	}
	if !filtered {
		return true
	}
	protocol := groupProtocols[f.protocol]
	if f.v6 && f.protocol == "icmp" {
		protocol = groupProtocols["icmp6"]
	}
	return slices.ContainsFunc(p.rules, func(r PolicyRule) bool {
		inRange := func(p PortRange) bool { return port >= p.First && port <= p.Last }
		return r.Sent == began && (r.Protocol == 0 || r.Protocol == protocol) &&
			(len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, inRange)) &&
			(r.ICMPType < 0 || r.ICMPType == 8 && !f.v6 || r.ICMPType == 128 && f.v6) &&
			(!r.Prefix.IsValid() || r.Prefix.Contains(groupAddr(peer, f.v6))) &&
			(r.Group == "" || slices.Contains(g.ports[peer].groups, r.Group))
	})
}

func newGroupFleet(t *testing.T, r *rand.Rand) *groupFleet {
	g := &groupFleet{t: t, p: centralPipeline(t), conns: map[string]int{}, replied: map[string]bool{}}
	for i := range 6 {
		g.ports = append(g.ports, &groupPort{index: i, sender: map[groupConn]int{}})
	}
	for h := range g.hosts {
		env := &fakeEnv{macs: fdb.New(0, 0), ports: []PortInfo{
			{No: 9, Name: "central", Kind: PortTunnel, Central: true, FlowVNI: true, FlowRemote: true, Local: underlayIP(h)}}}
		for n := range 3 {
			env.ports = append(env.ports, PortInfo{No: uint32(n + 1), Name: fmt.Sprint("p", n+1), Central: true, InVNI: true, VNI: 1})
		}
		env.macs.Change(&fdb.Change{Networks: map[fdb.Segment]*fdb.Network{fdb.SegmentOf(1): {}}})
		g.hosts[h] = &recircEnv{env, NewRecircTable()}
	}
	g.declare(r)
	return g
}

// declare gives all ports random groups and rules.
func (g *groupFleet) declare(r *rand.Rand) {
	names := []string{"a", "b", "c"}
	rules := map[string][]PolicyRule{}
	for _, name := range names {
		for range r.IntN(5) {
			rules[name] = append(rules[name], randomRule(r, names))
		}
	}
	for _, p := range g.ports {
		p.groups, p.rules = nil, nil
		for _, name := range names {
			if r.IntN(2) == 0 {
				p.groups, p.rules = append(p.groups, name), append(p.rules, rules[name]...)
			}
		}
	}
	for h, env := range g.hosts {
		g.megaflows[h], g.keys[h] = nil, nil
		var list []fdb.NetAddress
		for _, p := range g.ports {
			a := fdb.NetAddress{Segment: fdb.SegmentOf(1), MAC: uint64(p.index + 1), Place: fdb.Place{Port: p.number(), Groups: fdb.NewGroups(p.groups)}}
			if p.host() != h {
				a.Port, a.Remote = 0, underlayIP(p.host())
			} else if info := &env.ports[p.number()]; p.groups == nil {
				info.Policy = nil
			} else {
				info.Policy = &Policy{Groups: fdb.NewGroups(p.groups), Rules: p.rules,
					FiltersSent: slices.ContainsFunc(p.rules, func(r PolicyRule) bool { return r.Sent })}
			}
			list = append(list, a)
		}
		env.macs.Change(&fdb.Change{Addresses: list})
	}
}

func randomRule(r *rand.Rand, groups []string) PolicyRule {
	rule := PolicyRule{Sent: r.IntN(3) == 0, ICMPType: -1}
	switch r.IntN(5) {
	case 0:
		rule.Protocol = 6
	case 1:
		rule.Protocol = 17
	case 2:
		rule.Protocol = []uint8{1, 58}[r.IntN(2)]
		rule.ICMPType = []int{-1, 8, 128, 0}[r.IntN(4)]
	}
	if rule.Protocol == 6 || rule.Protocol == 17 {
		for range r.IntN(3) {
			lo := uint16(r.IntN(8))
			rule.Ports = append(rule.Ports, PortRange{lo, lo + uint16(r.IntN(4))})
		}
	}
	switch r.IntN(3) {
	case 0:
		prefix, _ := groupAddr(r.IntN(6), r.IntN(2) == 0).Prefix([]int{0, 24, 31}[r.IntN(3)])
		rule.Prefix = prefix
	case 1:
		rule.Group = groups[r.IntN(len(groups))]
	}
	return rule
}

func randomFrame(r *rand.Rand) *groupFrame {
	f := &groupFrame{from: r.IntN(6), protocol: []string{"tcp", "udp", "icmp"}[r.IntN(3)], source: uint16(r.IntN(10)),
		target: uint16(r.IntN(10)), v6: r.IntN(3) == 0}
	for f.to = f.from; f.to == f.from; {
		f.to = r.IntN(6)
	}
	if f.protocol == "icmp" {
		f.target = []uint16{0, 8}[r.IntN(2)]
	}
	return f
}

// key returns the frame's key on arrival at a host, from a port or from the other host.
func (g *groupFleet) key(f *groupFrame, host int, remote bool) flowtable.Key {
	in := fmt.Sprintf("in_port=%d", g.ports[f.from].number())
	if remote {
		in = fmt.Sprintf("in_port=9,tun_id=1,tun_src=%s,tun_dst=%s", underlayIP(g.ports[f.from].host()), underlayIP(host))
	}
	protocol, field, l4 := f.protocol, "nw", fmt.Sprintf("tp_src=%d,tp_dst=%d", f.source, f.target)
	if f.v6 {
		protocol, field = protocol+"6", "ipv6"
	}
	if f.protocol == "icmp" {
		l4 = fmt.Sprintf("icmp_type=%d", f.icmpType())
	}
	return keyOfText(g.t, fmt.Sprintf("%s,dl_src=%s,dl_dst=%s,%s,%s_src=%s,%s_dst=%s,%s", in, openflow.FormatEthernet(uint64(f.from+1)),
		openflow.FormatEthernet(uint64(f.to+1)), protocol, field, groupAddr(f.from, f.v6), field, groupAddr(f.to, f.v6), l4))
}

func (f *groupFrame) icmpType() uint16 {
	switch {
	case !f.v6:
		return f.target
	case f.target == 8:
		return 128
	}
	return 129
}

// delivered translates a frame at the sender's host and, if it goes there, at the receiver's. It
// reports whether the receiver gets the frame.
func (g *groupFleet) delivered(f *groupFrame) bool {
	host := g.ports[f.from].host()
	k := g.key(f, host, false)
	out := g.look(f, host, &k)
	if slices.Contains(out, "tunnel") {
		host = 1 - host
		k = g.key(f, host, true)
		out = g.look(f, host, &k)
	}
	want := fmt.Sprint(g.ports[f.to].number())
	if len(out) > 0 && !slices.Equal(out, []string{want}) || g.ports[f.to].host() != host && slices.Contains(out, want) {
		g.t.Fatalf("%+v: outputs %q, expected none or %s", f, out, want)
	}
	return len(out) > 0
}

// look translates a key and executes the actions.
func (g *groupFleet) look(f *groupFrame, host int, k *flowtable.Key) (out []string) {
	tr := Translate(g.p, k, g.hosts[host])
	for i := range g.megaflows[host] {
		old := &g.megaflows[host][i]
		if sameUnder(k, &g.keys[host][i], &old.Mask) && !reflect.DeepEqual(old.Actions, tr.Actions) {
			g.t.Fatalf("%+v: a megaflow of another frame has %v, its own %v", f, old.Actions, tr.Actions)
		}
	}
	if len(g.keys[host]) < 200 {
		g.megaflows[host], g.keys[host] = append(g.megaflows[host], tr), append(g.keys[host], *k)
	}
	next := *k
	for i := range tr.Actions {
		switch a := &tr.Actions[i]; a.Op {
		case flowtable.OpCT:
			g.track(f, host, a, &next)
		case flowtable.OpRecirc:
			next.SetRecirc(a.U32)
			out = append(out, g.look(f, host, &next)...)
		case flowtable.OpOutput:
			out = append(out, fmt.Sprint(a.U32))
		case flowtable.OpTunnel:
			out = append(out, "tunnel")
		case flowtable.OpDrop:
			if a.U32 != uint32(packet.DropGroupRules) {
				g.t.Fatalf("%+v: dropped as %v", f, packet.DropReason(a.U32))
			}
		}
	}
	return out
}

func sameUnder(a, b, mask *flowtable.Key) bool {
	for i := range a {
		if (a[i]^b[i])&mask[i] != 0 {
			return false
		}
	}
	return true
}

// track stands in for the connection tracker: it sets the ct_* fields of the key.
func (g *groupFleet) track(f *groupFrame, host int, a *flowtable.Action, k *flowtable.Key) {
	id := fmt.Sprint(host, a.U16, f.conn())
	first, known := g.conns[id]
	state, reply := uint64(flowtable.StateTracked), known && first != f.from
	switch {
	case !known && f.protocol == "icmp" && f.target == 0:
		state |= flowtable.StateInvalid
	case !known:
		state |= flowtable.StateNew
		if a.U32&flowtable.CTCommit != 0 {
			g.conns[id] = f.from
		}
	default:
		if reply {
			g.replied[id] = true
			state |= flowtable.StateReply
		}
		if g.replied[id] {
			state |= 0x02
		} else {
			state |= flowtable.StateNew
		}
	}
	src, dst, one, two := f.source, f.target, f.from, f.to
	if reply {
		src, dst, one, two = dst, src, two, one
	}
	protocol := groupProtocols[f.protocol]
	if f.protocol == "icmp" {
		request := &groupFrame{target: 8, v6: f.v6}
		if src, dst = request.icmpType(), 0; f.v6 { // ct_tp_src has the type and ct_tp_dst the code
			protocol = groupProtocols["icmp6"]
		}
	}
	words := k.CT()
	*words = [flowtable.CTWords]uint64{}
	words[0] = state<<flowtable.CTStateShift | uint64(protocol)<<flowtable.CTProtoShift | uint64(a.U16)
	words[1] = uint64(src)<<48 | uint64(dst)<<32
	from, to := openflow.AddrValue(groupAddr(one, f.v6)), openflow.AddrValue(groupAddr(two, f.v6))
	words[4], words[5], words[6], words[7] = from[0], from[1], to[0], to[1]
}

// Random frames between ports with random groups on two hosts are delivered exactly if the method
// plainly allows them. This holds for established connections too, after a change of the rules.
func TestGroupsAgainstThePlainDeclaration(t *testing.T) {
	const declarations, frames = 20, 120
	delivered, refused := 0, 0
	for seed := range uint64(declarations) {
		r := rand.New(rand.NewPCG(seed, 1))
		g := newGroupFleet(t, r)
		for i := range frames {
			if i%40 == 39 {
				g.declare(r)
			}
			f := randomFrame(r)
			want := g.plainly(f)
			if got := g.delivered(f); got != want {
				t.Fatalf("seed %d, frame %d %+v: delivered %v, the declaration says %v\nfrom %+v\nto %+v", seed, i, f, got, want, g.ports[f.from], g.ports[f.to])
			}
			if want {
				delivered++
			} else {
				refused++
			}
		}
	}
	if few := declarations * frames / 10; delivered < few || refused < few {
		t.Errorf("%d frames delivered and %d refused, expected at least %d each", delivered, refused, few)
	}
}

// Some frames have no connection. ARP and neighbour discovery pass, other frames that are not IP do
// not, and the rules decide about each multicast frame.
func TestGroupsAndFramesWithoutConnections(t *testing.T) {
	p := centralPipeline(t)
	for _, c := range []struct{ name, frame, want string }{
		{"ARP", "in_port=1,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02,arp,arp_op=2", "2"},
		{"neighbour advertisement", "in_port=1,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02,icmp6,icmp_type=136", "2"},
		{"router advertisement", "in_port=1,dl_src=00:00:00:00:00:01,dl_dst=33:33:00:00:00:01,icmp6,icmp_type=134", ""},
		{"not IP", "in_port=1,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02,dl_type=0x88b5", ""},
		{"multicast that a rule allows", "in_port=1,dl_src=00:00:00:00:00:01,dl_dst=01:00:5e:00:00:05,udp,nw_src=10.0.0.1,tp_dst=5353", "2"},
		{"other multicast", "in_port=1,dl_src=00:00:00:00:00:01,dl_dst=01:00:5e:00:00:05,udp,nw_src=10.0.0.1,tp_dst=5354", ""},
		{"a later fragment of multicast", "in_port=1,dl_src=00:00:00:00:00:01,dl_dst=01:00:5e:00:00:05,udp,nw_src=10.0.0.1,nw_frag=later", ""},
	} {
		env := &recircEnv{networkEnv(false), NewRecircTable()}
		env.ports = slices.Delete(env.ports, 3, 4)
		env.ports[1].Policy = &Policy{Groups: fdb.NewGroups([]string{"a"}), Rules: []PolicyRule{{Protocol: 17, Ports: []PortRange{{5353, 5353}}, ICMPType: -1}}}
		k := keyOfText(t, c.frame)
		tr := Translate(p, &k, env)
		got := strings.Join(destinations(&tr), " ")
		if got != c.want || got == "" && tr.Drop != packet.DropGroupRules {
			t.Errorf("%s: %q and drop %v, expected %q", c.name, got, tr.Drop, c.want)
		}
	}
}

// A frame between ports without groups needs one look-up and is not tracked.
func TestPortsWithoutGroupsAreNotTracked(t *testing.T) {
	p, env := centralPipeline(t), &recircEnv{networkEnv(false), NewRecircTable()}
	env.ports[2].Policy = &Policy{}
	k := keyOfText(t, "in_port=1,udp,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02")
	if tr := Translate(p, &k, env); len(tr.Actions) != 1 || tr.Actions[0].Op != flowtable.OpOutput {
		t.Error(openflow.FormatDatapathActions(tr.Actions, nil))
	}
}
