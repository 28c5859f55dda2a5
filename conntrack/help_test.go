// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weft/flowtable"
	"weft/internal/shm"
	"weft/packet"
	"weft/packet/packettest"
)

const second = 1_000_000_000

// seeds returns the number of seeds of a random test: n, or n/5 with -short, as in runs with the
// race detector.
func seeds(n int64) int64 {
	if testing.Short() {
		return n / 5
	}
	return n
}

func newMemory(t testing.TB, n int) Memory {
	t.Helper()
	s := Sizes{Connections: n}
	if !s.Valid() {
		t.Fatalf("invalid sizes %+v", s)
	}
	var measure shm.Layout
	CarveMemory(&measure, s)
	r, err := shm.Create("conntrack-test", measure.Off)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	m := CarveMemory(&shm.Layout{Mem: r.Bytes()}, s)
	Init(m, 42)
	return m
}

// rig sends frames through a Tracker, one at a time, and has the time and the input port of the test.
type rig struct {
	t     testing.TB
	tr    *Tracker
	b     packet.Batch
	metas [packet.BatchSize]Meta
	arena *packettest.Arena
	now   uint64
	port  uint32 // input port of the frames
}

func newRig(t testing.TB, n int) *rig { return newRigOf(t, Open(newMemory(t, n), 1)) }

// newRigOf adds a worker to a table.
func newRigOf(t testing.TB, tab *Table) *rig {
	return &rig{t: t, tr: NewTracker(tab, 7), arena: packettest.NewArena(t, 1<<17), now: 1000 * second}
}

// put makes r.b a batch with a single frame.
func (r *rig) put(frame []byte) {
	r.t.Helper()
	r.b.Reset()
	r.tr.Forget(^uint32(0))
	r.arena.Reset()
	f := r.arena.Add(&r.b, frame, packet.InnerHeader, 0)
	f.InPort = r.port
	var k flowtable.Key
	if reason := flowtable.Extract(&r.b, f, &k); reason != packet.DropNone {
		r.t.Fatalf("parsing the frame: %v", reason)
	}
	r.metas[0] = Meta{}
}

func (r *rig) send(frame []byte, req Request) (Meta, []byte) {
	r.t.Helper()
	r.put(frame)
	return r.repeat(req)
}

// repeat runs the last frame through another ct action, with its Meta of the action before.
func (r *rig) repeat(req Request) (Meta, []byte) {
	r.tr.Forget(^uint32(0))
	r.tr.Process(&r.b, []uint8{0}, &r.metas, &req, r.now)
	return r.metas[0], packettest.Bytes(&r.b, &r.b.Frames[0])
}

func (r *rig) expect(frame []byte, req Request, state uint8) []byte {
	r.t.Helper()
	m, out := r.send(frame, req)
	if m.State != state || m.Drop != packet.DropNone {
		r.t.Fatalf("ct_state %s, drop %v; want ct_state %s", stateText(m.State), m.Drop, stateText(state))
	}
	return out
}

func stateText(s uint8) string {
	text := ""
	for i, name := range []string{"new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"} {
		if s>>i&1 != 0 {
			text += "+" + name
		}
	}
	return text
}

func end(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// tcpSegment describes a TCP frame.
type tcpSegment struct {
	flags    string // letters S, A, F, R and P for SYN, ACK, FIN, RST and PSH
	seq, ack uint32
	window   uint16
	scale    int // window scale option; -1: no option
	payload  int
}

func network(proto layers.IPProtocol, src, dst netip.Addr) (gopacket.SerializableLayer, gopacket.NetworkLayer, layers.EthernetType) {
	if src.Is4() {
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		return ip, ip, layers.EthernetTypeIPv4
	}
	ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	return ip, ip, layers.EthernetTypeIPv6
}

func serialize(layers ...gopacket.SerializableLayer) []byte {
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, layers...); err != nil {
		panic(err)
	}
	frame := append([]byte(nil), buf.Bytes()...)
	if frame[12] == 0x86 { // the tracker's caller has removed padding
		return frame[:14+40+int(frame[18])<<8+int(frame[19])]
	}
	return frame[:14+int(frame[16])<<8+int(frame[17])]
}

func ethernet(kind layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: kind}
}

func tcpFrame(src, dst string, s tcpSegment) []byte {
	a, b := end(src), end(dst)
	ip, n, kind := network(layers.IPProtocolTCP, a.Addr(), b.Addr())
	tcp := &layers.TCP{SrcPort: layers.TCPPort(a.Port()), DstPort: layers.TCPPort(b.Port()), Seq: s.seq, Ack: s.ack, Window: s.window}
	for _, c := range s.flags {
		switch c {
		case 'S':
			tcp.SYN = true
		case 'A':
			tcp.ACK = true
		case 'F':
			tcp.FIN = true
		case 'R':
			tcp.RST = true
		case 'P':
			tcp.PSH = true
		}
	}
	if s.scale >= 0 {
		tcp.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{byte(s.scale)}}}
	}
	tcp.SetNetworkLayerForChecksum(n)
	return serialize(ethernet(kind), ip, tcp, gopacket.Payload(make([]byte, s.payload)))
}

func udpFrame(src, dst string, payload int) []byte {
	a, b := end(src), end(dst)
	ip, n, kind := network(layers.IPProtocolUDP, a.Addr(), b.Addr())
	udp := &layers.UDP{SrcPort: layers.UDPPort(a.Port()), DstPort: layers.UDPPort(b.Port())}
	udp.SetNetworkLayerForChecksum(n)
	return serialize(ethernet(kind), ip, udp, gopacket.Payload(make([]byte, payload)))
}

func otherFrame(proto uint8, src, dst string) []byte {
	ip, _, kind := network(layers.IPProtocol(proto), netip.MustParseAddr(src), netip.MustParseAddr(dst))
	return serialize(ethernet(kind), ip, gopacket.Payload("payload"))
}

// icmpFrame returns an ICMP or ICMPv6 query or answer of type kind.
func icmpFrame(src, dst string, kind, code uint8, id uint16) []byte {
	body := make([]byte, 40)
	body[0], body[1] = byte(id>>8), byte(id)
	return icmpRaw(netip.MustParseAddr(src), netip.MustParseAddr(dst), kind, code, body)
}

// icmpRaw returns an ICMP message. body begins with the last four bytes of the ICMP
// header.
func icmpRaw(src, dst netip.Addr, kind, code uint8, body []byte) []byte {
	if src.Is4() {
		ip, _, eth := network(layers.IPProtocolICMPv4, src, dst)
		icmp := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, code),
			Id: uint16(body[0])<<8 | uint16(body[1]), Seq: uint16(body[2])<<8 | uint16(body[3])}
		return serialize(ethernet(eth), ip, icmp, gopacket.Payload(body[4:]))
	}
	ip, n, eth := network(layers.IPProtocolICMPv6, src, dst)
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, code)}
	icmp.SetNetworkLayerForChecksum(n)
	return serialize(ethernet(eth), ip, icmp, gopacket.Payload(body))
}

// check fails unless a table's index, lists and counts agree with its records.
func check(t testing.TB, tab *Table) {
	t.Helper()
	if err := inconsistency(tab); err != nil {
		t.Fatal(err)
	}
}

func inconsistency(tab *Table) error {
	entries, live := map[uint32]int{}, 0
	want := map[uint32]int{}
	for i := range tab.buckets {
		b := &tab.buckets[i]
		for w := range uint32(slots) {
			if b.signatures[w/4]>>(w%4*16)&0xffff != 0 {
				entries[b.numbers[w]]++
			}
		}
	}
	zones := map[uint16]uint32{}
	for n := range tab.head.fresh {
		c := &tab.conns[n]
		if c.generation()&1 == 0 {
			continue
		}
		live++
		want[n] = 1
		zones[c.tuples[0].zone()]++
		for dir := range uint8(2) {
			if dir == 1 && c.flags&connTranslated != 0 {
				want[n] = 2
			}
			long := tab.addresses(n)
			p := probe{words: c.tuples[dir], hash: tab.hashOf(n, dir), long: [4]uint64(long[4*dir:])}
			if got, d := tab.find(&p); got != n || d != dir && c.tuples[0] != c.tuples[1] {
				return fmt.Errorf("connection %d is not found by its tuple of direction %d; found connection %d, direction %d", n, dir, got, d)
			}
		}
	}
	if live != int(tab.head.count) {
		return fmt.Errorf("%d connections live, the count is %d", live, tab.head.count)
	}
	for n, k := range entries {
		if want[n] != k {
			return fmt.Errorf("connection %d has %d entries, expected %d", n, k, want[n])
		}
	}
	if len(entries) != live {
		return fmt.Errorf("%d connections in the index, %d live", len(entries), live)
	}
	return inconsistentLists(tab, zones)
}

func inconsistentLists(tab *Table, zones map[uint16]uint32) error {
	for z := range tab.zones {
		if zone := &tab.zones[z]; zone.count != zones[uint16(z)] {
			return fmt.Errorf("zone %d counts %d, has %d", z, zone.count, zones[uint16(z)])
		}
	}
	if err := inconsistentMembers(tab); err != nil {
		return err
	}
	if err := inconsistentHolders(tab); err != nil {
		return err
	}
	free := 0
	for at := tab.head.free; at != 0; at = tab.links[at-1].in[inMember].next {
		if free++; free > len(tab.conns) || tab.conns[at-1].generation()&1 != 0 {
			return fmt.Errorf("the free list contains record %d, which is not free", at-1)
		}
	}
	if free+int(tab.head.count) != int(tab.head.fresh) {
		return fmt.Errorf("%d free and %d live of %d records", free, tab.head.count, tab.head.fresh)
	}
	return nil
}

// inconsistentMembers compares members and their rankings with the records. It returns
// the first difference.
func inconsistentMembers(tab *Table) error {
	want, used, most := map[uint32]uint32{}, map[uint16]uint32{}, map[uint16]uint32{}
	for n := range min(tab.head.fresh, uint32(len(tab.conns))) {
		if zone := tab.conns[n].tuples[0].zone(); tab.conns[n].generation()&1 != 0 {
			key := memberKey(zone, tab.holderOf(n))
			if want[key]++; want[key] == 1 {
				used[zone]++
			}
			most[zone] = max(most[zone], want[key])
		}
	}
	for n := range min(tab.head.fresh, uint32(len(tab.conns))) {
		if tab.conns[n].generation()&1 == 0 {
			continue
		}
		zone, h := tab.conns[n].tuples[0].zone(), tab.holderOf(n)
		key := memberKey(zone, h)
		m := tab.findMember(zone, h)
		if m == none || tab.links[n].member != m || tab.memberRanks[m].count != want[key] {
			return fmt.Errorf("connection %d is of member %d, its holder's is %d; the holder has %d connections in zone %d", n, tab.links[n].member, m, want[key], zone)
		}
	}
	for key, count := range want {
		zone := uint16(key >> 11)
		m := *tab.memberChain(key)
		for m != 0 && tab.members[m-1].key != key {
			m = tab.members[m-1].next
		}
		sum := uint32(0)
		for kind := range uint8(lists) {
			l, n, before := &tab.members[m-1].lists[kind], uint32(0), uint32(0)
			for at := l.first; at != 0 && n <= l.count; at = tab.links[at-1].in[inMember].next {
				if c := &tab.conns[at-1]; tab.links[at-1].in[inMember].prev != before || c.list != kind || c.generation()&1 == 0 || tab.links[at-1].member != m-1 {
					return fmt.Errorf("member %d list %d contains connection %d, which belongs elsewhere", m-1, kind, at-1)
				}
				before = at
				n++
			}
			if n != l.count || l.last != before {
				return fmt.Errorf("member %d list %d: %d connections, counts %d", m-1, kind, n, l.count)
			}
			sum += n
		}
		r := &tab.zoneRankings[zone]
		if h := r.heaviest(); sum != count || r.used != used[zone] || h == none || tierOf(tab.memberRanks[h].count) != tierOf(most[zone]) {
			return fmt.Errorf("member %d of zone %d: %d connections in lists, %d in all; ranking %d of %d members, heaviest %d", m-1, zone, sum, count, r.used, used[zone], h)
		}
	}
	free := 0
	for at := tab.head.freeMember; at != 0 && free <= len(tab.members); at = tab.members[at-1].next {
		free++
	}
	if free+len(want) != int(tab.head.freshMember) {
		return fmt.Errorf("%d free and %d used of %d members", free, len(want), tab.head.freshMember)
	}
	return nil
}

// inconsistentHolders compares the quota holders and their ranking with the records. It
// returns the first difference.
func inconsistentHolders(tab *Table) error {
	var want [Holders]uint32
	for n := range min(tab.head.fresh, uint32(len(tab.conns))) {
		if tab.conns[n].generation()&1 != 0 {
			want[tab.holderOf(n)]++
		}
	}
	most, used := uint32(0), uint32(0)
	for i := range tab.holders {
		if tab.ranks[i].count != want[i] {
			return fmt.Errorf("holder %d counts %d, has %d", i, tab.ranks[i].count, want[i])
		}
		most, used = max(most, want[i]), used+min(want[i], 1)
		sum := uint32(0)
		for kind := range tab.holders[i].lists {
			l, count, before := &tab.holders[i].lists[kind], uint32(0), uint32(0)
			for at := l.first; at != 0 && count <= l.count; at = tab.links[at-1].in[inHolder].next {
				c := &tab.conns[at-1]
				if tab.links[at-1].in[inHolder].prev != before || c.list != uint8(kind) || c.generation()&1 == 0 || tab.holderOf(at-1) != uint32(i) {
					return fmt.Errorf("holder %d list %d contains connection %d, which belongs elsewhere", i, kind, at-1)
				}
				before = at
				count++
			}
			if count != l.count || l.last != before {
				return fmt.Errorf("holder %d list %d: %d connections, counts %d", i, kind, count, l.count)
			}
			sum += count
		}
		if sum != want[i] {
			return fmt.Errorf("holder %d: %d connections in lists, %d in all", i, sum, want[i])
		}
	}
	if h := tab.head.ranking.heaviest(); (h == none) != (most == 0) || h != none && tierOf(want[h]) != tierOf(most) || tab.head.ranking.used != used {
		return fmt.Errorf("the ranking returns holder %d of %d as the heaviest; the highest count is %d", h, tab.head.ranking.used, most)
	}
	return nil
}

func port(i int) string { return fmt.Sprint(i) }
