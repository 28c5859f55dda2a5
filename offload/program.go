// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"slices"

	"github.com/cilium/ebpf/asm"

	"weft/flowtable"
	"weft/packet"
)

// Offsets of fields in the context of a program (include/uapi/linux/bpf.h, struct __sk_buff).
const (
	skbLen         = 0
	skbProtocol    = 16
	skbVLANPresent = 20
	skbVLANTCI     = 24
	skbVLANProto   = 28
	skbGSOSize     = 176
)

// Return values of the programs.
const (
	takeWhole = 1 << 18 // filter: the socket gets at most so many bytes, which is the whole frame
	takeNone  = 0       // filter: the socket does not get the frame
	tcxDrop   = 2       // ingress program (include/uapi/linux/bpf.h, enum tcx_action_base)
)

// Layout of the filter's stack, as offsets from the frame pointer. The offset of the frame's first bytes
// (atFrame) is chosen so that the words of the IP header are aligned.
const (
	headersLen = 74 // Ethernet, IPv6, TCP without options
	atIndex    = -4
	atFrame    = -86
	atSrc      = atFrame + 6
	atIP       = atFrame + ethernetLen
	atIPv4L4   = atIP + packet.IPv4Len
	atIPv6L4   = atIP + packet.IPv6Len
	atKey      = atFrame - 2 - 8*keyWords
	atMasked   = atKey - 8*(keyWords+1)
	atCE       = atFrame - 2   // rewriteCE, or 0
	atOuter    = atMasked - 54 // outer headers of a frame that arrives at an uplink
	atEndKey   = atOuter - 18
	toWorker   = "worker"
)

// filterProgram returns the socket filter of a port. The filter runs for each frame before the ingress
// program, on the same processor and without interruption. It looks the frame up. If it finds a flow, it
// writes the verdict (what to do with the frame) for the ingress program, and the socket does not get
// the frame. Otherwise the instructions filterMiss decide. They mostly give the frame to the socket,
// from which the worker receives it.
//
// The filter extracts the same words of the key as flowtable.Extract. Frames with words that it cannot
// extract go to the worker.
func (t *Table) filterProgram(filterMiss asm.Instructions) asm.Instructions {
	m := &t.maps
	missed := slices.Concat(asm.Instructions{asm.Mov.Imm(asm.R0, takeNone).WithSymbol(toWorker)}, filterMiss)
	if t.uplink {
		return slices.Concat(startFilter(m), readOuter(m), readHeaders(outerLen), readInnerEthernet(), readIPv4(), readIPv6(), readTransport(),
			mergeECN(), search(m), t.findConnection(), missed, t.decide())
	}
	return slices.Concat(startFilter(m), readHeaders(0), readEthernet(), readIPv4(), readIPv6(), readTransport(), leaveLarge(),
		search(m), t.findConnection(), missed, t.decide())
}

// startFilter makes R6 the context, R7 the length of the frame, and R8 the address of this processor's
// verdict for the ingress program. It makes the verdict empty. It clears the memory for the frame's
// headers and for the key on the stack.
func startFilter(m *maps) asm.Instructions {
	p := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Imm(asm.R2, 0)}
	for at := atKey; at < 0; at += 8 {
		p = append(p, asm.StoreMem(asm.RFP, int16(at), asm.R2, asm.DWord))
	}
	return append(p,
		asm.LoadMapPtr(asm.R1, m.verdicts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atIndex),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, toWorker),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.StoreImm(asm.R8, verdictOut, 0, asm.Word), asm.StoreImm(asm.R8, verdictFirst, 0, asm.Word),

		asm.LoadMem(asm.R7, asm.R6, skbLen, asm.Word), asm.JLT.Imm(asm.R7, ethernetLen, toWorker),
	)
}

// readHeaders copies the first headersLen bytes of the frame that begins at this offset to the stack. R7 is
// the frame's length; the bytes after the end of a shorter frame stay 0.
func readHeaders(offset int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R4, asm.R7), asm.JLE.Imm(asm.R4, headersLen, "short"), asm.Mov.Imm(asm.R4, headersLen),
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("short"), asm.Mov.Imm(asm.R2, offset),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, atFrame),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, toWorker),
	}
}

// load loads size bytes in network byte order, at an offset of the stack, into register r in host byte order.
func load(r asm.Register, offset int16, size asm.Size) asm.Instructions {
	return asm.Instructions{asm.LoadMem(r, asm.RFP, offset, size), asm.HostTo(asm.BE, r, size)}
}

// storeKey stores register r as a word of the key on the stack.
func storeKey(word int16, r asm.Register) asm.Instruction {
	return asm.StoreMem(asm.RFP, atKey+8*word, r, asm.DWord)
}

// readEthernet writes to the key the words of the Ethernet header and of the VLAN tag, which the kernel has
// moved from the frame to its context. R5 becomes the EtherType.
func readEthernet() asm.Instructions {
	p := append(load(asm.R1, atSrc, asm.DWord),
		asm.Mov.Reg(asm.R5, asm.R1), asm.And.Imm(asm.R5, 0xffff),
		asm.RSh.Imm(asm.R1, 16), asm.LSh.Imm(asm.R1, 16),
		asm.LoadMem(asm.R2, asm.R6, skbVLANPresent, asm.Word), asm.JEq.Imm(asm.R2, 0, "untagged"),
		asm.LoadMem(asm.R2, asm.R6, skbVLANTCI, asm.Word), asm.And.Imm(asm.R2, 0xffff), asm.Or.Imm(asm.R2, flowtable.VLANPresent), asm.Or.Reg(asm.R1, asm.R2),
		storeKey(flowtable.WEthSrc, asm.R1).WithSymbol("untagged"))
	p = append(p, load(asm.R1, atFrame, asm.Half)...)
	p = append(p, load(asm.R2, atFrame+2, asm.Word)...)
	p = append(p,
		asm.LSh.Imm(asm.R1, 48), asm.LSh.Imm(asm.R2, 16), asm.Or.Reg(asm.R1, asm.R2), asm.Or.Reg(asm.R1, asm.R5),
		storeKey(flowtable.WEthDst, asm.R1),
		asm.Mov.Imm(asm.R1, 1), storeKey(flowtable.WPort, asm.R1), // the mark of masks in use
		asm.Mov.Imm(asm.R9, 0), // length of the headers of a large frame
		asm.JEq.Imm(asm.R5, packet.EtherTypeIPv4, "ipv4"),
		asm.JEq.Imm(asm.R5, packet.EtherTypeIPv6, "ipv6"),
		asm.JLT.Imm(asm.R5, 0x600, toWorker))
	for _, etherType := range workerTypes {
		p = append(p, asm.JEq.Imm(asm.R5, etherType, toWorker))
	}
	return append(p, asm.Ja.Label("whole"))
}

// workerTypes are the EtherTypes of frames that go to the worker, because a key has further fields for them.
var workerTypes = []int32{packet.EtherTypeVLAN, packet.EtherTypeSVLAN, packet.EtherTypeARP, packet.EtherTypeRARP,
	packet.EtherTypeMPLS, packet.EtherTypeMPLSMulticast, packet.EtherTypePBB, packet.EtherTypeNSH}

// readIPv4 and readIPv6 read the IP header. R7 becomes the offset of the datagram's end in the frame, R3 the
// word WIP without TCP flags, R5 the protocol, and R9 the offset of the transport header. From that
// header, R2 gets the first 4 bytes, R1 the 2 bytes at offset 4 (UDP's length), and R4 the 2 bytes at offset
// 12 (TCP's flags).
func readIPv4() asm.Instructions {
	p := load(asm.R1, atIP, asm.DWord) // version, IHL, TOS, length, ID, fragment
	p[0] = p[0].WithSymbol("ipv4")
	p = append(p,
		asm.Mov.Reg(asm.R2, asm.R1), asm.RSh.Imm(asm.R2, 56), asm.JNE.Imm(asm.R2, 0x45, toWorker),
		asm.Mov.Reg(asm.R2, asm.R1), asm.And.Imm(asm.R2, 0x3fff), asm.JNE.Imm(asm.R2, 0, toWorker),
		asm.Mov.Reg(asm.R4, asm.R1), asm.RSh.Imm(asm.R4, 32), asm.And.Imm(asm.R4, 0xffff), asm.Add.Imm(asm.R4, ethernetLen),
		asm.JGT.Reg(asm.R4, asm.R7, toWorker),
		asm.Mov.Reg(asm.R7, asm.R4),
		asm.RSh.Imm(asm.R1, 48), asm.And.Imm(asm.R1, 0xff), asm.LSh.Imm(asm.R1, flowtable.TOSShift), asm.Mov.Reg(asm.R3, asm.R1),
		asm.LoadMem(asm.R1, asm.RFP, atIP+8, asm.Byte), asm.LSh.Imm(asm.R1, flowtable.TTLShift), asm.Or.Reg(asm.R3, asm.R1),
		asm.LoadMem(asm.R5, asm.RFP, atIP+9, asm.Byte))
	p = append(p, load(asm.R1, atIP+12, asm.Word)...)
	p = append(p, load(asm.R2, atIP+16, asm.Word)...)
	p = append(p, asm.LSh.Imm(asm.R1, 32), asm.Or.Reg(asm.R1, asm.R2), storeKey(flowtable.WIPv4, asm.R1))
	p = append(p, load(asm.R2, atIPv4L4, asm.Word)...)
	p = append(p, load(asm.R1, atIPv4L4+4, asm.Half)...)
	p = append(p, load(asm.R4, atIPv4L4+12, asm.Half)...)
	return append(p,
		asm.Mov.Imm(asm.R9, ethernetLen+packet.IPv4Len),
		asm.JNE.Imm(asm.R5, packet.ProtoICMP, "transport"), asm.Ja.Label("icmp"))
}

func readIPv6() asm.Instructions {
	p := load(asm.R1, atIP, asm.DWord) // version, traffic class, label, payload length, next header, hop limit
	p[0] = p[0].WithSymbol("ipv6")
	p = append(p,
		asm.Mov.Reg(asm.R2, asm.R1), asm.RSh.Imm(asm.R2, 60), asm.JNE.Imm(asm.R2, 6, toWorker),
		asm.Mov.Reg(asm.R4, asm.R1), asm.RSh.Imm(asm.R4, 16), asm.And.Imm(asm.R4, 0xffff), asm.Add.Imm(asm.R4, ethernetLen+packet.IPv6Len),
		asm.JGT.Reg(asm.R4, asm.R7, toWorker),
		asm.Mov.Reg(asm.R7, asm.R4),
		asm.Mov.Reg(asm.R3, asm.R1), asm.RSh.Imm(asm.R3, 52), asm.And.Imm(asm.R3, 0xff), asm.LSh.Imm(asm.R3, flowtable.TOSShift),
		asm.Mov.Reg(asm.R2, asm.R1), asm.And.Imm(asm.R2, 0xff), asm.LSh.Imm(asm.R2, flowtable.TTLShift), asm.Or.Reg(asm.R3, asm.R2),
		asm.Mov.Reg(asm.R5, asm.R1), asm.RSh.Imm(asm.R5, 8), asm.And.Imm(asm.R5, 0xff),
		asm.RSh.Imm(asm.R1, 32), asm.And.Imm(asm.R1, 0xfffff), storeKey(flowtable.WL4, asm.R1))
	for i := range int16(4) {
		p = append(p, load(asm.R1, atIP+8+8*i, asm.DWord)...)
		p = append(p, storeKey(flowtable.WIPv6Src+i, asm.R1))
	}
	p = append(p, load(asm.R2, atIPv6L4, asm.Word)...)
	p = append(p, load(asm.R1, atIPv6L4+4, asm.Half)...)
	p = append(p, load(asm.R4, atIPv6L4+12, asm.Half)...)
	return append(p,
		asm.Mov.Imm(asm.R9, ethernetLen+packet.IPv6Len),
		asm.JNE.Imm(asm.R5, packet.ProtoICMPv6, "transport"),
		asm.Mov.Reg(asm.R1, asm.R2), asm.RSh.Imm(asm.R1, 24), // neighbour discovery has more words
		asm.JEq.Imm(asm.R1, packet.NDSolicitation, toWorker), asm.JEq.Imm(asm.R1, packet.NDAdvertisement, toWorker),
		asm.Ja.Label("icmp"))
}

// readTransport writes the key's words with the protocol and the ports. It leaves in R9 the length of the
// headers of a TCP frame. Large frames (GSO) of other protocols go to the worker.
func readTransport() asm.Instructions {
	return asm.Instructions{
		asm.JEq.Imm(asm.R5, packet.ProtoTCP, "tcp").WithSymbol("transport"),
		asm.JNE.Imm(asm.R5, packet.ProtoUDP, toWorker),
		asm.JLT.Imm(asm.R1, packet.UDPLen, toWorker),
		asm.Add.Reg(asm.R9, asm.R1), asm.JGT.Reg(asm.R9, asm.R7, toWorker),
		asm.Ja.Label("ports"),

		asm.Add.Imm(asm.R9, packet.ICMPLen).WithSymbol("icmp"), asm.JGT.Reg(asm.R9, asm.R7, toWorker),
		asm.Mov.Reg(asm.R1, asm.R2), asm.RSh.Imm(asm.R1, 24), asm.LSh.Imm(asm.R1, 16), // type
		asm.RSh.Imm(asm.R2, 16), asm.And.Imm(asm.R2, 0xff), asm.Or.Reg(asm.R2, asm.R1), // code

		asm.LoadMem(asm.R1, asm.R6, skbGSOSize, asm.Word).WithSymbol("ports"), asm.JNE.Imm(asm.R1, 0, toWorker),
		asm.Ja.Label("found"),

		asm.Mov.Reg(asm.R1, asm.R4).WithSymbol("tcp"), asm.RSh.Imm(asm.R1, 12), asm.LSh.Imm(asm.R1, 2), asm.JLT.Imm(asm.R1, packet.TCPLen, toWorker),
		asm.Add.Reg(asm.R9, asm.R1), asm.JGT.Reg(asm.R9, asm.R7, toWorker),
		asm.And.Imm(asm.R4, 0xfff), asm.Or.Reg(asm.R3, asm.R4),

		asm.LSh.Imm(asm.R5, flowtable.ProtoShift).WithSymbol("found"), asm.Or.Reg(asm.R3, asm.R5), storeKey(flowtable.WIP, asm.R3),
		asm.LSh.Imm(asm.R2, 32), asm.LoadMem(asm.R1, asm.RFP, atKey+8*flowtable.WL4, asm.DWord), asm.Or.Reg(asm.R2, asm.R1),
		storeKey(flowtable.WL4, asm.R2),
	}
}

// leaveLarge returns the instructions for a frame without IP, which goes to the worker if it is large
// (GSO).
func leaveLarge() asm.Instructions {
	return asm.Instructions{
		asm.Ja.Label("search"),
		asm.LoadMem(asm.R1, asm.R6, skbGSOSize, asm.Word).WithSymbol("whole"), asm.JNE.Imm(asm.R1, 0, toWorker),
	}
}

// search looks the key up under each mask. R0 becomes the address of the flow's action. If there is no flow,
// the filter continues with findConnection.
func search(m *maps) (p asm.Instructions) {
	for i := range MaxMasks {
		first, unused := asm.StoreImm(asm.RFP, atIndex, int64(i), asm.Word), "connection"
		if i == 0 {
			first, unused = first.WithSymbol("search"), "no mask"
		}
		p = append(p, first,
			asm.LoadMapPtr(asm.R1, m.masks.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atIndex),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, toWorker),
			asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), asm.JEq.Imm(asm.R1, 0, unused)) // the first mask that is not in use
		for w := range keyWords {
			p = append(p,
				asm.LoadMem(asm.R1, asm.R0, int16(8*w), asm.DWord),
				asm.LoadMem(asm.R2, asm.RFP, int16(atKey+8*w), asm.DWord),
				asm.And.Reg(asm.R1, asm.R2),
				asm.StoreMem(asm.RFP, int16(atMasked+8*w), asm.R1, asm.DWord))
		}
		p = append(p,
			asm.Mov.Imm(asm.R1, int32(i)), asm.StoreMem(asm.RFP, atMasked+8*keyWords, asm.R1, asm.DWord),
			asm.LoadMapPtr(asm.R1, m.flows.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atMasked),
			asm.FnMapLookupElem.Call(),
			asm.JNE.Imm(asm.R0, 0, "hit"))
	}
	return append(p,
		asm.Ja.Label("connection"),
		asm.LoadMem(asm.R1, asm.R0, 8, asm.DWord).WithSymbol("no mask"), asm.JNE.Imm(asm.R1, 0, toWorker)) // paused, see write
}

// decide writes the verdict for the ingress program. If the frame is too long for the output, or if its
// TTL would become 0, the frame goes to the worker instead. R9 is the length of the frame, or of the
// longest segment of a large frame, and later the ifindex of the output.
func (t *Table) decide() asm.Instructions {
	p := asm.Instructions{
		asm.StoreMem(asm.RFP, atMasked, asm.R0, asm.DWord).WithSymbol("hit"),
		asm.LoadMem(asm.R1, asm.R6, skbGSOSize, asm.Word),
		asm.JNE.Imm(asm.R1, 0, "large"),
		asm.Mov.Reg(asm.R9, asm.R7), asm.Ja.Label("target"),
		asm.LoadMem(asm.R2, asm.R6, skbLen, asm.Word).WithSymbol("large"), asm.Sub.Imm(asm.R2, t.received()),
		asm.JNE.Reg(asm.R2, asm.R7, toWorker), // large frames have no padding
		asm.Add.Reg(asm.R9, asm.R1),
		asm.LoadMem(asm.R1, asm.R0, actionTunnel, asm.Word).WithSymbol("target"), asm.JNE.Imm(asm.R1, 0, "encapsulate"),
		asm.LoadMem(asm.R1, asm.R0, actionLongest, asm.Word),
		asm.JGT.Reg(asm.R9, asm.R1, toWorker),
		asm.LoadMem(asm.R1, asm.R0, actionPorts, asm.DWord), asm.StoreMem(asm.R8, verdictPorts, asm.R1, asm.DWord),
		asm.StoreImm(asm.R8, verdictTunnel, 0, asm.Word),
		asm.LoadMem(asm.R9, asm.R0, actionOut, asm.Word),
		asm.Ja.Label("rewrite"),
	}
	outer := asm.Instructions{asm.Ja.Label(toWorker)} // flows of an uplink, which come from tunnels, never lead into a tunnel
	if !t.uplink {
		outer = encapsulate(&t.maps)
	}
	outer[0] = outer[0].WithSymbol("encapsulate")
	p = append(p, outer...)
	p = append(p,
		asm.LoadMem(asm.R1, asm.R0, actionRewrite, asm.Word).WithSymbol("rewrite"),
		asm.LoadMem(asm.R2, asm.RFP, atCE, asm.Half), asm.Or.Reg(asm.R1, asm.R2),
		asm.StoreMem(asm.R8, verdictRewrite, asm.R1, asm.Word),
		asm.JEq.Imm(asm.R1, 0, "plain"),
		asm.And.Imm(asm.R1, rewriteTTL), asm.JEq.Imm(asm.R1, 0, "live"),
		asm.LoadMem(asm.R1, asm.RFP, atKey+8*flowtable.WIP, asm.DWord), asm.RSh.Imm(asm.R1, flowtable.TTLShift), asm.And.Imm(asm.R1, 0xff),
		asm.JLE.Imm(asm.R1, 1, toWorker))
	for at := int16(4); at < rewriteBytes; at += 4 {
		first := asm.LoadMem(asm.R1, asm.R0, actionRewrite+at, asm.Word)
		if at == 4 {
			first = first.WithSymbol("live")
		}
		p = append(p, first, asm.StoreMem(asm.R8, verdictRewrite+at, asm.R1, asm.Word))
	}
	return append(p,
		asm.LoadMem(asm.R1, asm.R0, actionSlot, asm.Word).WithSymbol("plain"), asm.StoreMem(asm.R8, verdictSlot, asm.R1, asm.Word),
		asm.StoreMem(asm.R8, verdictLen, asm.R7, asm.Word),
		asm.StoreMem(asm.R8, verdictOut, asm.R9, asm.Word),
		asm.Mov.Imm(asm.R0, takeNone),
		asm.Return(),
	)
}

// ingressProgram returns the program that executes the verdict of the filter: it counts the frame,
// removes its padding, rewrites it and redirects it to the output. It drops the frame if the kernel has
// no memory for the change. If the filter has written no verdict, the instructions ingressMiss decide.
func (t *Table) ingressProgram(ingressMiss asm.Instructions) asm.Instructions {
	first, last := asm.Instructions{asm.JEq.Imm(asm.R9, 0, "send")}, insertOuter()
	if t.uplink {
		first, last = removeOuter(), asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("send")}
	}
	return slices.Concat(countFrame(&t.maps), trim(t.received()), first, translate(), rewriteAddresses(), decrementTTL(), rewriteTag(), last, asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R7).WithSymbol("redirect"), asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, tcxDrop).WithSymbol(drop),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("missed"),
	}, ingressMiss)
}

// received returns the length in bytes of the outer headers that the ingress program removes. It is 0
// for a table that is not an uplink's.
func (t *Table) received() int32 {
	if t.uplink {
		return outerLen
	}
	return 0
}

// drop is the label of the ingress program's instructions that drop a frame.
const drop = "drop"

// countFrame adds the frame to the counts of its megaflow. If another megaflow has tracked the frame, it
// adds the frame to the counts of that one, too. It makes R6 the context, R7 the ifindex of the output,
// R8 the address of the verdict and R9 the bits of its Rewrite.
func countFrame(m *maps) asm.Instructions {
	const index, frameLen = -4, -16
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.StoreImm(asm.RFP, index, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.verdicts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, index),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, drop),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.LoadMem(asm.R7, asm.R8, verdictOut, asm.Word),
		asm.JEq.Imm(asm.R7, 0, "missed"),
		asm.StoreImm(asm.R8, verdictOut, 0, asm.Word),
		asm.LoadMem(asm.R1, asm.R8, verdictSlot, asm.Word), asm.StoreMem(asm.RFP, index, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, m.rows.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, index),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, drop),
		asm.LoadMem(asm.R1, asm.R8, verdictLen, asm.Word),
		asm.LoadMem(asm.R2, asm.R6, skbVLANPresent, asm.Word), asm.JEq.Imm(asm.R2, 0, "bytes"), asm.Add.Imm(asm.R1, packet.VLANLen),
		asm.StoreMem(asm.RFP, frameLen, asm.R1, asm.DWord).WithSymbol("bytes"), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, rowBytes),
		asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, rowPackets),
		asm.LoadMem(asm.R1, asm.R8, verdictPorts, asm.DWord), asm.StoreMem(asm.R0, rowPorts, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R9, asm.R0),
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(asm.R9, rowUsed, asm.R0, asm.DWord),
		// then count the frame for the megaflow that has tracked it
		asm.LoadMem(asm.R1, asm.R8, verdictFirst, asm.Word), asm.JEq.Imm(asm.R1, 0, "counted"),
		asm.Mov.Reg(asm.R9, asm.R0),
		asm.Sub.Imm(asm.R1, 1), asm.StoreMem(asm.RFP, index, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, m.rows.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, index),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, drop),
		asm.LoadMem(asm.R1, asm.RFP, frameLen, asm.DWord), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, rowBytes),
		asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, rowPackets),
		asm.StoreMem(asm.R0, rowUsed, asm.R9, asm.DWord),
		asm.Mov.Imm(asm.R1, 0), asm.StoreMem(asm.R0, rowPorts, asm.R1, asm.DWord),
		asm.LoadMem(asm.R9, asm.R8, verdictRewrite, asm.Word).WithSymbol("counted"),
	}
}

// trim removes padding after the IP datagram. outerBytes is the length of the outer headers, which are still
// before the frame.
func trim(outerBytes int32) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R8, verdictLen, asm.Word), asm.Add.Imm(asm.R2, outerBytes), asm.LoadMem(asm.R1, asm.R6, skbLen, asm.Word),
		asm.JEq.Reg(asm.R1, asm.R2, "trimmed"),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R3, 0),
		asm.FnSkbChangeTail.Call(),
		asm.JNE.Imm(asm.R0, 0, drop),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("trimmed"),
	}
}

func rewriteAddresses() (p asm.Instructions) {
	for _, a := range []struct {
		bit, address, offset int32
		label, next          string
	}{{rewriteDst, verdictDst, 0, "destination", "source"}, {rewriteSrc, verdictSrc, 6, "source", "ttl"}} {
		p = append(p,
			asm.Mov.Reg(asm.R1, asm.R9).WithSymbol(a.label), asm.And.Imm(asm.R1, a.bit), asm.JEq.Imm(asm.R1, 0, a.next),
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, a.offset),
			asm.Mov.Reg(asm.R3, asm.R8), asm.Add.Imm(asm.R3, a.address), asm.Mov.Imm(asm.R4, 6), asm.Mov.Imm(asm.R5, 0),
			asm.FnSkbStoreBytes.Call(),
			asm.JNE.Imm(asm.R0, 0, drop))
	}
	return p
}

// Offsets in a frame of fields of the IPv4 header (TTL, checksum) and of the IPv6 header (hop limit).
const (
	ipTTL      = ethernetLen + 8
	ipChecksum = ethernetLen + 10
	ipHopLimit = ethernetLen + 7
)

// decrementTTL decrements the TTL or the hop limit if the verdict asks for it. The filter has made sure that
// the value is larger than 1.
func decrementTTL() asm.Instructions {
	const ttl = -8
	access := func(offset, length int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, offset),
			asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, ttl), asm.Mov.Imm(asm.R4, length)}
	}
	read := func(offset, length int32) asm.Instructions {
		return append(access(offset, length), asm.FnSkbLoadBytes.Call(), asm.JNE.Imm(asm.R0, 0, drop))
	}
	write := func(offset int32) asm.Instructions {
		return append(access(offset, 1), asm.Mov.Imm(asm.R5, 0), asm.FnSkbStoreBytes.Call(), asm.JNE.Imm(asm.R0, 0, drop))
	}
	return slices.Concat(
		asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R9).WithSymbol("ttl"), asm.And.Imm(asm.R1, rewriteTTL), asm.JEq.Imm(asm.R1, 0, "tag"),
			asm.LoadMem(asm.R1, asm.R6, skbProtocol, asm.Word), asm.HostTo(asm.BE, asm.R1, asm.Half),
			asm.JNE.Imm(asm.R1, packet.EtherTypeIPv6, "ipv4")},
		read(ipHopLimit, 1),
		asm.Instructions{
			asm.LoadMem(asm.R1, asm.RFP, ttl, asm.Byte), asm.Sub.Imm(asm.R1, 1), asm.StoreMem(asm.RFP, ttl, asm.R1, asm.Byte)},
		write(ipHopLimit),
		asm.Instructions{asm.Ja.Label("tag"), asm.Mov.Imm(asm.R0, 0).WithSymbol("ipv4")},
		read(ipTTL, 2),
		asm.Instructions{
			// R3 and R4 are the header's 16-bit word with TTL and protocol, before and after
			asm.LoadMem(asm.R3, asm.RFP, ttl, asm.Half), asm.HostTo(asm.BE, asm.R3, asm.Half),
			asm.Mov.Reg(asm.R4, asm.R3), asm.Sub.Imm(asm.R4, 1<<8),
			asm.HostTo(asm.BE, asm.R3, asm.Half), asm.HostTo(asm.BE, asm.R4, asm.Half),
			asm.StoreMem(asm.RFP, ttl, asm.R4, asm.Half),
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, ipChecksum), asm.Mov.Imm(asm.R5, 2),
			asm.FnL3CsumReplace.Call(),
			asm.JNE.Imm(asm.R0, 0, drop)},
		write(ipTTL))
}

// rewriteTag removes the frame's VLAN tag, inserts one, or does both. A TPID of 0 in the verdict stands for
// that of the removed tag. The kernel keeps the tag outside the frame, so the frame's length does not change.
func rewriteTag() asm.Instructions {
	const tpid = -16
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.R8, verdictTPID, asm.Half).WithSymbol("tag"), asm.JNE.Imm(asm.R1, 0, "named"),
		asm.LoadMem(asm.R1, asm.R6, skbVLANProto, asm.Word),
		asm.StoreMem(asm.RFP, tpid, asm.R1, asm.DWord).WithSymbol("named"),
		asm.Mov.Reg(asm.R1, asm.R9), asm.And.Imm(asm.R1, rewritePop), asm.JEq.Imm(asm.R1, 0, "push"),
		asm.Mov.Reg(asm.R1, asm.R6), asm.FnSkbVlanPop.Call(), asm.JNE.Imm(asm.R0, 0, drop),
		asm.Mov.Reg(asm.R1, asm.R9).WithSymbol("push"), asm.And.Imm(asm.R1, rewritePush), asm.JEq.Imm(asm.R1, 0, "send"),
		asm.Mov.Reg(asm.R1, asm.R6), asm.LoadMem(asm.R2, asm.RFP, tpid, asm.DWord), asm.LoadMem(asm.R3, asm.R8, verdictTCI, asm.Half),
		asm.FnSkbVlanPush.Call(), asm.JNE.Imm(asm.R0, 0, drop),
	}
}
