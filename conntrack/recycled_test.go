// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft/packet"
	"weft/packet/packettest"
)

// conversation has the frames of a test connection that announces another one, as FTP does: its first frame,
// the answer, and the frame with the announcement.
type conversation struct {
	name         string
	ask, answer  []byte
	alg          ALG
	announcement []byte // the client's announcement; nil: the first frame
}

func conversations(client, server netip.Addr) (list []conversation) {
	family := "4"
	echo, reply := uint8(icmpEcho), uint8(icmpEchoReply)
	if client.Is6() {
		family, echo, reply = "6", icmp6Echo, icmp6EchoReply
	}
	at := func(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }
	c, s := at(client, 1000), at(server, 80)
	syn := tcpSegment{flags: "S", seq: 100, window: 60000, scale: -1}
	synAck := tcpSegment{flags: "SA", seq: 500, ack: 101, window: 60000, scale: -1}
	text := "EPRT |1|" + client.String() + "|5001|\r\n"
	port := tcpFrame(c, at(server, 21), tcpSegment{flags: "AP", seq: 101, ack: 501, window: 60000, scale: -1, payload: len(text)})
	copy(port[len(port)-len(text):], text)
	l4 := packet.TCP(port[len(port)-len(text)-packet.TCPLen:])
	binary.BigEndian.PutUint16(l4[16:], packet.MendChecksum(l4.Checksum(), 0, packet.Sum([]byte(text))))
	return []conversation{
		{"udp" + family, udpFrame(c, s, 2), udpFrame(s, c, 2), ALGNone, nil},
		{"tcp" + family, tcpFrame(c, s, syn), tcpFrame(s, c, synAck), ALGNone, nil},
		{"sctp" + family, sctpFrame(c, s, chunkInit, 0, 7), sctpFrame(s, c, chunkInitAck, 7, 9), ALGNone, nil},
		{"icmp" + family, icmpFrame(client.String(), server.String(), echo, 0, 77), icmpFrame(server.String(), client.String(), reply, 0, 77), ALGNone, nil},
		{"gre" + family, otherFrame(47, client.String(), server.String()), otherFrame(47, server.String(), client.String()), ALGNone, nil},
		{"ftp" + family, tcpFrame(c, at(server, 21), syn), tcpFrame(at(server, 21), c, synAck), ALGFTP, port},
		{"tftp" + family, udpFrame(c, at(server, 69), 9), udpFrame(at(server, 69), c, 9), ALGTFTP, nil},
	}
}

func allConversations() []conversation {
	return append(conversations(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.1.1")),
		conversations(netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd01::1"))...)
}

// If the connection of a frame ends while the frame is tracked, another connection may
// reuse the record. The frame never uses or changes that connection.
func TestRecordTakenByAnother(t *testing.T) {
	all := allConversations()
	n, step := 0, 1
	if testing.Short() { // 5 has no factor in common with the number of conversations
		step = 5
	}
	for _, workers := range []int{1, 2} {
		for _, nat := range []bool{false, true} {
			for _, was := range all {
				for _, is := range all {
					if n++; was.name != is.name && n%step == 0 {
						t.Run(fmt.Sprintf("%d/%t/%s/%s", workers, nat, was.name, is.name), func(t *testing.T) { tryTaken(t, workers, nat, &was, &is) })
					}
				}
			}
		}
	}
}

func tryTaken(t *testing.T, workers int, nat bool, older, newer *conversation) {
	tab := Open(newMemory(t, 64), workers)
	begin := func(r *rig, v *conversation) Ref {
		req := Request{Zone: 1, Commit: true, ALG: v.alg, Mark: 1, MarkMask: 1}
		if nat {
			req.NAT = NAT{Kind: NATSrc, Lo: addrWords(netip.MustParseAddr("192.0.2.1")), Hi: addrWords(netip.MustParseAddr("192.0.2.1"))}
			if v.name[len(v.name)-1] == '6' {
				req.NAT = NAT{Kind: NATSrc, IPv6: true, Lo: addrWords(netip.MustParseAddr("2001:db8::1")), Hi: addrWords(netip.MustParseAddr("2001:db8::1"))}
			}
		}
		m, _ := r.send(v.ask, req)
		if m.Ref.Generation == 0 || m.Drop != packet.DropNone {
			t.Fatalf("%s: ct_state %s, drop reason %v", v.name, stateText(m.State), m.Drop)
		}
		c := &tab.conns[m.Ref.Number]
		c.flags |= connReplied | connSeen
		peers := &tab.peers[m.Ref.Number]
		peers[0].phase, peers[1].phase = phaseEstablished, phaseEstablished
		return m.Ref
	}
	r, other := newRigOf(t, tab), newRigOf(t, tab)
	old := begin(r, older)
	frame := older.ask
	if older.announcement != nil {
		frame = older.announcement
	}
	r.put(frame)
	r.tr.seek(&r.b, []uint8{0}, 1)
	if ref, _, ok := r.tr.Settle(0); !ok || ref != old {
		t.Fatalf("%+v is not found: %+v", old, ref)
	}
	hints := make([]Hints, 64)
	hints[old.Number][0] = Hint{1, old.Generation}
	var tags [packet.BatchSize]uint32
	if got := r.tr.SettleAll([]uint8{0}, hints, &tags, 1, r.now); got.Usual != 1 {
		t.Fatalf("%+v has no hint: %+v", old, got)
	}
	if !tab.end(old.Number, old.Generation, endFlushed) {
		t.Fatal("the connection had already ended")
	}
	if now := begin(other, newer); now.Number != old.Number {
		t.Fatalf("the new connection has record %d, want %d", now.Number, old.Number)
	}
	record := func() string {
		n := old.Number
		return fmt.Sprintf("%+v, %+v, %+v, %v, %v, expecting %d", &tab.conns[n], tab.links[n], tab.peers[n], tab.labels[n], tab.addresses(n), tab.head.expecting.Load())
	}
	before, f, p := record(), &r.b.Frames[0], &r.tr.probes[0]
	later := r.now + second
	for name, try := range map[string]func() bool{
		"update": func() bool {
			v, _ := r.tr.update(&trackedFrame{batch: &r.b, frame: f, probe: p, now: later}, old.Number, old.Generation, 0)
			return v == verdictValid
		},
		"announce": func() bool {
			r.tr.announce(&trackedFrame{batch: &r.b, frame: f, now: later}, old.Number, old.Generation, 0)
			return false
		},
		"apply": func() bool {
			return r.tr.apply(&trackedFrame{&r.b, f, p, &Meta{Zone: 1, State: Tracked | New},
				&Request{Zone: 1, Commit: true, Mark: 2, MarkMask: 2, NAT: NAT{Kind: NATBare}}, later}, old.Number, old.Generation)
		},
		"again": func() bool {
			return r.tr.trackAgain(&trackedFrame{&r.b, f, p, &Meta{Zone: 1, State: Tracked | New, Ref: old},
				&Request{Zone: 1, NAT: NAT{Kind: NATBare}}, later})
		},
		"Fast":    func() bool { _, ok := r.tr.Fast(&r.b, 0, true, later); return ok },
		"FastAll": func() bool { return r.tr.FastAll(&r.b, []uint8{0}, 1, true, later) != 0 },
		"refresh": func() bool { return r.tr.keep(&tab.conns[old.Number], old.Generation, udpSingle, later) },
		"relist":  func() bool { r.tr.relist(old.Number, old.Generation, listClosing); return false },
	} {
		if try() {
			t.Errorf("%s used the new connection", name)
		}
		if after := record(); after != before {
			t.Errorf("%s changed the new connection from\n%s to\n%s", name, before, after)
		}
		if got := packettest.Bytes(&r.b, f); !slices.Equal(got, frame) {
			t.Errorf("%s: frame is\n%x, want unchanged\n%x", name, got, frame)
		}
	}
	if m, _ := r.repeat(look); m.State&Tracked == 0 || m.Ref == old {
		t.Errorf("tracked again: ct_state %s of connection %+v", stateText(m.State), m.Ref)
	}
	check(t, tab)
}

// A gateway (FTP or TFTP) handles only frames of its own protocol, even for a UDP
// datagram that is shorter than a TCP header.
func TestGatewayOfAnotherProtocol(t *testing.T) {
	for _, v := range allConversations() {
		for _, alg := range []ALG{ALGFTP, ALGTFTP} {
			r := newRig(t, 64)
			r.send(v.ask, Request{Zone: 1, Commit: true, ALG: alg})
			for range 2 {
				r.send(v.answer, look)
				r.send(v.ask, look)
			}
			udp := strings.HasPrefix(v.name, "udp") || strings.HasPrefix(v.name, "tftp")
			if expecting := r.tr.head.expecting.Load() != 0; expecting != (alg == ALGTFTP && udp) {
				t.Errorf("%s with gateway %d: an expectation exists: %t", v.name, alg, expecting)
			}
		}
	}
}
