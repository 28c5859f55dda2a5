package vhost

import (
	"sync/atomic"
	"unsafe"
)

// The split layout (virtio 1.2 section 2.7). The driver owns the descriptor
// table and the avail ring, the device the used ring. Used elements are written
// as chains are taken and hidden behind the used index until publish.
const (
	availNoInterrupt = 1 // flag of the avail ring
	usedNoNotify     = 1 // flag of the used ring
)

func (r *ring) splitParts(v VringSpec) []part {
	num := uint64(v.Num)
	return []part{ // each ring is followed by the event index of the other
		{"descriptors", v.Desc, descSize * num, descAlign, &r.desc},
		{"avail ring", v.Avail, 4 + 2*num + 2, availAlign, &r.avail},
		{"used ring", v.Used, 4 + 8*num + 2, usedAlign, &r.used},
	}
}

// startSplit takes the ring's position, and shows what a device that died has retained.
func (r *ring) startSplit(lastAvail uint16, resume bool, rec *record) {
	r.elems = unsafe.Add(r.used, 4)
	r.published = uint16(atomic.LoadUint32((*uint32)(r.used)) >> 16) // ours alone; a successor reads what we published
	r.done = r.published
	r.next = lastAvail
	if r.flight.started() {
		resume = true
	}
	if resume {
		r.next = r.published
	}
	if r.flight != nil {
		r.returnMarked()
	} else if rec != nil && r.index%2 == 1 {
		r.state, _ = rec.vring(r.index)
		if n := splitRecordAhead(atomic.LoadUint64(r.state), r.published); resume && n <= r.num {
			r.done, r.next = r.done+uint16(n), r.next+uint16(n)
			r.publishSplit(r.done)
		}
		r.retains, r.quiet = true, r.call == nil
		r.recordDone()
	}
	r.seen = r.next
	r.begin()
}

// recordDone tells a successor that all chains taken so far are dealt with: the driver need
// not have been shown them.
func (r *ring) recordDone() {
	if r.retains {
		storeRelease64(r.state, splitRecordState(r.done))
	}
}

// lookSplit reads the driver's avail index.
func (r *ring) lookSplit() int {
	// An acquire; pairs with the driver's release of avail.idx (virtio 1.2
	// section 2.7.13.3): the entries below it are complete. The aligned word
	// that holds it is read, for there is no 16-bit atomic; the other half may
	// be the flags or an entry.
	at := uintptr(r.avail) + 2
	word := atomic.LoadUint32((*uint32)(foreignPointer(at &^ 3)))
	r.seen = uint16(word >> (8 * (at & 2)))
	n := r.seen - r.next
	if uint32(n) > r.num {
		return r.broken(faultIndexJump, uint64(r.next), uint64(r.seen))
	}
	return int(n)
}

// peekSplit is peek: one short loop lets the cache misses of a whole batch
// overlap.
func (r *ring) peekSplit(n int) int {
	avail := unsafe.Add(r.avail, 4)
	pos := uint32(r.next)
	for i := range r.heads[:n] {
		id := uint32(*(*uint16)(unsafe.Add(avail, uintptr((pos+uint32(i))&r.mask)*2)))
		if id >= r.num {
			return r.stopAtBadHead(i, id)
		}
		h := &r.heads[i]
		h.id = id
		h.addr, h.n, h.flags, h.next = readDesc(unsafe.Add(r.desc, uintptr(id)*descSize))
	}
	return n
}

// peekFresh is peekSplit from the last chain to the first, for a ring that the driver
// fills shortly before it is read. A core that sees lines being read upwards fetches
// those that follow: the driver is about to write them, and has to take them back.
func (r *ring) peekBackward(n int) int {
	avail, desc, mask, num := unsafe.Add(r.avail, 4), r.desc, r.mask, r.num
	pos := uint32(r.next)
	heads := r.heads[:n]
	bad, badID := n, uint32(0)
	for i := len(heads) - 1; i >= 0; i-- {
		id := uint32(*(*uint16)(unsafe.Add(avail, uintptr((pos+uint32(i))&mask)*2)))
		if id >= num {
			bad, badID = i, id
			continue
		}
		h := &heads[i]
		h.addr, h.n, h.flags, h.next = readDesc(unsafe.Add(desc, uintptr(id)*descSize))
		h.id = id
	}
	if bad < n {
		return r.stopAtBadHead(bad, badID)
	}
	return n
}

// stopAtBadHead is the number of heads before the first that names no descriptor, which
// breaks the ring once it is its turn.
func (r *ring) stopAtBadHead(before int, id uint32) int {
	if before == 0 {
		r.broken(faultHead, uint64(id), uint64(r.num))
	}
	return before
}

// readDesc reads a descriptor once, in two words.
func readDesc(p unsafe.Pointer) (addr uint64, n uint32, flags, next uint16) {
	addr = *(*uint64)(p)
	w := *(*uint64)(unsafe.Add(p, 8))
	return addr, uint32(w), uint16(w >> 32), uint16(w >> 48)
}

func (r *ring) headAtSplit(at uint16) (h head, after uint16, got int) {
	if at == r.seen {
		if r.look() < 0 {
			return h, at, -1
		}
		if at == r.seen {
			return h, at, 0
		}
	}
	id := uint32(*(*uint16)(unsafe.Add(r.avail, 4+uintptr(uint32(at)&r.mask)*2)))
	if id >= r.num {
		return h, at, r.broken(faultHead, uint64(id), uint64(r.num))
	}
	h.id = id
	h.addr, h.n, h.flags, h.next = readDesc(unsafe.Add(r.desc, uintptr(id)*descSize))
	return h, at + 1, 1
}

// publishSplit stores the used index: the driver is shown the elements before end.
func (r *ring) publishSplit(end uint16) {
	r.published = end
	// A release; pairs with the driver's acquire of used.idx: elements and
	// buffers are complete. Flags and index are both ours, so that one aligned
	// word holds them.
	storeRelease32((*uint32)(r.used), r.usedFlags|uint32(end)<<16)
}

// wantsCall tells whether the driver of a split ring wants a call for what was
// published from used index old on.
func (r *ring) wantsCall(old uint16) bool {
	if r.call == nil {
		return false
	}
	// Store above, load below; the driver enables calls and then looks at
	// used.idx, in that order (virtio 1.2 section 2.7.7), so that one of the two
	// sees the other.
	fence()
	if r.callOnce {
		return true
	}
	if r.eventIndex { // virtio 1.2 section 2.7.10
		event := *(*uint16)(unsafe.Add(r.avail, 4+2*uintptr(r.num)))
		return r.published-event-1 < r.published-old
	}
	r.quiet = *(*uint16)(r.avail)&availNoInterrupt != 0
	if !r.quiet {
		return true
	}
	// A driver of old wants to hear when nothing is left (VIRTIO_F_NOTIFY_ON_EMPTY).
	return r.notifyOnEmpty && r.look() == 0
}

// armSplit: no more than num chains are ever waiting, so position next is the
// one to wait for.
func (r *ring) armSplit() {
	if r.eventIndex {
		*(*uint16)(unsafe.Add(r.used, 4+8*uintptr(r.num))) = r.next
	} else {
		r.usedFlags = 0
		storeRelease32((*uint32)(r.used), uint32(r.published)<<16)
	}
}

// disarmSplit: with the event index an old wish is left to itself: it is met
// once in 65536 chains.
func (r *ring) disarmSplit() {
	if r.eventIndex {
		r.usedFlags = 0
		return
	}
	if r.usedFlags == 0 {
		r.usedFlags = usedNoNotify
		storeRelease32((*uint32)(r.used), r.usedFlags|uint32(r.published)<<16)
	}
}
