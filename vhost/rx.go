// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"weft/packet"
)

// rx receives frames from the guest's transmit ring. The worker owns it.
//
// rx reads virtio-net headers only if the guest has negotiated partial checksums or segmentation offloads
// (large frames). Without these features, the headers must be zero (virtio 1.2 section 5.1.6.2.1).
type rx struct {
	ring
	header   uint32 // size of the virtio-net header in bytes
	allowed  packet.Offloads
	disabled bool
	announce []byte // RARP frame after a migration, received before all other frames; nil: none

	pieces int // number of pieces (see maxVisitPieces) of the chains that Recv has taken through addChain

	spans [packet.BatchSize]packet.Span // memory of the frames that fillSpans has found
	ahead
}

// maxVisitPieces is the number of pieces after which Recv ends a batch early. A piece is the
// contiguous memory of one descriptor. An access to a piece on a page of its own takes up to a
// microsecond. A full batch of 32 frames of 64 KiB on 17 pages each has 544 pieces, which is below the
// limit.
const maxVisitPieces = 640

// Recv drops a frame whose chain has more than n/usualPiece + maxFramePieces pieces, where n is the
// chain's length in bytes. Each piece may lie on a page of its own, and an access to a page waits
// while the front end punches a hole there. Drivers use pages or network buffers as pieces, so their
// frames have few.
const (
	maxFramePieces = 128
	usualPiece     = 256
)

// Recv implements port.Rx. The frames stay in guest memory, which the batch borrows until Release.
func (q *rx) Recv(b *packet.Batch) int {
	if q.announce != nil {
		return q.recvAnnouncement(b)
	}
	n := q.waiting()
	if n <= 0 {
		return n
	}
	if n = min(n, b.Room()); n == 0 {
		return 0
	}
	if n = q.peekFrames(n); n == 0 {
		return -1
	}
	if q.disabled {
		return q.discard(n)
	}
	q.pieces = 0
	for taken := 0; taken < n; {
		if m := q.fillSpans(taken, n); m > 0 {
			got := b.Append(q.spans[:m])
			if q.allowed != 0 {
				q.decode(b.Frames[b.N-got : b.N])
			}
			q.takeAll(q.heads[taken:][:got])
			taken += got
			if got < m {
				return taken
			}
			continue
		}
		f, header := b.Next()
		if got := q.addChain(b, f, header, &q.heads[taken]); got <= 0 {
			if got < 0 && taken == 0 {
				return -1
			}
			return taken // the batch is full, or the device is broken and the next Recv returns -1
		}
		if taken++; q.pieces >= maxVisitPieces {
			return taken
		}
	}
	if n == packet.BatchSize {
		q.peekAhead()
	}
	return n
}

// firstReadByte returns the offset of the first byte of a chain that the switch reads. If the switch
// does not need the virtio-net header, this is the offset after the header, so that the header stays
// in the cache of the guest's core.
func (q *rx) firstReadByte() uintptr {
	if q.allowed != 0 {
		return 0
	}
	return uintptr(q.header)
}

// fillSpans makes q.spans from the chains heads[from:n]. It handles only the usual form of chain: one
// readable descriptor in the memory region that was used last. It stops at the first chain of another
// form, and returns the number of spans.
func (q *rx) fillSpans(from, n int) int {
	last, skip := q.cached, q.header
	heads := q.heads[from:n]
	for i := range heads {
		h := &heads[i]
		off := h.addr - last.guest
		length := h.n - skip
		if h.flags&(descNext|descWrite|descIndirect) != 0 || off >= last.size || uint64(h.n) > last.size-off ||
			h.n <= skip || length > packet.MaxFrameLen {
			return i
		}
		q.spans[i%packet.BatchSize] = packet.Span{Addr: last.base + uintptr(off) + uintptr(skip), Len: length}
	}
	return len(heads)
}

// decode reads the virtio-net headers of frames. The memory of frames[i] is q.spans[i].
func (q *rx) decode(frames []packet.Frame) {
	for i := range frames {
		vnet := readHeader(q.spans[i%packet.BatchSize].Addr - uintptr(q.header))
		frames[i].DecodeVnet(&vnet, q.allowed, false)
	}
}

// addChain adds the frame of a chain of any form to the batch. It returns 1 if it has completed the
// chain, 0 if the batch has too few free spans, and -1 if the device is broken. A frame with too many
// pieces is added with its Drop set.
func (q *rx) addChain(b *packet.Batch, f *packet.Frame, header *[packet.MaxHeader]byte, h *head) int {
	n, total := q.walk(h, false, 0)
	if n < 0 {
		return -1
	}
	if total < uint64(q.header) {
		return q.broken(faultShort, total, uint64(q.header))
	}
	if total-uint64(q.header) > packet.MaxFrameLen {
		return q.broken(faultLength, total, uint64(q.header)+packet.MaxFrameLen)
	}
	if n > b.SpansLeft() && b.N > 0 {
		b.Abandon(f)
		return 0
	}
	if n > maxFramePieces+int(total/usualPiece) {
		f.Drop = packet.DropManyPieces
		b.Commit(f, 0)
		q.take(h.id, 0)
		q.pieces += n
		return 1
	}
	skip, copied := q.header, uint32(0)
	var vnet [12]byte
	for _, s := range q.segments[:n] {
		if skip > 0 {
			m := copy(vnet[q.header-skip:q.header], packet.Foreign(s.addr, s.n))
			skip -= uint32(m)
			if s.addr, s.n = s.addr+uintptr(m), s.n-uint32(m); s.n == 0 {
				continue
			}
		}
		if room := packet.InnerHeader - copied; room > 0 {
			m := min(room, s.n)
			copy(header[copied:], packet.Foreign(s.addr, m))
			copied += m
			s.addr, s.n = s.addr+uintptr(m), s.n-m
		}
		if s.n > 0 {
			b.AddSpan(f, s.addr, s.n) // the span always fits, because an empty batch has room for maxSegments spans
		}
	}
	if q.allowed != 0 {
		f.DecodeVnet((*[packet.VnetLen]byte)(vnet[:]), q.allowed, false)
	}
	b.Commit(f, int(copied))
	q.take(h.id, 0)
	q.pieces += n
	return 1
}

// discard completes the chains of a disabled ring without reading them (vhost-user,
// "Ring states").
func (q *rx) discard(n int) int {
	for _, h := range q.heads[:n] {
		q.take(h.id, 0)
	}
	q.publish(false)
	return 0
}

// Release implements port.Rx. It publishes all chains that Recv has taken.
func (q *rx) Release() { q.publish(false) }

// ReleaseLate implements port.Keeper. It may leave the newest chains unpublished until a later call, as
// retain says.
func (q *rx) ReleaseLate() { q.retain() }

// MayKeep implements port.Keeper. The worker may release a batch late only if the ring has eight
// batches of descriptors or more.
func (q *rx) MayKeep() bool { return maxHeldBack <= q.num/4 }

// Arm implements port.Rx. It returns true if the worker must poll: chains or an announcement wait, or the
// guest has no kick descriptor.
func (q *rx) Arm() bool { return q.announce != nil || q.arm() }

// Disarm implements port.Rx. It tells the driver to send no kicks.
func (q *rx) Disarm() { q.disarm() }

// Place implements port.Placed. wake is the event descriptor of the worker that owns
// the queue. It is signalled when the device breaks. The kick eventfd is not used for
// this, because a front end may have millions of waiters on it.
func (q *rx) Place(worker, wake int) {
	q.ring.Place(worker, wake)
	q.fault.wake = append(q.fault.wake, wake)
}

// WaitFD implements port.Rx. It returns the descriptor of the kick eventfd, or -1.
func (q *rx) WaitFD() int { return q.kick }

// EdgeWatched implements port.EdgeWatched. The worker must never read the kick eventfd:
// a read wakes all waiters of the eventfd, and a front end may add millions of them.
func (q *rx) EdgeWatched() {}

// Woken implements port.Rx. Nothing needs to be done after a kick, because the kick eventfd is never
// read.
func (q *rx) Woken() {}

// Polled implements port.Rx. Polling the ring needs no system call.
func (q *rx) Polled() bool { return false }

// Fault implements port.Rx. The fault is that of the whole device.
func (q *rx) Fault() string { return q.fault.text() }

// Close implements port.Rx. It does nothing, because the device owns all resources.
func (q *rx) Close() {}
