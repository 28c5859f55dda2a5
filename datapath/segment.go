package datapath

import "weft/packet"

// A frame whose sender left something to do goes to an output as it is, if the
// output takes that; otherwise the rest is done here. A large frame is cut into a
// batch of its own, whose frames share the large one's memory: their payload is
// copied by the output alone, as ever.

// inOrder lists all frames of a batch.
var inOrder = func() (order [packet.BatchSize]uint8) {
	for i := range order {
		order[i] = uint8(i)
	}
	return order
}()

// sendUndone is send of frames of which some have something left to do.
func (w *Worker) sendUndone(p *txPort, order []uint8) {
	mtu := p.tx.MTU()
	first := 0 // of those that go as they are and have not gone
	for n, i := range order {
		f := &w.batch.Frames[i]
		if w.undone>>i&1 == 0 || p.takes.Takes(f) && f.SegmentLen() <= mtu {
			continue
		}
		if f.Offload.GSO == packet.GSONone {
			if p.takes&packet.TakesPartial == 0 {
				w.batch.FinishChecksum(f)
			}
			continue
		}
		if first < n {
			w.send(p, order[first:n])
		}
		first = n + 1
		w.sendSegments(p, int(i), mtu)
	}
	if first < len(order) {
		w.send(p, order[first:])
	}
}

// sendSegments cuts frame i to the length that the port takes, and sends that.
func (w *Worker) sendSegments(p *txPort, i, mtu int) {
	f := &w.batch.Frames[i]
	size := f.Offload.Size
	if !f.LimitSegments(mtu) {
		if w.taps.on {
			w.tapResult(p, i, w.overlay[i].port, packet.DropOversizeFrame)
		}
		w.countSent(p, i, packet.DropOversizeFrame)
		return
	}
	over := w.overlay[i]
	w.overlay[i] = overlay{}
	full := false
	for s := w.batch.Segments(f); !s.Done(); {
		w.segments.Reset()
		for s.Next(&w.segments) {
		}
		full = w.sendCut(p, over, full)
	}
	f.Offload.Size = size // other ports may take longer ones
	if w.taps.on {
		why := packet.DropNone
		if full {
			why = packet.DropTxFull
		}
		w.tapResult(p, i, over.port, why)
	}
}

// sendCut sends the batch of segments and counts them; full says that the port has
// taken no more of this frame, so that the rest is not tried.
func (w *Worker) sendCut(p *txPort, over overlay, full bool) bool {
	b := &w.segments
	if p.takes&packet.TakesPartial == 0 {
		for i := range b.Frames[:b.N] {
			b.FinishChecksum(&b.Frames[i])
		}
	}
	taken := 0
	if !full {
		taken = p.tx.Send(b, inOrder[:b.N])
	}
	for i := range b.Frames[:b.N] {
		why := b.Frames[i].Drop
		if i >= taken {
			why = packet.DropTxFull
		}
		w.count(p, over, b.Frames[i].Len(), why)
	}
	return taken < b.N
}
