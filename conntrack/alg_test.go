// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft/packet"
)

func (r *rig) tell(src, dst string, seq, ack uint32, text string, state uint8) {
	r.t.Helper()
	f := tcpFrame(src, dst, tcpSegment{flags: "AP", seq: seq, ack: ack, window: 60000, scale: -1, payload: len(text)})
	copy(f[len(f)-len(text):], text)
	r.expect(f, look, state)
}

// An announced FTP data connection is related to its control connection and inherits
// its mark. Other connections are not related.
func TestFTP(t *testing.T) {
	for _, v := range []struct {
		client, server, text string
		reply                bool
		from, to             string
		related              bool
	}{
		{"10.0.0.1:1000", "10.0.1.1:21", "PORT 10,0,0,1,19,137\r\n", false, "10.0.1.1:20", "10.0.0.1:5001", true},
		{"10.0.0.1:1000", "10.0.1.1:21", "PORT 10,0,0,2,19,137\r\n", false, "10.0.1.1:20", "10.0.0.2:5001", false}, // it announces the address of a third host, so it is ignored
		{"10.0.0.1:1000", "10.0.1.1:21", "eprt |1|10.0.0.1|5001|\r\n", false, "10.0.1.1:20", "10.0.0.1:5001", true},
		{"10.0.0.1:1000", "10.0.1.1:21", "227 Entering Passive Mode (10,0,1,1,19,137).\r\n", true, "10.0.0.1:999", "10.0.1.1:5001", true},
		{"10.0.0.1:1000", "10.0.1.1:21", "227 Entering Passive Mode (10,0,1,1,19,137).\r\n", false, "10.0.0.1:999", "10.0.1.1:5001", false},
		{"10.0.0.1:1000", "10.0.1.1:21", "229 Entering Extended Passive Mode (|||5001|)\r\n", true, "10.0.0.1:999", "10.0.1.1:5001", true},
		{"[fd00::1]:1000", "[fd01::1]:21", "229 Entering Extended Passive Mode (|||5001|)\r\n", true, "[fd00::1]:999", "[fd01::1]:5001", true},
		{"[fd00::1]:1000", "[fd01::1]:21", "EPRT |2|fd00::1|5001|\r\n", false, "[fd01::1]:20", "[fd00::1]:5001", true},
		{"10.0.0.1:1000", "10.0.1.1:21", "229 Entering Extended Passive Mode (|||5001|)\r\n", true, "10.0.0.1:999", "10.0.1.1:5002", false},
	} {
		r := newRig(t, 64)
		req := commit
		req.ALG, req.Mark, req.MarkMask = ALGFTP, 6, ^uint32(0)
		req.Label, req.LabelMask = [2]uint64{7, 8}, [2]uint64{0xff, 0xff}
		r.expect(tcpFrame(v.client, v.server, tcpSegment{flags: "S", seq: 100, window: 60000, scale: -1}), req, Tracked|New)
		r.expect(tcpFrame(v.server, v.client, tcpSegment{flags: "SA", seq: 500, ack: 101, window: 60000, scale: -1}), look, Tracked|Established|Reply)
		r.expect(tcpFrame(v.client, v.server, tcpSegment{flags: "A", seq: 101, ack: 501, window: 60000, scale: -1}), look, Tracked|Established)
		if v.reply {
			r.tell(v.server, v.client, 501, 101, v.text, Tracked|Established|Reply)
		} else {
			r.tell(v.client, v.server, 101, 501, v.text, Tracked|Established)
		}
		syn := tcpFrame(v.from, v.to, tcpSegment{flags: "S", seq: 1, window: 60000, scale: -1})
		want := uint8(Tracked | New)
		if v.related {
			want |= Related
		}
		// The data connection has the mark and label of its parent, even before its commit.
		inherited := [2]uint64{7, 8}
		m, _ := r.send(syn, look)
		if m.State != want || v.related != (m.Mark == 6) || v.related != (m.Label == inherited) {
			t.Errorf("%s: first frame is %s with mark %d and label %v", v.text, stateText(m.State), m.Mark, m.Label)
		}
		more := commit
		more.Label, more.LabelMask = [2]uint64{0x1000, 0}, [2]uint64{0xf000, 0}
		m, _ = r.send(syn, more)
		inherited[0] |= 0x1000
		if m.State != want || v.related != (m.Mark == 6) || v.related != (m.Label == inherited) || v.related != (m.Orig.DstPort == 21) {
			t.Errorf("%s: data connection is %s with mark %d, label %v and original port %d", v.text, stateText(m.State), m.Mark, m.Label, m.Orig.DstPort)
		}
		want = want&^New | Established | Reply
		m, _ = r.send(tcpFrame(v.to, v.from, tcpSegment{flags: "SA", seq: 9, ack: 2, window: 60000, scale: -1}), look)
		if m.State != want || v.related != (m.Orig.DstPort == 21) {
			t.Errorf("%s: answer of the data connection is %s with original port %d", v.text, stateText(m.State), m.Orig.DstPort)
		}
		check(t, r.tr.Table)
	}
}

// A TFTP server answers from another port, in a connection related to the request's.
func TestTFTP(t *testing.T) {
	r := newRig(t, 64)
	req := commit
	req.ALG = ALGTFTP
	r.expect(udpFrame("10.0.0.1:3000", "10.0.1.1:69", 20), req, Tracked|New)
	answer := udpFrame("10.0.1.1:4444", "10.0.0.1:3000", 20)
	r.expect(udpFrame("10.0.1.2:4444", "10.0.0.1:3000", 20), look, Tracked|New)
	r.expect(answer, commit, Tracked|New|Related)
	r.expect(udpFrame("10.0.0.1:3000", "10.0.1.1:4444", 20), look, Tracked|Established|Related|Reply)
	r.now += 200 * second
	r.expect(udpFrame("10.0.1.1:5555", "10.0.0.1:3000", 20), look, Tracked|New)
}

// Two guests are behind one translated address. The second one sends a TFTP request from the port that a
// transfer of the first one uses, to another port of the same server. Its request is dropped, and the data of
// the transfer still go to the first guest.
func TestTFTPSamePort(t *testing.T) {
	r := newRig(t, 64)
	req := natTo(NATSrc, "192.0.2.100", "192.0.2.100")
	req.Zone, req.ALG = 1, ALGTFTP
	r.port = 1
	if m, _ := r.send(udpFrame("10.0.0.1:3000", "10.0.1.1:69", 20), req); m.Drop != packet.DropNone {
		t.Fatal(m.Drop)
	}
	r.port = 2
	for range 2 {
		if m, _ := r.send(udpFrame("10.0.0.2:3000", "10.0.1.1:70", 20), req); m.Drop != packet.DropGateway {
			t.Fatalf("the later request has drop %v", m.Drop)
		}
	}
	r.port = 3
	data := Request{Zone: 1, Commit: true, NAT: NAT{Kind: NATBare}}
	out := r.expect(udpFrame("10.0.1.1:4444", "192.0.2.100:3000", 20), data, Tracked|New|Related|DNAT)
	if dst := net.IP(out[30:34]).String(); dst != "10.0.0.1" {
		t.Errorf("the data go to %s", dst)
	}
	r.port = 2 // the first guest's transfer has begun, so the tuple is free
	if m, _ := r.send(udpFrame("10.0.0.2:3000", "10.0.1.1:70", 20), req); m.Drop != packet.DropNone {
		t.Errorf("the request after that has drop %v", m.Drop)
	}
	check(t, r.tr.Table)
}

func FuzzReadFTP(f *testing.F) {
	for _, text := range []string{"PORT 1,2,3,4,5,6\r\n", "EPRT |1|1.2.3.4|5|\r\n", "EPRT |2|fd00::1:2|5|\r\n", "227 =1,2,3,4,5,6\r\n", "229 x (|||5|)\r\n"} {
		f.Add([]byte(text), false)
		f.Add([]byte(text), true)
	}
	f.Fuzz(func(t *testing.T, line []byte, reply bool) {
		a, ok := readFTP(line, reply)
		if !ok {
			return
		}
		if a.start > a.end || a.end > len(line) {
			t.Fatal("the announcement's bounds lie outside the line")
		}
		// Rewriting an FTP line with its own address and port keeps its meaning.
		r := rewriting{announced: a, port: a.port}
		address := [2]uint64{}
		if a.address.IsValid() {
			address = addrWords(a.address)
		}
		again, ok := readFTP(slices.Concat(line[:a.start], r.text(nil, address), line[a.end:]), reply)
		if !ok || again.address != a.address || again.port != a.port || again.between != a.between || again.start != a.start {
			t.Fatalf("%q: read as %+v, and as %+v once rewritten", line, a, again)
		}
	})
}

// FuzzReadAddress compares readAddress with netip's parser, without zones and IPv4
// inside IPv6.
func FuzzReadAddress(f *testing.F) {
	for _, text := range []string{"::", "::1", "1::", "1:2:3:4:5:6:7:8", "1::8", "fd00::1:2", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1:::2", "1::2::3", "1:", ":1", "12345::",
		"1.2.3.4", "1.2.3", "1.2.3.4.", "256.1.1.1", "", ":", "Fe80::aBcD", "1:2:3:4:5:6:7:8:9", "g::"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := readAddress([]byte(text))
		want, err := netip.ParseAddr(text)
		known := err == nil && want.Zone() == "" && !(want.Is6() && strings.Contains(text, "."))
		if ok != known || ok && got != want {
			t.Fatalf("%q: readAddress returns %v, %t; netip returns %v, %v", text, got, ok, want, err)
		}
	})
}
