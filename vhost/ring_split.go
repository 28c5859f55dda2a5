// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"sync/atomic"
	"unsafe"
)

// In a split ring (virtio 1.2 section 2.7) the driver owns the descriptor table and
// the avail ring, and the device owns the used ring. The driver sees used elements
// only after publish has moved the used index.
const (
	availNoInterrupt = 1 // flag of the avail ring
	usedNoNotify     = 1 // flag of the used ring
)

func (r *ring) splitParts(v VringSpec) []part {
	num := uint64(v.Num)
	return []part{ // used_event follows the avail ring, avail_event follows the used ring
		{"descriptors", v.Desc, descSize * num, descAlign, &r.desc},
		{"avail ring", v.Avail, 4 + 2*num + 2, availAlign, &r.avail},
		{"used ring", v.Used, 4 + 8*num + 2, usedAlign, &r.used},
	}
}

// startSplit sets the position of a split ring. It publishes the chains that the previous engine has
// completed but not published.
func (r *ring) startSplit(lastAvail uint16, resume bool, rec *record) {
	r.elems = unsafe.Add(r.used, 4)
	r.published = uint16(atomic.LoadUint32((*uint32)(r.used)) >> 16) // used index of the previous engine
	r.usedCount = r.published
	r.takenCount = lastAvail
	if r.flight.started() {
		resume = true
	}
	if resume {
		r.takenCount = r.published
	}
	if r.flight != nil {
		r.returnMarked()
	} else if rec != nil && r.index%2 == 1 {
		r.state, _ = rec.vring(r.index)
		if n := splitRecordAhead(atomic.LoadUint64(r.state), r.published); resume && n <= r.num {
			r.usedCount, r.takenCount = r.usedCount+uint16(n), r.takenCount+uint16(n)
			r.publishSplit(r.usedCount)
		}
		r.retains, r.quiet = true, r.call == nil
		r.recordDone()
	}
	r.availCount = r.takenCount
	r.begin()
}

// recordDone writes the number of completed chains to the record (shared memory that outlives the engine),
// where the next engine reads it. Only rings that may leave completed chains unpublished need it.
func (r *ring) recordDone() {
	if r.retains {
		storeRelease64(r.state, splitRecordState(r.usedCount))
	}
}

// lookSplit reads the avail index and returns the number of chains not taken yet.
func (r *ring) lookSplit() int {
	// Acquire; pairs with the driver's release of avail.idx (virtio 1.2 section
	// 2.7.13.3). Go has no 16-bit atomic load, so the aligned 32-bit word is read.
	at := uintptr(r.avail) + 2
	word := atomic.LoadUint32((*uint32)(foreignPointer(at &^ 3)))
	r.availCount = uint16(word >> (8 * (at & 2)))
	n := r.availCount - r.takenCount
	if uint32(n) > r.num {
		return r.broken(faultIndexJump, uint64(r.takenCount), uint64(r.availCount))
	}
	return int(n)
}

// peekSplit does the work of peek for a split ring. The loop is short so that the cache misses of a
// whole batch overlap.
func (r *ring) peekSplit(n int) int {
	avail := unsafe.Add(r.avail, 4)
	pos := uint32(r.takenCount)
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

// peekBackward does the work of peekSplit from the last chain to the first. It is for rings on which the
// guest transmits. In ascending order, the core's own prefetcher would also fetch cache lines that the
// driver is about to write.
func (r *ring) peekBackward(n int) int {
	avail, desc, mask, num := unsafe.Add(r.avail, 4), r.desc, r.mask, r.num
	pos := uint32(r.takenCount)
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

// stopAtBadHead returns validHeads, the number of valid heads before an invalid one. id is the descriptor
// index of the invalid head. If validHeads is 0, it breaks the device.
func (r *ring) stopAtBadHead(validHeads int, id uint32) int {
	if validHeads == 0 {
		r.broken(faultHead, uint64(id), uint64(r.num))
	}
	return validHeads
}

// readDesc reads each word of a descriptor once, because the guest may change it.
func readDesc(p unsafe.Pointer) (addr uint64, n uint32, flags, next uint16) {
	addr = *(*uint64)(p)
	w := *(*uint64)(unsafe.Add(p, 8))
	return addr, uint32(w), uint16(w >> 32), uint16(w >> 48)
}

func (r *ring) headAtSplit(pos uint16) (h head, next uint16, found int) {
	if pos == r.availCount {
		if r.look() < 0 {
			return h, pos, -1
		}
		if pos == r.availCount {
			return h, pos, 0
		}
	}
	id := uint32(*(*uint16)(unsafe.Add(r.avail, 4+uintptr(uint32(pos)&r.mask)*2)))
	if id >= r.num {
		return h, pos, r.broken(faultHead, uint64(id), uint64(r.num))
	}
	h.id = id
	h.addr, h.n, h.flags, h.next = readDesc(unsafe.Add(r.desc, uintptr(id)*descSize))
	return h, pos + 1, 1
}

// publishSplit stores end as the new used index, which makes the used elements before it visible.
func (r *ring) publishSplit(end uint16) {
	r.published = end
	// Release; pairs with the driver's acquire of used.idx. The device owns the flags
	// in the same word.
	storeRelease32((*uint32)(r.used), r.usedFlags|uint32(end)<<16)
}

// wantsCall reports whether the driver of a split ring wants a call for the used elements that were
// just published. The parameter is the used index before the publish.
func (r *ring) wantsCall(old uint16) bool {
	if r.call == nil {
		return false
	}
	// Two sides synchronize here. The device stores the used index and then loads the
	// driver's request for calls. The driver stores its request and then loads used.idx
	// (virtio 1.2 section 2.7.7). Because of the fence, at least one side sees the
	// other's store.
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
	// VIRTIO_F_NOTIFY_ON_EMPTY: a legacy driver gets a call when all chains are used.
	return r.notifyOnEmpty && r.look() == 0
}

// armSplit requests a kick for the next chain. The caller then looks for chains that wait already.
func (r *ring) armSplit() {
	if r.eventIndex {
		*(*uint16)(unsafe.Add(r.used, 4+8*uintptr(r.num))) = r.takenCount
	} else {
		r.usedFlags = 0
		storeRelease32((*uint32)(r.used), uint32(r.published)<<16)
	}
}

// disarmSplit requests no kicks. With VIRTIO_F_EVENT_IDX it leaves the old event index in place, which
// causes one kick in 65536 chains.
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
