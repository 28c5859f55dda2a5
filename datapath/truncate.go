// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/flowtable"
	"weft/packet"
	"weft/tunnel"
)

// This file has the outputs that send only the first bytes of a frame. The sent bytes keep
// the lengths and checksums of the whole frame, as in Open vSwitch. If a segment of a large
// frame exceeds the limit, the worker cuts the frame and truncates each segment. The result
// therefore depends neither on the sender's offloads nor on coalescing.

// outputTruncated executes an OpOutputTruncated: it sends the first a.U64 bytes of frame i to port a.U32. A
// shorter frame is sent whole.
func (w *Worker) outputTruncated(i int, a *flowtable.Action) {
	if reason := w.unsendable(a.U32); reason != packet.DropNone {
		w.dropAt(a.U32, i, reason)
		return
	}
	limit := int(min(a.U64, packet.MaxFrameLen))
	if w.batch.Frames[i].SegmentLen() <= limit {
		w.output(i, a.U32, false)
		return
	}
	w.truncate(i, limit, &flowtable.Action{Op: flowtable.OpOutput, U32: a.U32}, nil)
}

// truncate sends the first bytes of frame i, or of each segment of a large frame, and then restores the
// frame. "limit" is the number of bytes. out is the OpOutput or OpTunnel that sends them. x has the tunnel
// fields that earlier actions have set; nil: none.
func (w *Worker) truncate(i, limit int, out *flowtable.Action, x *tunnel.Fields) {
	b := &w.batch
	f := &b.Frames[i]
	if f.Offload.GSO != packet.GSONone {
		w.truncateSegments(i, limit, out, x)
		return
	}
	if !b.Fork(f, &w.whole) {
		w.dropAt(portOf(out), i, packet.DropLoop)
		return
	}
	b.FinishChecksum(f)
	b.Truncate(f, limit)
	w.sendOnce(i, out, x)
	b.Join(f, &w.whole)
}

// truncateSegments is the function truncate for a large frame. Each segment counts as one frame, sent or
// dropped, as in sendSegments. The counts of sent and of dropped frames thus add up to the number
// of segments.
func (w *Worker) truncateSegments(i, limit int, out *flowtable.Action, x *tunnel.Fields) {
	b, cut := &w.batch, &w.segments
	f := &b.Frames[i]
	w.whole = *f
	for s := b.Segments(&w.whole); !s.Done(); {
		cut.Reset()
		if !s.Next(cut) {
			break
		}
		segment := &cut.Frames[0]
		w.fair.cutNS += cutCost(1, segment.Len())
		cut.FinishChecksum(segment)
		cut.Truncate(segment, limit)
		mark, ok := b.Take(f, cut, 0)
		if !ok {
			w.dropAt(portOf(out), i, packet.DropLoop)
			continue
		}
		w.sendOnce(i, out, x)
		*f = w.whole
		b.Rewind(mark)
	}
}

// portOf returns the port that counts frames dropped by out, an OpOutput or an OpTunnel. For a tunnel it is
// the tunnel's port.
func portOf(out *flowtable.Action) uint32 {
	if out.Op == flowtable.OpTunnel {
		return uint32(out.U16)
	}
	return out.U32
}

// sendOnce executes out, an OpOutput or an OpTunnel, on frame i. When it returns, the frame
// has been sent, held or dropped, and is unchanged.
func (w *Worker) sendOnce(i int, out *flowtable.Action, x *tunnel.Fields) {
	if out.Op == flowtable.OpTunnel {
		w.encapsulate(i, out, x, false)
		return
	}
	w.output(i, out.U32, false)
}
