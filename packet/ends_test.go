package packet_test

import (
	"bytes"
	"encoding/binary"
	"math/rand"
	"testing"

	"weft/flowtable"
	"weft/packet"
)

// Both ends at once make the same frame as one after the other.
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
			var b packet.Batch
			f, h := b.Next()
			copy(h[:], frame)
			b.Commit(f, len(frame))
			var k flowtable.Key
			if why := flowtable.Extract(&b, f, &k); why != packet.DropNone {
				t.Fatal(why)
			}
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
			t.Fatalf("%x\n%x", out[0], out[1])
		}
	}
}
