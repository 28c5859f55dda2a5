package vhost

import (
	"weft/packet"
)

// rx receives from the guest: its transmit ring. Worker owns.
//
// The virtio-net header of a chain is read only if the guest may leave something
// undone; otherwise it must be zero (virtio 1.2 section 5.1.6.2.1), and a guest
// that says something all the same sends a frame with an unfinished checksum,
// which its receiver drops.
type rx struct {
	ring
	header   uint32 // bytes of the virtio-net header
	allowed  packet.Offloads
	disabled bool
	announce []byte // a frame to receive before any of the guest's; nil: none

	spans [packet.BatchSize]packet.Span // see fillSpans
}

// Recv implements port.Rx. Frames borrow guest memory until Release.
func (q *rx) Recv(b *packet.Batch) int {
	if q.announce != nil {
		return q.recvAnnouncement(b)
	}
	n := q.waiting()
	if n <= 0 {
		return n
	}
	if n = min(n, packet.BatchSize-b.N); n == 0 {
		return 0
	}
	if n = q.peek(n); n == 0 {
		return -1
	}
	if q.disabled {
		return q.discard(n)
	}
	prefetchRead(&q.heads[0], n, q.last.base-uintptr(q.last.guest), q.firstReadByte())
	for taken := 0; taken < n; {
		if m := q.fillSpans(taken, n); m > 0 {
			got := b.Append(q.spans[:m])
			if q.allowed != 0 {
				q.decode(b.Frames[b.N-got : b.N])
			}
			q.takeAll(q.heads[taken:][:got])
			taken += got
			if got < m {
				return taken // no spans left
			}
			continue
		}
		f, header := b.Next()
		if got := q.addChain(b, f, header, &q.heads[taken]); got <= 0 {
			if got < 0 && taken == 0 {
				return -1
			}
			return taken // no spans left, or broken: the next Recv will say so
		}
		taken++
	}
	return n
}

// firstReadByte is the first byte of a chain that is read. The guest has just written the
// virtio-net header: unless it says something, its line is better left where it is.
func (q *rx) firstReadByte() uintptr {
	if q.allowed != 0 {
		return 0
	}
	return uintptr(q.header)
}

// fillSpans notes the frames of the heads from one on to the last but n that have one
// readable descriptor in the region found last, as nearly every chain of nearly
// every driver. It returns how many there are before one that is otherwise.
func (q *rx) fillSpans(from, n int) int {
	last, skip := q.last, q.header
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

// decode reads the virtio-net headers of the frames of spans.
func (q *rx) decode(frames []packet.Frame) {
	for i := range frames {
		vnet := readHeader(q.spans[i%packet.BatchSize].Addr - uintptr(q.header))
		frames[i].DecodeVnet(&vnet, q.allowed, false)
	}
}

// chain notes a frame of any layout. 1: committed; 0: the batch has too few
// spans left; -1: broken.
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
			b.AddSpan(f, s.addr, s.n) // an empty batch holds maxSegments
		}
	}
	if q.allowed != 0 {
		f.DecodeVnet((*[packet.VnetLen]byte)(vnet[:]), q.allowed, false)
	}
	b.Commit(f, int(copied))
	q.take(h.id, 0)
	return 1
}

// discard gives chains of a disabled ring straight back (vhost-user, "Ring
// states"): they belong to nobody, not even to a count of drops.
func (q *rx) discard(n int) int {
	for _, h := range q.heads[:n] {
		q.take(h.id, 0)
	}
	q.publish(false)
	return 0
}

// Release implements port.Rx.
func (q *rx) Release() { q.publish(false) }

// ReleaseLate implements port.Keeper.
func (q *rx) ReleaseLate() { q.retain() }

// MayKeep implements port.Keeper: two batches are a quarter of the ring at most.
func (q *rx) MayKeep() bool { return maxHeldBack <= q.num/4 }

// Arm implements port.Rx. A guest without a kick descriptor must be polled.
func (q *rx) Arm() bool { return q.announce != nil || q.arm() }

// Disarm implements port.Rx.
func (q *rx) Disarm() { q.disarm() }

// Place implements port.Placed. The worker that has the queue asleep must find the device
// broken: it is woken by its own event, for the kick event may have millions of waiters.
func (q *rx) Place(worker, wake int) {
	q.ring.Place(worker, wake)
	q.fault.wake = append(q.fault.wake, wake)
}

// WaitFD implements port.Rx: the kick descriptor.
func (q *rx) WaitFD() int { return q.kick }

// EdgeWatched implements port.EdgeWatched: reading the kick event wakes whoever waits for
// room in it, which may be millions of the front end's waiters.
func (q *rx) EdgeWatched() {}

// Woken implements port.Rx.
func (q *rx) Woken() {}

// Polled implements port.Rx: looking at the ring costs no system call.
func (q *rx) Polled() bool { return false }

// Fault implements port.Rx.
func (q *rx) Fault() string { return q.fault.text() }

// Close implements port.Rx; the device holds everything.
func (q *rx) Close() {}
