// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"github.com/cilium/ebpf/asm"
)

// Offsets of fields in the context of a program (include/uapi/linux/bpf.h, struct __sk_buff).
const (
	skbLen         = 0
	skbVLANPresent = 20
	skbGSOSize     = 176
)

// Results of the programs.
const (
	takeWhole = 1 << 18 // filter: the socket gets the whole frame
	takeNone  = 0       // filter: the socket does not get the frame
	tcxDrop   = 2       // ingress program (include/uapi/linux/bpf.h, enum tcx_action_base)
)

// The filter's stack, as offsets from the frame pointer. The frame's first plainLen bytes
// stand such that the words of the IP header are aligned.
const (
	plainLen = 54 // Ethernet, IPv4 without options, TCP without options
	atFrame  = -62
	atSrc    = atFrame + 6
	atIP     = atFrame + 14
	atL4     = atIP + 20
	atKey    = atFrame - 2 - 8*keyWords
	atMasked = atKey - 8*(keyWords+1)
	atIndex  = atMasked - 8
	toWorker = "worker"
)

// filterProgram is the socket filter of a device port. It runs for each frame before the
// ingress program, on the same processor and without a pause in between. It looks the frame up
// and leaves the verdict for the ingress program. A frame without a verdict goes to the socket.
//
// It extracts the same words as flowtable.extractPlain, and leaves any other frame to the
// worker.
func filterProgram(m *maps) asm.Instructions {
	p := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		// R8: the verdict of this processor, empty until the end
		asm.StoreImm(asm.RFP, atIndex, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.verdicts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atIndex),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, toWorker),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.StoreImm(asm.R8, verdictOut, 0, asm.Word),

		asm.LoadMem(asm.R1, asm.R6, skbVLANPresent, asm.Word), asm.JNE.Imm(asm.R1, 0, toWorker),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, atFrame), asm.Mov.Imm(asm.R4, plainLen),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, toWorker),

		// word 2: source
		asm.LoadMem(asm.R1, asm.RFP, atSrc, asm.DWord), asm.HostTo(asm.BE, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R1), asm.And.Imm(asm.R2, 0xffff), asm.JNE.Imm(asm.R2, 0x0800, toWorker),
		asm.RSh.Imm(asm.R1, 16), asm.LSh.Imm(asm.R1, 16),
		asm.StoreMem(asm.RFP, atKey+16, asm.R1, asm.DWord),
		// word 1: destination
		asm.LoadMem(asm.R1, asm.RFP, atFrame, asm.Half), asm.HostTo(asm.BE, asm.R1, asm.Half), asm.LSh.Imm(asm.R1, 48),
		asm.LoadMem(asm.R2, asm.RFP, atFrame+2, asm.Word), asm.HostTo(asm.BE, asm.R2, asm.Word), asm.LSh.Imm(asm.R2, 16),
		asm.Or.Reg(asm.R1, asm.R2), asm.Or.Imm(asm.R1, 0x0800),
		asm.StoreMem(asm.RFP, atKey+8, asm.R1, asm.DWord),
		// word 0: the mark of masks in use
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreMem(asm.RFP, atKey, asm.R1, asm.DWord),

		// R1: first 8 bytes of IPv4. R7: end of the datagram in the frame, which has no padding.
		asm.LoadMem(asm.R1, asm.RFP, atIP, asm.DWord), asm.HostTo(asm.BE, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R1), asm.RSh.Imm(asm.R2, 56), asm.JNE.Imm(asm.R2, 0x45, toWorker),
		asm.Mov.Reg(asm.R2, asm.R1), asm.And.Imm(asm.R2, 0x3fff), asm.JNE.Imm(asm.R2, 0, toWorker),
		asm.Mov.Reg(asm.R7, asm.R1), asm.RSh.Imm(asm.R7, 32), asm.And.Imm(asm.R7, 0xffff), asm.Add.Imm(asm.R7, 14),
		asm.LoadMem(asm.R2, asm.R6, skbLen, asm.Word), asm.JNE.Reg(asm.R7, asm.R2, toWorker),
		// R3: word 3. R9: length of the headers of a TCP frame
		asm.RSh.Imm(asm.R1, 48), asm.And.Imm(asm.R1, 0xff), asm.LSh.Imm(asm.R1, 48), // TOS
		asm.LoadMem(asm.R3, asm.RFP, atIP+8, asm.Byte), asm.LSh.Imm(asm.R3, 40), asm.Or.Reg(asm.R3, asm.R1), // TTL
		asm.LoadMem(asm.R2, asm.RFP, atIP+9, asm.Byte), asm.Mov.Reg(asm.R1, asm.R2), asm.LSh.Imm(asm.R1, 56), asm.Or.Reg(asm.R3, asm.R1),
		asm.JEq.Imm(asm.R2, 6, "tcp"),
		asm.JNE.Imm(asm.R2, 17, toWorker),
		asm.LoadMem(asm.R1, asm.R6, skbGSOSize, asm.Word), asm.JNE.Imm(asm.R1, 0, toWorker),
		asm.LoadMem(asm.R1, asm.RFP, atL4+4, asm.Half), asm.HostTo(asm.BE, asm.R1, asm.Half), asm.JLT.Imm(asm.R1, 8, toWorker),
		asm.Add.Imm(asm.R1, 34), asm.JGT.Reg(asm.R1, asm.R7, toWorker),
		asm.Mov.Imm(asm.R9, 0), asm.Ja.Label("found"),

		asm.LoadMem(asm.R1, asm.RFP, atL4+12, asm.Half).WithSymbol("tcp"), asm.HostTo(asm.BE, asm.R1, asm.Half),
		asm.Mov.Reg(asm.R9, asm.R1), asm.RSh.Imm(asm.R9, 12), asm.LSh.Imm(asm.R9, 2), asm.JLT.Imm(asm.R9, 20, toWorker),
		asm.Add.Imm(asm.R9, 34), asm.JGT.Reg(asm.R9, asm.R7, toWorker),
		asm.And.Imm(asm.R1, 0xfff), asm.Or.Reg(asm.R3, asm.R1),

		asm.StoreMem(asm.RFP, atKey+24, asm.R3, asm.DWord).WithSymbol("found"),
		asm.LoadMem(asm.R1, asm.RFP, atL4, asm.Word), asm.HostTo(asm.BE, asm.R1, asm.Word), asm.LSh.Imm(asm.R1, 32),
		asm.StoreMem(asm.RFP, atKey+32, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, atIP+12, asm.Word), asm.HostTo(asm.BE, asm.R1, asm.Word), asm.LSh.Imm(asm.R1, 32),
		asm.LoadMem(asm.R2, asm.RFP, atIP+16, asm.Word), asm.HostTo(asm.BE, asm.R2, asm.Word), asm.Or.Reg(asm.R1, asm.R2),
		asm.StoreMem(asm.RFP, atKey+40, asm.R1, asm.DWord),
	}
	for i := range MaxMasks {
		step := asm.Instructions{
			asm.StoreImm(asm.RFP, atIndex, int64(i), asm.Word),
			asm.LoadMapPtr(asm.R1, m.masks.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atIndex),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, toWorker),
			asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), asm.JEq.Imm(asm.R1, 0, toWorker), // the first mask that is not in use
		}
		for w := range keyWords {
			step = append(step,
				asm.LoadMem(asm.R1, asm.R0, int16(8*w), asm.DWord),
				asm.LoadMem(asm.R2, asm.RFP, int16(atKey+8*w), asm.DWord),
				asm.And.Reg(asm.R1, asm.R2),
				asm.StoreMem(asm.RFP, int16(atMasked+8*w), asm.R1, asm.DWord))
		}
		step = append(step,
			asm.Mov.Imm(asm.R1, int32(i)), asm.StoreMem(asm.RFP, atMasked+8*keyWords, asm.R1, asm.DWord),
			asm.LoadMapPtr(asm.R1, m.flows.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atMasked),
			asm.FnMapLookupElem.Call(),
			asm.JNE.Imm(asm.R0, 0, "hit"))
		p = append(p, step...)
	}
	return append(p,
		asm.Mov.Imm(asm.R0, takeWhole).WithSymbol(toWorker),
		asm.Return(),

		// R7: length of the frame, or of the longest segment of a large frame
		asm.LoadMem(asm.R1, asm.R6, skbGSOSize, asm.Word).WithSymbol("hit"),
		asm.JEq.Imm(asm.R1, 0, "fits"),
		asm.Mov.Reg(asm.R7, asm.R9), asm.Add.Reg(asm.R7, asm.R1),
		asm.LoadMem(asm.R1, asm.R0, actionLongest, asm.Word).WithSymbol("fits"),
		asm.JGT.Reg(asm.R7, asm.R1, toWorker),
		asm.LoadMem(asm.R1, asm.R0, actionRewrite, asm.Word), asm.StoreMem(asm.R8, verdictRewrite, asm.R1, asm.Word),
		asm.JEq.Imm(asm.R1, 0, "plain"),
		asm.And.Imm(asm.R1, rewriteTTL), asm.JEq.Imm(asm.R1, 0, "addresses"),
		asm.LoadMem(asm.R1, asm.RFP, atIP+8, asm.Byte), asm.JLE.Imm(asm.R1, 1, toWorker),
		asm.LoadMem(asm.R1, asm.R0, actionRewrite+4, asm.Word).WithSymbol("addresses"), asm.StoreMem(asm.R8, verdictRewrite+4, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, asm.R0, actionRewrite+8, asm.Word), asm.StoreMem(asm.R8, verdictRewrite+8, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, asm.R0, actionRewrite+12, asm.Word), asm.StoreMem(asm.R8, verdictRewrite+12, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, asm.R0, actionSlot, asm.Word).WithSymbol("plain"), asm.StoreMem(asm.R8, verdictSlot, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, asm.R0, actionOut, asm.Word), asm.StoreMem(asm.R8, verdictOut, asm.R1, asm.Word),
		asm.Mov.Imm(asm.R0, takeNone),
		asm.Return(),
	)
}

// ingressProgram executes the verdict that the filter has left: it counts the frame, rewrites it and
// redirects it. It drops a frame without a verdict, which the socket has, and a frame that the kernel
// has no memory to rewrite.
func ingressProgram(m *maps) asm.Instructions {
	const index, ttl = -4, -8
	p := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R9, asm.R1, skbLen, asm.Word),
		asm.StoreImm(asm.RFP, index, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.verdicts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, index),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, drop),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.LoadMem(asm.R7, asm.R8, verdictOut, asm.Word),
		asm.JEq.Imm(asm.R7, 0, drop),
		asm.StoreImm(asm.R8, verdictOut, 0, asm.Word),
		asm.LoadMem(asm.R1, asm.R8, verdictSlot, asm.Word), asm.StoreMem(asm.RFP, index, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, m.rows.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, index),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, drop),
		asm.AddAtomic.Mem(asm.R0, asm.R9, asm.DWord, rowBytes),
		asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, rowPackets),
		asm.Mov.Reg(asm.R9, asm.R0),
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(asm.R9, rowUsed, asm.R0, asm.DWord),
		asm.LoadMem(asm.R9, asm.R8, verdictRewrite, asm.Word),
		asm.JEq.Imm(asm.R9, 0, "send"),
	}
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
	return append(p,
		asm.Mov.Reg(asm.R1, asm.R9).WithSymbol("ttl"), asm.And.Imm(asm.R1, rewriteTTL), asm.JEq.Imm(asm.R1, 0, "send"),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, ipTTL),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, ttl), asm.Mov.Imm(asm.R4, 2),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, drop),
		// R3, R4: TTL and protocol as one word of the header, before and after
		asm.LoadMem(asm.R3, asm.RFP, ttl, asm.Half), asm.HostTo(asm.BE, asm.R3, asm.Half),
		asm.Mov.Reg(asm.R4, asm.R3), asm.Sub.Imm(asm.R4, 1<<8),
		asm.HostTo(asm.BE, asm.R3, asm.Half), asm.HostTo(asm.BE, asm.R4, asm.Half),
		asm.StoreMem(asm.RFP, ttl, asm.R4, asm.Half),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, ipChecksum), asm.Mov.Imm(asm.R5, 2),
		asm.FnL3CsumReplace.Call(),
		asm.JNE.Imm(asm.R0, 0, drop),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, ipTTL),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, ttl), asm.Mov.Imm(asm.R4, 1), asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, drop),

		asm.Mov.Reg(asm.R1, asm.R7).WithSymbol("send"), asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, tcxDrop).WithSymbol(drop),
		asm.Return(),
	)
}

// Offsets of fields of an IPv4 header in a frame.
const (
	ipTTL      = ethernetLen + 8
	ipChecksum = ethernetLen + 10
)

// drop is the label in the ingress program that drops a frame.
const drop = "drop"
