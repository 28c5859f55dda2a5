// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"slices"

	"github.com/cilium/ebpf/asm"

	"weft/flowtable"
	"weft/packet"
	"weft/tunnel"
)

// This file has the parts of an uplink's programs that decapsulate frames from tunnels. The filter validates
// the outer headers as tunnel.Terminations.Decapsulate does. It accepts only untagged Ethernet, IPv4
// without options, UDP, and a tunnel header with a VNI around an Ethernet frame with IP. All other frames
// go to the worker.

// endKey identifies the local end of a tunnel in the map "ends". Its fields have the meaning of those of
// tunnel.Termination. A zero address stands for any address.
type endKey struct {
	remote, local [4]byte
	vni           uint32 // VNI, or tunnel.AnyVNI
	udpPort       uint32
}

// end is the value of an endKey: the tunnel header that frames must have, and the datapath port of the
// tunnel.
type end struct {
	header uint64 // tunnel header without the VNI, in host byte order
	port   uint64 // port number of the tunnel
}

// Sizes and offsets of fields, in bytes, of the keys and values in the map ends.
const (
	endKeyBytes   = 16
	endKeyLocal   = 4
	endKeyVNI     = 8
	endKeyUDPPort = 12
	endBytes      = 16
	endHeader     = 0
	endPort       = 8
)

// Ends are the local ends of tunnels. The filter of an uplink accepts only frames to these.
type Ends map[endKey]end

// NewEnds returns the ends of those tunnels that the programs can decapsulate: over IPv4 and UDP. The
// keys of "rows" are the indexes of the Terminations.
func NewEnds(rows map[uint32]tunnel.Termination) Ends {
	ends := Ends{}
	for index := range uint32(tunnel.MaxTerminations) {
		row, has := rows[index]
		if !has {
			continue
		}
		remote, v4 := address4(row.Remote)
		local, localV4 := address4(row.Local)
		if !v4 || !localV4 || row.UDPPort == 0 {
			continue
		}
		k := endKey{remote: remote, local: local, vni: row.VNI, udpPort: uint32(row.UDPPort)}
		if _, has := ends[k]; !has { // of several Terminations with the same key, the one with the lowest index is used
			ends[k] = end{header: row.Kind.PlainHeader(), port: uint64(row.Port)}
		}
	}
	return ends
}

// address4 returns the IPv4 address in an IPv4-mapped IPv6 address. For the zero address, which stands
// for any address, it returns zero. For any other IPv6 address, isIPv4 is false.
func address4(a [16]byte) (v4 [4]byte, isIPv4 bool) {
	mapped := [12]byte{10: 0xff, 11: 0xff}
	return [4]byte(a[12:]), a == [16]byte{} || [12]byte(a[:12]) == mapped
}

// SetEnds replaces the local ends of tunnels whose frames the uplink's filter accepts. Frames to other
// ends go to the worker.
func (t *Table) SetEnds(ends Ends) {
	for k := range t.known {
		if _, has := ends[k]; !has {
			_ = t.ends.Delete(k) // error ignored: it cannot fail for a key in the map
			delete(t.known, k)
		}
	}
	for k, e := range ends {
		if t.known[k] == e {
			continue
		}
		if t.ends.Put(k, e) == nil {
			t.known[k] = e
		} else {
			_ = t.ends.Delete(k) // error ignored: the map may not have it
			delete(t.known, k)
		}
	}
}

// Offsets, from the frame pointer, of the outer headers on the stack.
const (
	atOuterIP  = atOuter + ethernetLen
	atOuterUDP = atOuterIP + packet.IPv4Len
	atTunnel   = atOuterUDP + packet.UDPLen
)

// readOuter validates the outer headers of a frame, whose length is in R7. It makes R7 the length of the
// inner frame. It writes the number of the tunnel's port, the VNI and the outer addresses to the key on
// the stack.
func readOuter(m *maps) asm.Instructions {
	p := asm.Instructions{
		asm.JLT.Imm(asm.R7, outerLen+ethernetLen, toWorker),
		asm.LoadMem(asm.R1, asm.R6, skbVLANPresent, asm.Word), asm.JNE.Imm(asm.R1, 0, toWorker),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, atOuter), asm.Mov.Imm(asm.R4, outerLen),
		asm.FnSkbLoadBytes.Call(), asm.JNE.Imm(asm.R0, 0, toWorker),
	}
	p = append(p, load(asm.R1, atOuter+12, asm.Half)...)
	p = append(p, asm.JNE.Imm(asm.R1, packet.EtherTypeIPv4, toWorker))
	p = append(p, load(asm.R1, atOuterIP, asm.DWord)...) // version, IHL, TOS, length, ID, fragment
	p = append(p, load(asm.R3, atOuterUDP+4, asm.Half)...)
	p = append(p,
		asm.Mov.Reg(asm.R2, asm.R1), asm.RSh.Imm(asm.R2, 56), asm.JNE.Imm(asm.R2, 0x45, toWorker),
		asm.Mov.Reg(asm.R2, asm.R1), asm.And.Imm(asm.R2, 0x3fff), asm.JNE.Imm(asm.R2, 0, toWorker),
		asm.RSh.Imm(asm.R1, 32), asm.And.Imm(asm.R1, 0xffff), // length of the IP datagram
		asm.Mov.Reg(asm.R2, asm.R1), asm.Add.Imm(asm.R2, ethernetLen), asm.JGT.Reg(asm.R2, asm.R7, toWorker),
		asm.Mov.Reg(asm.R2, asm.R3), asm.Add.Imm(asm.R2, packet.IPv4Len), asm.JGT.Reg(asm.R2, asm.R1, toWorker),
		asm.Mov.Reg(asm.R7, asm.R3), asm.JLT.Imm(asm.R7, packet.UDPLen+tunnel.HeaderLen+ethernetLen, toWorker),
		asm.Sub.Imm(asm.R7, packet.UDPLen+tunnel.HeaderLen),
		asm.LoadMem(asm.R1, asm.RFP, atOuterIP+9, asm.Byte), asm.JNE.Imm(asm.R1, packet.ProtoUDP, toWorker),
	)
	p = append(p, leaveUnfinished()...)
	p = append(p, asm.Mov.Imm(asm.R1, 0).WithSymbol("sum"))
	for at := int16(0); at < packet.IPv4Len; at += 4 {
		p = append(p, asm.LoadMem(asm.R2, asm.RFP, atOuterIP+at, asm.Word), asm.Add.Reg(asm.R1, asm.R2))
	}
	p = append(p, asm.Mov.Reg(asm.R2, asm.R1), asm.RSh.Imm(asm.R2, 32), asm.Mov.Reg32(asm.R1, asm.R1), asm.Add.Reg(asm.R1, asm.R2))
	for range 3 {
		p = append(p, asm.Mov.Reg(asm.R2, asm.R1), asm.RSh.Imm(asm.R2, 16), asm.And.Imm(asm.R1, 0xffff), asm.Add.Reg(asm.R1, asm.R2))
	}
	p = append(p, asm.JNE.Imm(asm.R1, 0xffff, toWorker))
	return slices.Concat(p, readTunnelHeader(), findEnd(m))
}

// leaveUnfinished leaves a frame to the worker if its outer UDP checksum is unfinished, that is, only the sum
// of the pseudo header. After a decapsulation the kernel would finish the checksum at the wrong offset.
// Large frames are not checked, because their unfinished checksum is the inner one.
func leaveUnfinished() asm.Instructions {
	p := append(load(asm.R1, atOuterUDP+6, asm.Half),
		asm.JEq.Imm(asm.R1, 0, "sum"),
		asm.LoadMem(asm.R2, asm.R6, skbGSOSize, asm.Word), asm.JNE.Imm(asm.R2, 0, "sum"))
	p = append(p, load(asm.R2, atOuterIP+12, asm.Word)...)
	p = append(p, load(asm.R3, atOuterIP+16, asm.Word)...)
	p = append(p, asm.Add.Reg(asm.R2, asm.R3))
	p = append(p, load(asm.R3, atOuterUDP+4, asm.Half)...)
	p = append(p, asm.Add.Reg(asm.R2, asm.R3), asm.Add.Imm(asm.R2, packet.ProtoUDP))
	for range 3 {
		p = append(p, asm.Mov.Reg(asm.R3, asm.R2), asm.RSh.Imm(asm.R3, 16), asm.And.Imm(asm.R2, 0xffff), asm.Add.Reg(asm.R2, asm.R3))
	}
	return append(p, asm.JEq.Reg(asm.R1, asm.R2, toWorker))
}

// readTunnelHeader writes the VNI and the outer addresses to the key on the stack. It writes the UDP
// port to the endKey on the stack, for the look-up in findEnd. R9 becomes the tunnel header without the
// VNI.
func readTunnelHeader() asm.Instructions {
	p := load(asm.R9, atTunnel, asm.Word)
	p = append(p, load(asm.R1, atTunnel+4, asm.Word)...)
	p = append(p,
		asm.LSh.Imm(asm.R9, 32), asm.Mov.Reg(asm.R2, asm.R1), asm.And.Imm(asm.R2, 0xff), asm.Or.Reg(asm.R9, asm.R2),
		asm.RSh.Imm(asm.R1, 8), storeKey(flowtable.WTunID, asm.R1))
	p = append(p, load(asm.R1, atOuterIP+12, asm.Word)...)
	p = append(p, load(asm.R2, atOuterIP+16, asm.Word)...)
	p = append(p, asm.LSh.Imm(asm.R1, 32), asm.Or.Reg(asm.R1, asm.R2), storeKey(flowtable.WTunIPv4, asm.R1))
	p = append(p, load(asm.R1, atOuterUDP+2, asm.Half)...)
	return append(p, asm.StoreMem(asm.RFP, atEndKey+endKeyUDPPort, asm.R1, asm.Word))
}

// findEnd looks for the tunnel of a frame, the most specific entry first, as the comment of
// tunnel.Termination says. It writes the number of the tunnel's port to the key on the stack. If there
// is no such tunnel, or if it requires another tunnel header, the frame goes to the worker.
func findEnd(m *maps) (p asm.Instructions) {
	anyVNI := tunnel.AnyVNI
	for _, tuple := range []struct{ remote, vni bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		p = append(p, asm.Mov.Imm(asm.R1, 0), asm.Mov.Imm32(asm.R2, int32(anyVNI)))
		if tuple.remote {
			p = append(p, asm.LoadMem(asm.R1, asm.RFP, atOuterIP+12, asm.Word))
		}
		if tuple.vni {
			p = append(p, asm.LoadMem(asm.R2, asm.RFP, atKey+8*flowtable.WTunID, asm.DWord))
		}
		p = append(p, asm.StoreMem(asm.RFP, atEndKey, asm.R1, asm.Word), asm.StoreMem(asm.RFP, atEndKey+endKeyVNI, asm.R2, asm.Word),
			asm.LoadMem(asm.R1, asm.RFP, atOuterIP+16, asm.Word))
		for range 2 { // first with the frame's local address, then with any address
			p = append(p,
				asm.StoreMem(asm.RFP, atEndKey+endKeyLocal, asm.R1, asm.Word),
				asm.LoadMapPtr(asm.R1, m.ends.FD()),
				asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atEndKey),
				asm.FnMapLookupElem.Call(),
				asm.JNE.Imm(asm.R0, 0, "end"),
				asm.Mov.Imm(asm.R1, 0))
		}
	}
	return append(p,
		asm.Ja.Label(toWorker),
		asm.LoadMem(asm.R1, asm.R0, endHeader, asm.DWord).WithSymbol("end"), asm.JNE.Reg(asm.R1, asm.R9, toWorker),
		asm.LoadMem(asm.R1, asm.R0, endPort, asm.DWord), asm.LSh.Imm(asm.R1, 32), asm.Or.Imm(asm.R1, 1),
		storeKey(flowtable.WPort, asm.R1))
}

// readInnerEthernet writes the words of the inner Ethernet header to the key on the stack. R5 becomes the
// EtherType. Frames without IP go to the worker, because the kernel would keep the protocol of the outer
// header for them. BFD packets go to the worker, too.
func readInnerEthernet() asm.Instructions {
	p := append(load(asm.R1, atSrc, asm.DWord),
		asm.Mov.Reg(asm.R5, asm.R1), asm.And.Imm(asm.R5, 0xffff),
		asm.RSh.Imm(asm.R1, 16), asm.LSh.Imm(asm.R1, 16), storeKey(flowtable.WEthSrc, asm.R1))
	p = append(p, load(asm.R1, atFrame, asm.Half)...)
	p = append(p, load(asm.R2, atFrame+2, asm.Word)...)
	return append(p,
		asm.LSh.Imm(asm.R1, 32), asm.Or.Reg(asm.R1, asm.R2),
		asm.LoadImm(asm.R2, tunnel.BFDAddress, asm.DWord), asm.JEq.Reg(asm.R1, asm.R2, toWorker),
		asm.LSh.Imm(asm.R1, 16), asm.Or.Reg(asm.R1, asm.R5), storeKey(flowtable.WEthDst, asm.R1),
		asm.JEq.Imm(asm.R5, packet.EtherTypeIPv4, "ipv4"),
		asm.JEq.Imm(asm.R5, packet.EtherTypeIPv6, "ipv6"),
		asm.Ja.Label(toWorker))
}

// mergeECN merges the outer ECN field into the inner one (RFC 6040 section 4.2). A frame that must be
// dropped by this rule, or changed from ECT(0) to ECT(1), goes to the worker.
func mergeECN() asm.Instructions {
	const notECT, ect1, ect0, ce = 0, 1, 2, 3
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.RFP, atOuterIP+1, asm.Byte), asm.And.Imm(asm.R1, ce),
		asm.LoadMem(asm.R2, asm.RFP, atKey+8*flowtable.WIP, asm.DWord),
		asm.Mov.Reg(asm.R3, asm.R2), asm.RSh.Imm(asm.R3, flowtable.TOSShift), asm.And.Imm(asm.R3, ce),
		asm.JEq.Imm(asm.R1, ce, "congested"),
		asm.JNE.Imm(asm.R1, ect1, "search"), asm.JEq.Imm(asm.R3, ect0, toWorker), asm.Ja.Label("search"),
		asm.JEq.Imm(asm.R3, notECT, toWorker).WithSymbol("congested"), asm.JEq.Imm(asm.R3, ce, "search"),
		asm.LoadImm(asm.R1, ce<<flowtable.TOSShift, asm.DWord), asm.Or.Reg(asm.R2, asm.R1), storeKey(flowtable.WIP, asm.R2),
		asm.StoreImm(asm.RFP, atCE, rewriteCE, asm.Half),
	}
}

// Flags of bpf_skb_adjust_room (include/uapi/linux/bpf.h) that name the protocol of the inner frame.
const (
	decapIPv4 = 1 << 7 // BPF_F_ADJ_ROOM_DECAP_L3_IPV4
	decapIPv6 = 1 << 8 // BPF_F_ADJ_ROOM_DECAP_L3_IPV6
)

// removeOuter removes the outer headers. The kernel keeps the outer Ethernet header, so removeOuter
// writes the inner one over it.
//
// A large frame of UDP consists of datagrams that the kernel has merged, and the length in its first
// header may be that of all of them. removeOuter drops such a frame. To recognize it, removeOuter
// inserts 0 bytes first: the kernel refuses this for a large frame unless it is TCP.
func removeOuter() asm.Instructions {
	const inner = -16
	p := asm.Instructions{
		asm.LoadMem(asm.R1, asm.R6, skbGSOSize, asm.Word), asm.JEq.Imm(asm.R1, 0, "remove"),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, 0), asm.Mov.Imm(asm.R3, roomBehindEthernet), asm.Mov.Imm(asm.R4, 0),
		asm.FnSkbAdjustRoom.Call(),
		asm.JNE.Imm(asm.R0, 0, drop),
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("remove"), asm.Mov.Imm(asm.R2, outerLen),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, inner), asm.Mov.Imm(asm.R4, ethernetLen), asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, drop),
		asm.LoadMem(asm.R1, asm.RFP, inner+12, asm.Half), asm.HostTo(asm.BE, asm.R1, asm.Half),
		asm.Mov.Imm(asm.R4, fixedSegments|decapIPv4), asm.JEq.Imm(asm.R1, packet.EtherTypeIPv4, "protocol"), asm.Mov.Imm(asm.R4, fixedSegments|decapIPv6),
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("protocol"), asm.Mov.Imm(asm.R2, -outerLen), asm.Mov.Imm(asm.R3, roomBehindEthernet),
		asm.FnSkbAdjustRoom.Call(),
		asm.JNE.Imm(asm.R0, 0, drop),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, inner), asm.Mov.Imm(asm.R4, ethernetLen), asm.Mov.Imm(asm.R5, 0), asm.FnSkbStoreBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, drop),
		asm.JEq.Imm(asm.R9, 0, "send"),
	}
	return append(p,
		asm.Mov.Reg(asm.R1, asm.R9), asm.And.Imm(asm.R1, rewriteCE), asm.JEq.Imm(asm.R1, 0, "translate"),
		asm.Mov.Reg(asm.R1, asm.R6), asm.FnSkbEcnSetCe.Call(),
		asm.JEq.Imm(asm.R0, 0, drop))
}
