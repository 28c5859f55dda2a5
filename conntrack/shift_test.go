// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weft/packet"
)

func saying(src, dst string, flags uint8, seq, ack uint32, text string, sack ...uint32) []byte {
	a, b := end(src), end(dst)
	ip, n, kind := network(layers.IPProtocolTCP, a.Addr(), b.Addr())
	tcp := &layers.TCP{SrcPort: layers.TCPPort(a.Port()), DstPort: layers.TCPPort(b.Port()), Seq: seq, Ack: ack, Window: 60000,
		SYN: flags&tcpSyn != 0, ACK: flags&tcpAck != 0, PSH: text != ""}
	if len(sack) > 0 {
		var data []byte
		for _, v := range sack {
			data = binary.BigEndian.AppendUint32(data, v)
		}
		tcp.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindSACK, OptionLength: uint8(2 + len(data)), OptionData: data}}
	}
	tcp.SetNetworkLayerForChecksum(n)
	return serialize(ethernet(kind), ip, tcp, gopacket.Payload(text))
}

// heard returns what the receiver of a TCP frame reads. It fails the test if a length or a checksum is wrong.
func heard(t *testing.T, frame []byte) (src, dst string, seq, ack uint32, text string, sack []uint32) {
	t.Helper()
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	tcp, _ := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
	if tcp == nil {
		t.Fatalf("the frame is not TCP: %v", p)
	}
	sum := uint16(0)
	if ip, ok := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4); ok {
		if packet.Checksum(ip.Contents) != 0 || int(ip.Length) != len(frame)-14 {
			t.Fatalf("invalid IPv4 header: %v", ip)
		}
		sum = packet.SumIPv4(binary.BigEndian.Uint32(ip.SrcIP), binary.BigEndian.Uint32(ip.DstIP), 6, len(ip.Payload))
	} else {
		ip := p.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
		if int(ip.Length) != len(frame)-54 {
			t.Fatalf("invalid IPv6 header: %v", ip)
		}
		sum = packet.SumIPv6(ip.SrcIP, ip.DstIP, 6, len(ip.Payload))
	}
	if ^packet.AddSums(sum, packet.Sum(append(bytes.Clone(tcp.Contents), tcp.Payload...))) != 0 {
		t.Fatalf("wrong TCP checksum of segment %q", tcp.Payload)
	}
	for _, o := range tcp.Options {
		if o.OptionType == layers.TCPOptionKindSACK {
			for at := 0; at+4 <= len(o.OptionData); at += 4 {
				sack = append(sack, binary.BigEndian.Uint32(o.OptionData[at:]))
			}
		}
	}
	n := p.NetworkLayer().NetworkFlow()
	ends := [2]string{n.Src().String(), n.Dst().String()}
	for i, port := range []layers.TCPPort{tcp.SrcPort, tcp.DstPort} {
		if strings.Contains(ends[i], ":") {
			ends[i] = "[" + ends[i] + "]"
		}
		ends[i] += fmt.Sprintf(":%d", uint16(port))
	}
	return ends[0], ends[1], tcp.Seq, tcp.Ack, string(tcp.Payload), sack
}

var back = Request{Zone: 1, NAT: NAT{Kind: NATBare}}

// control opens an FTP control connection through NAT. The client's data begin at
// sequence number 101, the server's at 501. control returns the client's translated
// address.
func (r *rig) control(client, front, server string, req Request) (outside string) {
	r.t.Helper()
	_, out := r.send(saying(client, front, tcpSyn, 100, 0, ""), req)
	outside, _, _, _, _, _ = heard(r.t.(*testing.T), out)
	r.send(saying(server, outside, tcpSyn|tcpAck, 500, 101, ""), back)
	r.send(saying(client, front, tcpAck, 101, 501, ""), back)
	return outside
}

// An announcement on a translated control connection is rewritten, and its connection
// is translated, too.
func TestFTPThroughNAT(t *testing.T) {
	for _, v := range []struct {
		client, front, server           string
		kind                            NATKind
		dst                             string
		reply                           bool
		text, want                      string
		src, announced, rewritten, goal string // the data connection's source and destination before and after NAT
	}{
		{"10.0.0.1:1000", "10.0.1.1:21", "10.0.1.1:21", NATSrc, "192.0.2.100", false,
			"PORT 10,0,0,1,19,137\r\n", "PORT 192,0,2,100,19,137\r\n", "10.0.1.1:20", "192.0.2.100:5001", "10.0.1.1:20", "10.0.0.1:5001"},
		{"10.0.0.1:1000", "10.0.1.1:21", "10.0.1.1:21", NATSrc, "192.0.2.100", false,
			"EPRT |1|10.0.0.1|5001|\r\nNOOP\r\n", "EPRT |1|192.0.2.100|5001|\r\nNOOP\r\n", "10.0.1.1:20", "192.0.2.100:5001", "10.0.1.1:20", "10.0.0.1:5001"},
		{"10.0.0.1:1000", "10.0.1.1:21", "10.0.1.1:21", NATSrc, "192.0.2.100", false,
			"PORT 10,0,0,2,19,137\r\n", "PORT 10,0,0,2,19,137\r\n", "", "", "", ""}, // announces the address of a third host
		{"[fd00::1]:1000", "[fd01::1]:21", "[fd01::1]:21", NATSrc, "2001:db8::9", false,
			"EPRT |2|fd00::1|5001|\r\n", "EPRT |2|2001:db8::9|5001|\r\n", "[fd01::1]:20", "[2001:db8::9]:5001", "[fd01::1]:20", "[fd00::1]:5001"},
		{"10.0.0.1:1000", "192.0.2.100:21", "10.0.1.1:21", NATDst, "10.0.1.1", true,
			"227 Passive (10,0,1,1,19,137).\r\n", "227 Passive (192,0,2,100,19,137).\r\n", "10.0.0.1:999", "192.0.2.100:5001", "10.0.0.1:999", "10.0.1.1:5001"},
		{"10.0.0.1:1000", "192.0.2.100:21", "10.0.1.1:21", NATDst, "10.0.1.1", true,
			"229 Extended (|||5001|)\r\n", "229 Extended (|||5001|)\r\n", "10.0.0.1:999", "192.0.2.100:5001", "10.0.0.1:999", "10.0.1.1:5001"},
		{"10.0.0.1:1000", "10.0.1.1:21", "10.0.1.1:21", NATSrc, "192.0.2.100", true,
			"227 Passive (10,0,1,1,19,137).\r\n", "227 Passive (10,0,1,1,19,137).\r\n", "10.0.0.1:999", "10.0.1.1:5001", "192.0.2.100:999", "10.0.1.1:5001"},
	} {
		r := newRig(t, 64)
		req := natTo(v.kind, v.dst, v.dst)
		req.Zone, req.ALG = 1, ALGFTP
		outside := r.control(v.client, v.front, v.server, req)
		var out []byte
		if v.reply {
			_, out = r.send(saying(v.server, outside, tcpAck, 501, 101, v.text), back)
		} else {
			_, out = r.send(saying(v.client, v.front, tcpAck, 101, 501, v.text), back)
		}
		if _, _, _, _, text, _ := heard(t, out); text != v.want {
			t.Errorf("%q became %q", v.text, text)
		}
		// The receiver acknowledges the rewritten text. The sender must get an
		// acknowledgement of the text that it sent.
		grown := uint32(len(v.want))
		if v.reply {
			_, out = r.send(saying(v.client, v.front, tcpAck, 101, 501+grown, ""), back)
		} else {
			_, out = r.send(saying(v.server, outside, tcpAck, 501, 101+grown, ""), back)
		}
		if _, _, _, ack, _, _ := heard(t, out); ack%100 != 1+uint32(len(v.text)) {
			t.Errorf("%q: the announcer gets acknowledgement %d", v.text, ack)
		}
		if v.src == "" {
			r.expect(saying(v.server, "192.0.2.100:5001", tcpSyn, 1, 0, ""), back, Tracked|New)
			continue
		}
		data := Request{Zone: 1, Commit: true, NAT: NAT{Kind: NATBare}}
		m, out := r.send(saying(v.src, v.announced, tcpSyn, 1, 0, ""), data)
		if src, dst, _, _, _, _ := heard(t, out); m.State&^(SNAT|DNAT) != Tracked|New|Related || src != v.rewritten || dst != v.goal {
			t.Errorf("%q: data connection has ct_state %s, from %s to %s", v.text, stateText(m.State), src, dst)
		}
		_, out = r.send(saying(v.goal, v.rewritten, tcpSyn|tcpAck, 9, 2, ""), back)
		if src, dst, _, _, _, _ := heard(t, out); src != v.announced || dst != v.src {
			t.Errorf("%q: data connection's answer goes from %s to %s", v.text, src, dst)
		}
		check(t, r.tr.Table)
	}
}

// Two clients behind one address announce the same port, and each gets its own data
// connection.
func TestFTPSamePort(t *testing.T) {
	r := newRig(t, 64)
	req := natTo(NATSrc, "192.0.2.100", "192.0.2.100")
	req.Zone, req.ALG = 1, ALGFTP
	for i, client := range []string{"10.0.0.1", "10.0.0.2"} {
		r.control(client+":1000", "10.0.1.1:21", "10.0.1.1:21", req)
		_, out := r.send(saying(client+":1000", "10.0.1.1:21", tcpAck, 101, 501, "PORT "+strings.ReplaceAll(client, ".", ",")+",19,137\r\n"), back)
		if _, _, _, _, text, _ := heard(t, out); text != fmt.Sprintf("PORT 192,0,2,100,19,%d\r\n", 137+i) {
			t.Fatal(text)
		}
	}
	for i, client := range []string{"10.0.0.1", "10.0.0.2"} {
		_, out := r.send(saying("10.0.1.1:20", fmt.Sprintf("192.0.2.100:%d", 5001+i), tcpSyn, 1, 0, ""), Request{Zone: 1, Commit: true, NAT: NAT{Kind: NATBare}})
		if _, dst, _, _, _, _ := heard(t, out); dst != client+":5001" {
			t.Fatal(dst)
		}
	}
}

// slowLine is a line of FTP text: "sent" by the client, and "passed" as the server must receive it.
type slowLine struct{ sent, passed string }

// slowShift is the reference: it records all lines that the client has sent. The field "first" is the
// sequence number of the first line.
type slowShift struct {
	first uint32
	lines []slowLine
}

// streams returns the bytes of all lines, as they were sent and as they must be
// received.
func (s *slowShift) streams() (sent, passed string) {
	for _, l := range s.lines {
		sent += l.sent
		passed += l.passed
	}
	return sent, passed
}

// sentOf returns how many sent bytes correspond to n received bytes. n ends at the end
// of a line.
func (s *slowShift) sentOf(n int) (sent int) {
	for _, l := range s.lines {
		if n < len(l.passed) {
			break
		}
		n -= len(l.passed)
		sent += len(l.sent)
	}
	return sent + n
}

func FuzzShift(f *testing.F) {
	for seed := range int64(4) {
		f.Add(seed)
	}
	f.Fuzz(tryShift)
}

func TestShift(t *testing.T) {
	for seed := range seeds(150) {
		tryShift(t, seed)
	}
}

// tryShift sends FTP lines through the tracker, over a network that loses and repeats
// segments. The server must receive the stream that slowShift computes. The client must
// receive acknowledgements of its own bytes.
func tryShift(t *testing.T, seed int64) {
	rng := rand.New(rand.NewPCG(uint64(seed), 5))
	r := newRig(t, 64)
	nat := []string{"192.0.2.100", "1.2.3.4"}[rng.IntN(2)]
	req := natTo(NATSrc, nat, nat)
	req.Zone, req.ALG = 1, ALGFTP
	const client, server = "10.11.12.13:1000", "10.0.1.1:21"
	isn := -uint32(rng.IntN(600)) // sequence numbers wrap around
	slow := slowShift{first: isn + 1}
	_, out := r.send(saying(client, server, tcpSyn, isn, 0, ""), req)
	outside, _, _, _, _, _ := heard(t, out)
	r.send(saying(server, outside, tcpSyn|tcpAck, 500, isn+1, ""), back)

	var bounds []int // boundaries of the lines as sent
	got, acked, sentTo := map[int]byte{}, 0, 0
	have := 0
	for step := range 400 {
		r.now += second / 10
		if len(slow.lines) < 40 && rng.IntN(3) == 0 {
			l := slowLine{"NOOP\r\n", "NOOP\r\n"}
			// The client announces only when all its lines are acknowledged, as real clients do.
			if sent, _ := slow.streams(); acked == len(sent) && rng.IntN(2) == 0 {
				p := 100 + rng.IntN(100)
				l.sent = fmt.Sprintf("PORT 10,11,12,13,%d,7\r\n", p)
				l.passed = fmt.Sprintf("PORT %s,%d,7\r\n", strings.ReplaceAll(nat, ".", ","), p)
				if p%2 == 0 {
					l.sent = fmt.Sprintf("EPRT |1|10.11.12.13|%d7|\r\n", p)
					l.passed = fmt.Sprintf("EPRT |1|%s|%d7|\r\n", nat, p)
				}
			}
			sent, _ := slow.streams()
			bounds = append(bounds, len(sent))
			slow.lines = append(slow.lines, l)
		}
		sent, passed := slow.streams()
		all := append(append([]int(nil), bounds...), len(sent))
		// The client sends again from an unacknowledged line on. A new line has its own segment.
		from := all[rng.IntN(len(all))]
		if step > 300 || from < acked {
			from = acked
		}
		to := from
		for _, b := range all {
			if b > from && (to == from || b <= sentTo && rng.IntN(2) == 0 && b-from < 100) {
				to = b
			}
		}
		if from > sentTo {
			continue
		}
		if from < to && rng.IntN(8) != 0 { // one in eight segments is lost
			m, out := r.send(saying(client, server, tcpAck, slow.first+uint32(from), 501, sent[from:to]), back)
			if m.State&Invalid != 0 {
				t.Fatalf("seed %d, step %d: segment %q is invalid", seed, step, sent[from:to])
			}
			sentTo = max(sentTo, to)
			if m.Drop == packet.DropNone && rng.IntN(8) != 0 {
				_, _, seq, _, text, _ := heard(t, out)
				for i := range len(text) {
					at := int(int32(seq - slow.first + uint32(i)))
					if at < 0 || at >= len(passed) || passed[at] != text[i] {
						t.Fatalf("seed %d, step %d: %q became %q at %d", seed, step, sent[from:to], text, at)
					}
					got[at] = text[i]
				}
			}
		} else if from < to {
			sentTo = max(sentTo, to)
		}
		for _, ok := got[have]; ok; _, ok = got[have] {
			have++
		}
		left := have + 1
		for left < len(passed) && got[left] == 0 {
			left++
		}
		right := left
		for right < len(passed) && got[right] != 0 {
			right++
		}
		if rng.IntN(2) == 0 {
			continue
		}
		m, out := r.send(saying(server, outside, tcpAck, 501, slow.first+uint32(have), "", slow.first+uint32(left), slow.first+uint32(right)), back)
		_, _, _, ack, _, sack := heard(t, out)
		if want := slow.sentOf(have); m.State&Invalid != 0 || m.Drop != packet.DropNone || ack != slow.first+uint32(want) {
			t.Fatalf("seed %d, step %d: ct_state %s, acknowledgement %d, want %d", seed, step, stateText(m.State), ack-slow.first, want)
		}
		if right > left && (sack[0] != slow.first+uint32(slow.sentOf(left)) || sack[1] != slow.first+uint32(slow.sentOf(right))) {
			t.Fatalf("seed %d, step %d: block %d to %d became %d to %d", seed, step, left, right, sack[0]-slow.first, sack[1]-slow.first)
		}
		acked = int(ack - slow.first)
	}
	if _, passed := slow.streams(); have != len(passed) {
		t.Fatalf("seed %d: the server has %d of %d bytes", seed, have, len(passed))
	}
}
