// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"math"

	"github.com/cilium/ebpf/asm"

	"weft/flowtable"
	"weft/packet"
	"weft/tunnel"
)

// This file has the parts of the programs that encapsulate frames into a tunnel. The control process
// writes the outer headers of each tunnel to the map "outers" (Outer). The filter completes them for a
// frame and writes them to the verdict. The ingress program inserts them into the frame.

// Encap is the tunnel to which a megaflow sends its frames.
type Encap struct {
	Template uint32 // index of the tunnel's template
	VNI      uint32
	Port     uint32 // port of the tunnel, which counts the frames; 0: none
}

// Outer is a tunnel's template (package tunnel) in the form that the filter reads. Two Outers with the
// same headers are equal (==).
type Outer struct {
	ports               uint64 // the field of row.ports with the output's port number, here the uplink's
	out                 uint32 // ifindex of the uplink's device
	longest             uint32 // length in bytes of the longest inner frame that fits the tunnel's MTU
	sum                 uint32 // sum over the IPv4 header without length and identification
	portBase, portRange uint32 // range of UDP source ports (tunnel.Template)
	random              uint16 // 1: the IPv4 identification is random, because the datagrams may be fragmented; 0: it is 0
	header              [outerLen]byte
}

// outerLen is the length of the outer headers in bytes: Ethernet, IPv4, UDP, tunnel header.
const outerLen = ethernetLen + packet.IPv4Len + packet.UDPLen + tunnel.HeaderLen

// Offsets in bytes of the fields of an Outer, and of the fields in its outer headers.
const (
	outerPorts     = 0
	outerOut       = 8
	outerLongest   = 12
	outerSum       = 16
	outerPortBase  = 20
	outerPortRange = 24
	outerRandom    = 28
	outerHeader    = 30
	outerBytes     = outerHeader + outerLen

	headerTOS      = ethernetLen + 1
	headerTotal    = ethernetLen + 2
	headerID       = ethernetLen + 4
	headerFlags    = ethernetLen + 6
	headerChecksum = ethernetLen + 10
	headerUDP      = ethernetLen + packet.IPv4Len
	headerVNI      = headerUDP + packet.UDPLen + 4
)

// longestInner is the length in bytes of the longest large frame whose outer length fields fit into 16 bits.
const longestInner = math.MaxUint16 - outerLen

// NewOuter returns the outer headers of template t, whose uplink is o. It returns false if the template
// is not ready, or if the programs cannot write its headers: for GRE, over IPv6, with a VLAN tag, with
// UDP checksums or with fields that are inherited from the inner frame.
func NewOuter(t *tunnel.Template, o Output) (Outer, bool) {
	if t.State != tunnel.TemplateReady || !t.Kind.HasPort() || t.IP != ethernetLen || t.Len != outerLen || t.Inherit != 0 || t.MTU < outerLen || t.PortRange == 0 ||
		packet.UDP(t.Header[headerUDP:]).Checksum() != 0 {
		return Outer{}, false
	}
	ip := packet.IPv4(t.Header[ethernetLen:headerUDP])
	v := Outer{ports: uint64(o.Port), out: uint32(o.Ifindex), longest: uint32(t.MTU - outerLen), sum: uint32(ip.Checksum()),
		portBase: uint32(t.PortBase), portRange: uint32(t.PortRange)}
	if ip.FlagsFrag() == 0 {
		v.random = 1
	}
	copy(v.header[:], t.Header[:outerLen])
	return v, true
}

// SetOuter sets the outer headers of a template, which is given by its index. It does nothing if no flow
// of the table uses the template. If o is nil, the frames of these flows go to the worker.
func (t *Table) SetOuter(template uint32, o *Outer) {
	use, used := t.tunnels[template]
	if !used {
		return
	}
	if use.ready = o != nil && t.outers.Put(template+1, *o) == nil; !use.ready {
		_ = t.outers.Delete(template + 1) // error ignored: the map may not have it
	}
	t.tunnels[template] = use
}

// encapsulate writes the outer headers to the verdict. Before, R9 is the length of the frame or of its
// longest segment; afterwards, R9 is the ifindex of the output. A frame goes to the worker if it is too
// long for the tunnel or keeps a VLAN tag. A frame without an IP header also goes to the worker, because
// the kernel cannot encapsulate it.
func encapsulate(m *maps) asm.Instructions {
	p := asm.Instructions{
		asm.StoreMem(asm.RFP, atIndex, asm.R1, asm.Word),
		asm.JGT.Imm(asm.R7, longestInner, toWorker),
		asm.LoadMem(asm.R1, asm.R0, actionRewrite, asm.Word), asm.And.Imm(asm.R1, rewritePop), asm.JNE.Imm(asm.R1, 0, "no tag"),
		asm.LoadMem(asm.R1, asm.R6, skbVLANPresent, asm.Word), asm.JNE.Imm(asm.R1, 0, toWorker),
		asm.LoadMem(asm.R1, asm.RFP, atKey+8*flowtable.WEthDst, asm.DWord).WithSymbol("no tag"), asm.And.Imm(asm.R1, 0xffff),
		asm.JEq.Imm(asm.R1, packet.EtherTypeIPv4, "tunnel"), asm.JNE.Imm(asm.R1, packet.EtherTypeIPv6, toWorker),
		asm.LoadMapPtr(asm.R1, m.outers.FD()).WithSymbol("tunnel"),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atIndex),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, toWorker),
		asm.LoadMem(asm.R1, asm.R0, outerLongest, asm.Word), asm.JGT.Reg(asm.R9, asm.R1, toWorker),
		asm.Mov.Reg(asm.R9, asm.R0),
		asm.LoadMem(asm.R1, asm.R9, outerHeader, asm.Half), asm.StoreMem(asm.R8, verdictOuter, asm.R1, asm.Half),
	}
	for at := int16(2); at < outerLen; at += 4 {
		p = append(p, asm.LoadMem(asm.R1, asm.R9, outerHeader+at, asm.Word), asm.StoreMem(asm.R8, verdictOuter+at, asm.R1, asm.Word))
	}
	p = append(p, hashFlow()...)
	p = append(p,
		asm.LoadMem(asm.R2, asm.R9, outerPortRange, asm.Word), asm.Mul.Reg(asm.R1, asm.R2), asm.RSh.Imm(asm.R1, 32),
		asm.LoadMem(asm.R2, asm.R9, outerPortBase, asm.Word), asm.Add.Reg(asm.R1, asm.R2))
	p = append(p, storeHeader(headerUDP, asm.R1)...)
	p = append(p,
		asm.Mov.Imm(asm.R0, 0),
		asm.LoadMem(asm.R1, asm.R9, outerRandom, asm.Half), asm.JEq.Imm(asm.R1, 0, "id"),
		asm.FnGetPrandomU32.Call(), asm.And.Imm(asm.R0, 0xffff),
		// R1 becomes the sum over the IPv4 header; the identification is the first summand
		asm.Mov.Reg(asm.R1, asm.R0).WithSymbol("id"))
	p = append(p, storeHeader(headerID, asm.R0)...)
	p = append(p,
		asm.LoadMem(asm.R2, asm.R9, outerSum, asm.Word), asm.Add.Reg(asm.R1, asm.R2),
		asm.LoadMem(asm.R2, asm.RFP, atKey+8*flowtable.WIP, asm.DWord), asm.RSh.Imm(asm.R2, flowtable.TOSShift), asm.And.Imm(asm.R2, 3), // ECN
		asm.Add.Reg(asm.R1, asm.R2),
		asm.LoadMem(asm.R3, asm.R8, verdictOuter+headerTOS, asm.Byte), asm.Or.Reg(asm.R3, asm.R2), asm.StoreMem(asm.R8, verdictOuter+headerTOS, asm.R3, asm.Byte),
		asm.Mov.Reg(asm.R2, asm.R7), asm.Add.Imm(asm.R2, outerLen-ethernetLen), asm.Add.Reg(asm.R1, asm.R2))
	p = append(p, storeHeader(headerTotal, asm.R2)...)
	for range 2 {
		p = append(p, asm.Mov.Reg(asm.R2, asm.R1), asm.RSh.Imm(asm.R2, 16), asm.And.Imm(asm.R1, 0xffff), asm.Add.Reg(asm.R1, asm.R2))
	}
	p = append(p, asm.Xor.Imm(asm.R1, -1))
	p = append(p, storeHeader(headerChecksum, asm.R1)...)
	p = append(p, asm.Mov.Reg(asm.R2, asm.R7), asm.Add.Imm(asm.R2, outerLen-headerUDP))
	p = append(p, storeHeader(headerUDP+4, asm.R2)...)
	return append(p,
		asm.LoadMem(asm.R0, asm.RFP, atMasked, asm.DWord),
		asm.LoadMem(asm.R1, asm.R0, actionVNI, asm.Word), asm.StoreMem(asm.R8, verdictOuter+headerVNI, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, asm.R0, actionPorts, asm.DWord), asm.LoadMem(asm.R2, asm.R9, outerPorts, asm.DWord), asm.Or.Reg(asm.R1, asm.R2),
		asm.StoreMem(asm.R8, verdictPorts, asm.R1, asm.DWord),
		asm.StoreImm(asm.R8, verdictTunnel, 1, asm.Word),
		asm.LoadMem(asm.R9, asm.R9, outerOut, asm.Word))
}

// storeHeader writes the low 16 bits of register r, in network byte order, to the outer headers in the
// verdict. offset is the offset in these headers.
func storeHeader(offset int16, r asm.Register) asm.Instructions {
	return asm.Instructions{asm.HostTo(asm.BE, r, asm.Half), asm.StoreMem(asm.R8, verdictOuter+offset, r, asm.Half)}
}

// hashFlow makes R1 the hash of the frame's addresses and ports. It is equal to tunnel.FlowHash, so that
// kernel and worker choose the same UDP source port for a connection.
func hashFlow() asm.Instructions {
	const sum = atMasked + 8
	word := func(r asm.Register, w int16, salt uint64) asm.Instructions {
		return asm.Instructions{
			asm.LoadMem(r, asm.RFP, atKey+8*w, asm.DWord),
			asm.LoadImm(asm.R3, int64(salt), asm.DWord), asm.Xor.Reg(r, asm.R3)}
	}
	p := word(asm.R1, flowtable.WIPv4, 0x2d358dccaa6c78a5)
	p = append(p,
		asm.LoadMem(asm.R2, asm.RFP, atKey+8*flowtable.WL4, asm.DWord), asm.RSh.Imm(asm.R2, 32), asm.LSh.Imm(asm.R2, 8),
		asm.LoadMem(asm.R4, asm.RFP, atKey+8*flowtable.WIP, asm.DWord), asm.RSh.Imm(asm.R4, flowtable.ProtoShift), asm.Xor.Reg(asm.R2, asm.R4),
		asm.LoadImm(asm.R3, asHash(0x8bb84b93962eacc9), asm.DWord), asm.Xor.Reg(asm.R2, asm.R3))
	p = append(p, mix()...)
	p = append(p,
		asm.StoreMem(asm.RFP, sum, asm.R1, asm.DWord),
		asm.LoadMem(asm.R2, asm.RFP, atKey+8*flowtable.WEthDst, asm.DWord), asm.And.Imm(asm.R2, 0xffff), asm.JEq.Imm(asm.R2, packet.EtherTypeIPv4, "hashed"))
	for _, pair := range []struct {
		a, b         int16
		saltA, saltB uint64
		mask         int32
	}{
		{flowtable.WEthDst, flowtable.WEthSrc, 0x4b33a62ed433d4a3, 0x4d5a2da51de1aa47, 16},
		{flowtable.WIPv6Src, flowtable.WIPv6Src + 1, 0xa0761d6478bd642f, 0xe7037ed1a0b428db, 0},
		{flowtable.WIPv6Dst, flowtable.WIPv6Dst + 1, 0x8ebc6af09c88c6e3, 0x589965cc75374cc3, 0},
	} {
		p = append(p, word(asm.R1, pair.a, pair.saltA)...)
		p = append(p,
			asm.LoadMem(asm.R2, asm.RFP, atKey+8*pair.b, asm.DWord), asm.RSh.Imm(asm.R2, pair.mask), asm.LSh.Imm(asm.R2, pair.mask), // without the tag
			asm.LoadImm(asm.R3, asHash(pair.saltB), asm.DWord), asm.Xor.Reg(asm.R2, asm.R3))
		p = append(p, mix()...)
		p = append(p, asm.LoadMem(asm.R2, asm.RFP, sum, asm.DWord), asm.Xor.Reg(asm.R1, asm.R2), asm.StoreMem(asm.RFP, sum, asm.R1, asm.DWord))
	}
	p = append(p, asm.LoadMem(asm.R1, asm.RFP, sum, asm.DWord).WithSymbol("hashed"), asm.LoadImm(asm.R2, asHash(0x9e3779b97f4a7c15), asm.DWord))
	p = append(p, mix()...)
	return append(p, asm.RSh.Imm(asm.R1, 32))
}

func asHash(salt uint64) int64 { return int64(salt) }

// mix makes R1 the XOR of both halves of the 128-bit product of R1 and R2. It changes R0 to R5.
func mix() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R3, asm.R1), asm.RSh.Imm(asm.R3, 32), asm.Mov.Reg32(asm.R1, asm.R1),
		asm.Mov.Reg(asm.R4, asm.R2), asm.RSh.Imm(asm.R4, 32), asm.Mov.Reg32(asm.R2, asm.R2),
		asm.Mov.Reg(asm.R5, asm.R1), asm.Mul.Reg(asm.R5, asm.R2), // low halves
		asm.Mul.Reg(asm.R1, asm.R4), asm.Mul.Reg(asm.R2, asm.R3), // crosswise
		asm.Mul.Reg(asm.R3, asm.R4), // high halves
		asm.Mov.Reg(asm.R4, asm.R5), asm.RSh.Imm(asm.R4, 32),
		asm.Mov.Reg32(asm.R0, asm.R1), asm.Add.Reg(asm.R4, asm.R0),
		asm.Mov.Reg32(asm.R0, asm.R2), asm.Add.Reg(asm.R4, asm.R0),
		asm.RSh.Imm(asm.R1, 32), asm.Add.Reg(asm.R3, asm.R1), asm.RSh.Imm(asm.R2, 32), asm.Add.Reg(asm.R3, asm.R2),
		asm.Mov.Reg(asm.R0, asm.R4), asm.RSh.Imm(asm.R0, 32), asm.Add.Reg(asm.R3, asm.R0), // upper 64 bits
		asm.LSh.Imm(asm.R4, 32), asm.Mov.Reg32(asm.R5, asm.R5), asm.Or.Reg(asm.R4, asm.R5), // lower 64 bits
		asm.Mov.Reg(asm.R1, asm.R3), asm.Xor.Reg(asm.R1, asm.R4),
	}
}

// Arguments of bpf_skb_adjust_room (include/uapi/linux/bpf.h).
const (
	roomBehindEthernet = 1      // BPF_ADJ_ROOM_MAC
	fixedSegments      = 1 << 0 // BPF_F_ADJ_ROOM_FIXED_GSO: segments keep their length, which the filter has checked
	encapFlags         = fixedSegments |
		1<<1 | // BPF_F_ADJ_ROOM_ENCAP_L3_IPV4
		1<<4 | // BPF_F_ADJ_ROOM_ENCAP_L4_UDP
		1<<6 | // BPF_F_ADJ_ROOM_ENCAP_L2_ETH
		ethernetLen<<56 // BPF_F_ADJ_ROOM_ENCAP_L2
)

// insertOuter inserts the outer headers from the verdict into the frame. If the frame's sender has
// already encapsulated it into a tunnel of its own, the kernel refuses the flags for an encapsulation,
// and insertOuter makes the room without these flags. Such a frame is never large, because the filter
// accepts only large frames of TCP.
func insertOuter() asm.Instructions {
	const inner = -16
	room := func(flags int64) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, outerLen), asm.Mov.Imm(asm.R3, roomBehindEthernet),
			asm.LoadImm(asm.R4, flags, asm.DWord), asm.FnSkbAdjustRoom.Call()}
	}
	p := asm.Instructions{
		asm.LoadMem(asm.R1, asm.R8, verdictTunnel, asm.Word).WithSymbol("send"), asm.JEq.Imm(asm.R1, 0, "redirect"),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, inner), asm.Mov.Imm(asm.R4, ethernetLen), asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, drop),
	}
	p = append(p, room(encapFlags)...)
	p = append(p,
		asm.JEq.Imm(asm.R0, 0, "room"),
		asm.LoadMem(asm.R1, asm.R6, skbGSOSize, asm.Word), asm.JNE.Imm(asm.R1, 0, drop))
	p = append(p, room(fixedSegments)...)
	return append(p,
		asm.JNE.Imm(asm.R0, 0, drop),
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("room"), asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.R8), asm.Add.Imm(asm.R3, verdictOuter), asm.Mov.Imm(asm.R4, outerLen), asm.Mov.Imm(asm.R5, 0), asm.FnSkbStoreBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, drop),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, outerLen),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, inner), asm.Mov.Imm(asm.R4, ethernetLen), asm.Mov.Imm(asm.R5, 0), asm.FnSkbStoreBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, drop))
}
