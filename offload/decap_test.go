// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"encoding/binary"
	"net/netip"
	"os"
	"testing"

	"weft/flowtable"
	"weft/packet"
	"weft/tunnel"
)

// The programs of an uplink treat random frames from tunnels as the worker does.
func TestDecapsulationAgainstWorker(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	table, err := NewUplink()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	filter, ingress, err := table.Load(toSocket, dropped)
	if err != nil {
		t.Fatal(err)
	}
	defer filter.Close()
	defer ingress.Close()
	w := &twin{T: t, table: table, lookup: filter, terminations: tunnel.NewTerminations(),
		hitsOf: map[string]int{"IPv6": 0, "ICMP": 0, "padding": 0, "congestion": 0, "connections": 0, "translations": 0, "translations over IPv6": 0}}
	w.run()
}

var tunnelKinds = []tunnel.Kind{tunnel.KindVXLAN, tunnel.KindVXLAN, tunnel.KindGBP, tunnel.KindGPE, tunnel.KindGeneve}

// changeEnds replaces the tunnels of the test by new random ones.
func (w *twin) changeEnds() {
	w.ends = map[uint32]tunnel.Termination{}
	any6 := netip.MustParseAddr("fd00::1").As16()
	for index := range uint32(16) {
		w.terminations.Clear(index)
		if w.rng.Intn(6) == 0 {
			continue
		}
		kind := tunnelKinds[w.rng.Intn(len(tunnelKinds))]
		e := tunnel.Termination{Port: 100 + index, VNI: uint32(w.rng.Intn(2)), UDPPort: kind.Port(), Kind: kind}
		if w.rng.Intn(4) == 0 {
			e.VNI = tunnel.AnyVNI
		}
		if kind == tunnel.KindVXLAN {
			e.Extensions = uint8(w.rng.Intn(4))
		}
		if w.rng.Intn(3) > 0 {
			e.Remote = netip.AddrFrom4([4]byte{172, 16, 0, byte(w.rng.Intn(2))}).As16()
		}
		if w.rng.Intn(6) == 0 {
			e.Local = netip.AddrFrom4([4]byte{172, 16, 1, byte(w.rng.Intn(2))}).As16()
		}
		if w.rng.Intn(20) == 0 {
			e.Remote = any6
		}
		w.ends[index] = e
		w.terminations.Set(index, &e)
	}
	w.table.SetEnds(NewEnds(w.ends))
}

// drawOuter puts random outer headers before a frame, mostly valid ones.
func (w *twin) drawOuter(inner []byte) []byte {
	r := w.rng
	f := make([]byte, outerLen, outerLen+len(inner)+64)
	copy(f, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0, 0x45, byte(r.Intn(4) * r.Intn(2)), 0, 0, 0, 0, 0, 0, byte(1 + r.Intn(64)), packet.ProtoUDP, 0, 0,
		172, 16, 0, byte(r.Intn(2)), 172, 16, 1, byte(r.Intn(2)), 0xc0, byte(r.Intn(256))})
	kind := tunnelKinds[r.Intn(len(tunnelKinds))]
	binary.BigEndian.PutUint16(f[headerUDP+2:], kind.Port())
	header := kind.PlainHeader()
	switch r.Intn(12) {
	case 0:
		header ^= 1 << r.Intn(64)
	case 1: // options
		if n := r.Intn(3); kind == tunnel.KindGeneve {
			header |= uint64(n) << 56
			f = append(f, make([]byte, 4*n)...)
		}
	}
	binary.BigEndian.PutUint64(f[headerUDP+packet.UDPLen:], header|uint64(r.Intn(2))<<8)
	f = append(f, inner...)
	total := len(f) - ethernetLen
	switch r.Intn(12) {
	case 0: // an IP length that is wrong by at most 4 bytes
		total += r.Intn(9) - 4
	case 1:
		f = append(f, make([]byte, r.Intn(20))...)
	}
	binary.BigEndian.PutUint16(f[headerTotal:], uint16(total))
	binary.BigEndian.PutUint16(f[headerUDP+4:], uint16(total-packet.IPv4Len-r.Intn(2)*r.Intn(2)*r.Intn(2)*r.Intn(8)))
	switch r.Intn(16) {
	case 0:
		f[headerUDP+6], f[headerUDP+7] = byte(r.Intn(256)), byte(r.Intn(256))
	case 1: // unfinished
		binary.BigEndian.PutUint16(f[headerUDP+6:], pseudoSum(f))
	}
	f[headerFlags] = byte(r.Intn(2) * 0x40)
	if r.Intn(16) == 0 { // any byte is changed
		f[r.Intn(outerLen)] = byte(r.Intn(256))
	}
	packet.IPv4(f[ethernetLen:headerUDP]).SetChecksum(^packet.Sum(f[ethernetLen:headerUDP]))
	if r.Intn(32) == 0 {
		f[r.Intn(outerLen)] ^= 1 << r.Intn(8)
	}
	if r.Intn(32) == 0 { // truncated
		f = f[:15+r.Intn(len(f)-15)]
	}
	return f
}

// pseudoSum returns the sum of the pseudo header of the outer UDP datagram.
func pseudoSum(f []byte) uint16 {
	return packet.SumIPv4(binary.BigEndian.Uint32(f[26:]), binary.BigEndian.Uint32(f[30:]), packet.ProtoUDP, int(binary.BigEndian.Uint16(f[headerUDP+4:])))
}

// knowsOuter reports whether the programs must accept the outer headers of a frame with key k, by the
// package's documentation.
func (w *twin) knowsOuter(frame []byte, k *flowtable.Key) bool {
	ip := packet.IPv4(frame[ethernetLen:])
	if binary.BigEndian.Uint16(frame[12:]) != packet.EtherTypeIPv4 || ip.HeaderLen() != packet.IPv4Len || packet.UDP(frame[headerUDP:]).Checksum() == pseudoSum(frame) {
		return false
	}
	header := binary.BigEndian.Uint64(frame[headerUDP+packet.UDPLen:]) &^ (0xffffff << 8)
	ecn, inner := ip.TOS()&3, k[flowtable.WIP]>>flowtable.TOSShift&3
	return header == w.ends[k.InPort()-100].Kind.PlainHeader() && !(ecn == 1 && inner == 1 && w.innerECN(frame) == 2)
}

// innerECN returns the ECN field of the inner header before Decapsulate changes it.
func (w *twin) innerECN(frame []byte) byte {
	if frame[outerLen+12] == 0x86 {
		return frame[outerLen+15] >> 4 & 3
	}
	return frame[outerLen+15] & 3
}
