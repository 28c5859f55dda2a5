// SPDX-License-Identifier: Apache-2.0

package packet_test

import (
	"bytes"
	"encoding/binary"
	"math/rand"
	"testing"

	"weft/flowtable"
	"weft/packet"
)

func received(t *testing.T, frame []byte) *packet.Frame {
	t.Helper()
	var b packet.Batch
	f, h := b.Next()
	copy(h[:], frame)
	b.Commit(f, len(frame))
	var k flowtable.Key
	if reason := flowtable.Extract(&b, f, &k); reason != packet.DropNone {
		t.Fatal(reason)
	}
	return f
}

// SetIPv4Ends makes the same frame as four rewrites of one address or port each.
func TestSetIPv4Ends(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	for range 2000 {
		proto, size := uint8(packet.ProtoTCP), 20
		if rng.Intn(2) == 0 {
			proto, size = packet.ProtoUDP, 8
		}
		frame := make([]byte, 34+size+rng.Intn(20))
		rng.Read(frame[26:])
		packet.Ethernet(frame).SetType(packet.EtherTypeIPv4)
		ip := packet.IPv4(frame[14:])
		ip[0], ip[8], ip[9] = 0x45, 64, proto
		ip.SetTotalLen(len(frame) - 14)
		ip.SetChecksum(packet.Checksum(ip[:20]))
		if proto == packet.ProtoTCP {
			frame[46] = 5 << 4
		} else {
			packet.UDP(frame[34:]).SetLen(len(frame) - 34)
			if rng.Intn(4) == 0 {
				packet.UDP(frame[34:]).SetChecksum(0)
			}
		}
		addresses, ports := rng.Uint64(), rng.Uint32()
		if rng.Intn(3) == 0 {
			addresses = binary.BigEndian.Uint64(ip[12:])
		}
		var out [2][]byte
		for way := range out {
			f := received(t, frame)
			if way == 0 {
				if !f.SetIPv4Ends(addresses, ports) {
					t.Fatal("refused")
				}
			} else {
				f.SetIPv4Src(uint32(addresses >> 32))
				f.SetIPv4Dst(uint32(addresses))
				f.SetTpSrc(uint16(ports >> 16))
				f.SetTpDst(uint16(ports))
			}
			out[way] = append([]byte(nil), f.Header()...)
		}
		if !bytes.Equal(out[0], out[1]) {
			t.Fatalf("SetIPv4Ends and single rewrites differ:\n%x\n%x", out[0], out[1])
		}
	}
}

// SetIPv4Ends writes a UDP checksum that is computed as 0 as 0xffff. It changes nothing if the addresses and
// ports are the same as before. It updates an IPv4 checksum of 0xffff correctly, although 0xffff and 0
// stand for the same sum.
func TestSetIPv4EndsAtTheEnds(t *testing.T) {
	rng := rand.New(rand.NewSource(2))
	for range 500 {
		frame := make([]byte, 34+8+2*rng.Intn(5))
		rng.Read(frame[26:])
		packet.Ethernet(frame).SetType(packet.EtherTypeIPv4)
		ip, u := packet.IPv4(frame[14:34]), packet.UDP(frame[34:])
		ip[0], ip[8], ip[9] = 0x45, 64, packet.ProtoUDP
		ip.SetTotalLen(len(frame) - 14)
		u.SetLen(len(u))
		sums := func(ip packet.IPv4, u packet.UDP) (uint16, uint16) {
			return packet.Sum(ip), packet.AddSums(packet.Sum(u), packet.SumIPv4(ip.Src(), ip.Dst(), packet.ProtoUDP, len(u)))
		}
		// The identification is chosen so that the IPv4 checksum is 0.
		ip.SetChecksum(0)
		ip.SetID(0)
		if rng.Intn(2) == 0 {
			ip.SetID(packet.Checksum(ip))
			ip.SetChecksum(0xffff)
		} else {
			ip.SetChecksum(packet.Checksum(ip))
		}
		u.SetChecksum(0)
		_, sum := sums(ip, u)
		if u.SetChecksum(^sum); sum == 0xffff {
			u.SetChecksum(0xffff)
		}

		addresses, ports := binary.BigEndian.Uint64(ip[12:]), binary.BigEndian.Uint32(u)
		toZero := rng.Intn(2) == 0
		if toZero { // a destination port for which the UDP checksum becomes 0
			addresses = rng.Uint64()
			to := bytes.Clone(frame)
			binary.BigEndian.PutUint64(to[26:], addresses)
			binary.BigEndian.PutUint32(to[34:], ports&^0xffff)
			packet.UDP(to[34:]).SetChecksum(0)
			_, sum := sums(to[14:34], to[34:])
			ports = ports&^0xffff | uint32(^sum)
		}
		f := received(t, frame)
		if !f.SetIPv4Ends(addresses, ports) {
			t.Fatal("refused")
		}
		got := f.Header()
		if toZero && packet.UDP(got[34:]).Checksum() != 0xffff {
			t.Errorf("a sum of 0 is written as %#x", packet.UDP(got[34:]).Checksum())
		}
		if !toZero && !(bytes.Equal(got[12:24], frame[12:24]) && bytes.Equal(got[26:], frame[26:])) {
			t.Errorf("other bytes changed:\n%x\nbefore\n%x", got, frame)
		}
		if binary.BigEndian.Uint64(got[26:]) != addresses || binary.BigEndian.Uint32(got[34:]) != ports {
			t.Errorf("addresses or ports of %x are not those set", got)
		}
		if a, z := sums(got[14:34], got[34:]); a != 0xffff || z != 0xffff {
			t.Fatalf("the sums over IP and UDP are %#x and %#x, want 0xffff; frame %x, before\n%x", a, z, got, frame)
		}
	}
}
