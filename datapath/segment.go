// SPDX-License-Identifier: Apache-2.0

package datapath

import "weft/packet"

// This file does the work that a guest has left to its network card: checksums and segmentation. A
// frame with such work is undone. If an output port does not take undone frames, the worker computes
// the checksum, or cuts the large frame into segments. The segments share the large frame's memory;
// only the output copies their payload.

// largeWork has buffers for frames that the worker itself cuts, merges or makes. They are in use only while
// the worker handles one frame, or one run (consecutive frames with the same megaflow).
type largeWork struct {
	coalescer packet.Coalescer
	segments  packet.Batch // segments of a large frame, or a frame that the worker itself has made
	whole     packet.Frame // copy of the frame that the function truncate shortens, to restore it
}

var inOrder = func() (order [packet.BatchSize]uint8) {
	for i := range order {
		order[i] = uint8(i)
	}
	return order
}()

// sendUndone sends the frames in the list "order" to port p. If p does not take a frame's unfinished
// checksum or segmentation, the worker does this work first.
func (w *Worker) sendUndone(p *txPort, order []uint8) {
	mtu := p.tx.MTU()
	first := 0 // index in "order" of the first frame that was not sent yet
	for n, i := range order {
		f := &w.batch.Frames[i]
		if w.undone>>i&1 == 0 || p.offloads.Takes(f) && f.SegmentLen() <= mtu {
			continue
		}
		if f.Offload.GSO == packet.GSONone {
			if p.offloads&packet.TakesPartial == 0 || f.Flags&packet.FrameHidden != 0 {
				w.batch.FinishChecksum(f)
			}
			continue
		}
		if first < n {
			w.send(p, order[first:n])
		}
		p.sent = uint8(n)
		first = n + 1
		w.sendSegments(p, int(i), mtu)
		p.sent = uint8(first)
	}
	if first < len(order) {
		w.send(p, order[first:])
	}
}

func (w *Worker) sendSegments(p *txPort, i, mtu int) {
	f := &w.batch.Frames[i]
	size := f.Offload.Size
	if !f.LimitSegments(mtu) {
		w.captures.result(p, i, w.overlay[i].port, packet.DropOversizeFrame)
		w.countSent(p, i, packet.DropOversizeFrame)
		return
	}
	outer := w.overlay[i]
	w.overlay[i] = overlay{}
	full := false
	for s := w.batch.Segments(f); !s.Done(); {
		w.segments.Reset()
		for s.Next(&w.segments) {
		}
		full = w.sendCut(p, outer, full)
	}
	f.Offload.Size = size // restored, because another output port may take longer segments
	reason := packet.DropNone
	if full {
		reason = packet.DropTxFull
	}
	w.captures.result(p, i, outer.port, reason)
}

// sendCut sends the frames in w.segments to port p. "outer" describes their outer headers, if they have
// any. If isFull is true, sendCut only counts the frames as dropped. It reports whether the port is full.
func (w *Worker) sendCut(p *txPort, outer overlay, isFull bool) bool {
	b := &w.segments
	if (p.offloads&packet.TakesPartial == 0 || b.N > 0 && b.Frames[0].Flags&packet.FrameHidden != 0) && !isFull {
		for i := range b.Frames[:b.N] {
			b.FinishChecksum(&b.Frames[i])
		}
	}
	taken, bytes := 0, 0
	if !isFull {
		taken = w.deliver(p, b, inOrder[:b.N])
	}
	for i := range b.Frames[:b.N] {
		bytes += b.Frames[i].Len()
		reason := b.Frames[i].Drop
		if i >= taken {
			reason = packet.DropTxFull
		}
		w.count(p, outer, b.Frames[i].Len(), reason)
	}
	if isFull {
		bytes = 0 // the payload was neither summed nor copied, so it costs nothing
	}
	w.fair.cutNS += cutCost(b.N, bytes)
	return taken < b.N
}
