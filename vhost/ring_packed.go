// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// A packed ring (virtio 1.2 section 2.8) has one ring of descriptors, and an event suppression area for
// each side. The driver makes descriptors available, and the device overwrites them with used elements. A
// position has a descriptor's index in its lower 15 bits and the wrap counter in bit 15.
//
// An overwritten descriptor cannot be read again. If an engine died after it has written half of the used
// elements, the next engine could not write the others. The method take therefore writes used elements to
// the record (shared memory that outlives the engine). The method publish copies them to the guest, the
// first one last. The driver reads the ring in order, so it sees all of them or none.
const (
	packedWrap  = 1 << 15
	packedAvail = 1 << 7 // flags of a descriptor
	packedUsed  = 1 << 15

	eventsOff  = 1 << 16 // values of the upper half of an event suppression structure
	eventsAt   = 2 << 16
	eventsMask = 3 << 16
)

// packedPosition is the state of a ring that only a packed ring needs.
type packedPosition struct {
	state *uint64 // state word in the record
	first uint16  // position of the oldest unpublished chain
	pos   uint16  // result of the last call of the method position
	// value of usedCount when pos was computed; pos is stale once usedCount differs
	counted uint16
	headsAt uint16 // value of takenCount when heads was filled
	headEnd uint16 // position after the last chain in heads
	private []uint64
}

func (r *ring) packedParts(v VringSpec) []part {
	return []part{
		{"descriptors", v.Desc, descSize * uint64(v.Num), descAlign, &r.desc},
		{"driver area", v.Avail, 4, packedAreaAlign, &r.avail},
		{"device area", v.Used, 4, packedAreaAlign, &r.used},
	}
}

const packedAreaAlign = 4

// startPacked sets the position of a packed ring. If the previous engine has died during a publish, it
// first finishes the publish, with the used elements in the record or, without a record, in the inflight
// buffer. Without both, the position is lastAvail.
func (r *ring) startPacked(lastAvail uint16, resume bool, rec *record) error {
	r.mask = ceilPowerOfTwo(r.num) - 1
	if rec != nil {
		r.state, r.elems = rec.vring(r.index)
	} else {
		r.private = make([]uint64, r.mask+2)
		r.state, r.elems = &r.private[0], unsafe.Pointer(&r.private[1])
	}
	r.first = lastAvail
	if state := atomic.LoadUint64(r.state); resume && state&recordValid != 0 {
		if err := r.finishPublish(state); err != nil {
			return fmt.Errorf("vring %d: record: %w", r.index, err)
		}
	} else if r.flight.started() {
		if err := r.resumeInflight(); err != nil {
			return fmt.Errorf("vring %d: inflight buffer: %w", r.index, err)
		}
	}
	if uint32(r.first&^packedWrap) >= r.num {
		return fmt.Errorf("vring %d: position %d of %d", r.index, r.first&^packedWrap, r.num)
	}
	r.pos, r.counted, r.takenCount, r.availCount = r.first, r.usedCount, r.usedCount, r.usedCount
	r.headsAt, r.headEnd = r.takenCount-1, r.first
	storeRelease64(r.state, packedRecordState(r.first, r.published, 0))
	if r.flight != nil {
		r.flight.startPacked(r.first)
	}
	r.usedFlags = 0
	r.begin()
	return nil
}

// finishPublish finishes a publish during which the previous engine has died. state is the ring's state
// word in the record. If the first descriptor is no longer available, the publish was complete, and
// finishPublish writes nothing to the guest.
func (r *ring) finishPublish(state uint64) error {
	var n uint16
	r.first, r.published, n = parseRecordState(state)
	r.usedCount = r.published + n
	if uint32(r.first&^packedWrap) >= r.num || uint32(n) > r.mask+1 {
		return fmt.Errorf("position %d with %d elements in a ring of %d", r.first&^packedWrap, n, r.num)
	}
	after := r.first
	for i := r.published; i != r.usedCount; i++ {
		count := r.element(i) >> 16 & 0xffff
		if count == 0 || count > uint64(r.num) {
			return fmt.Errorf("element of %d descriptors in a ring of %d", count, r.num)
		}
		after = r.advance(after, uint32(count))
	}
	if n > 0 && available(atomic.LoadUint32(r.idFlags(r.first)), r.first) {
		r.writeUsed()
	}
	r.first, r.published = after, r.usedCount
	return nil
}

// advance returns the position that is n descriptors after pos.
func (r *ring) advance(pos uint16, n uint32) uint16 {
	place, wrap := uint32(pos&^packedWrap)+n, pos&packedWrap
	if place >= r.num {
		place, wrap = place-r.num, wrap^packedWrap
	}
	return uint16(place) | wrap
}

// position returns the position of the next chain to take.
func (r *ring) position() uint16 {
	switch taken, read := r.takenCount-r.headsAt, r.availCount-r.headsAt; {
	case taken == read:
		r.pos, r.counted = r.headEnd, r.usedCount
	case taken < read:
		r.pos, r.counted = r.heads[taken].next, r.usedCount
	}
	for ; r.counted != r.usedCount; r.counted++ {
		r.pos = r.advance(r.pos, uint32(r.element(r.counted)>>16&0xffff))
	}
	return r.pos
}

func (r *ring) element(i uint16) uint64 {
	return *(*uint64)(unsafe.Add(r.elems, uintptr(uint32(i)&r.mask)*8))
}

func (r *ring) packedDesc(pos uint16) unsafe.Pointer {
	return unsafe.Add(r.desc, uintptr(pos&^packedWrap)*descSize)
}

// idFlags returns the address of the 32-bit word of a packed descriptor that has its buffer id and
// flags.
func (r *ring) idFlags(pos uint16) *uint32 { return (*uint32)(unsafe.Add(r.packedDesc(pos), 12)) }

// available reports whether the driver has made the descriptor at position pos available (virtio 1.2
// section 2.8.1). idFlags is the descriptor's word with buffer id and flags.
func available(idFlags uint32, pos uint16) bool {
	flags := idFlags >> 16
	return flags&packedAvail != 0 == (pos&packedWrap != 0) && flags&packedUsed != 0 != (pos&packedWrap != 0)
}

// lookPacked reads the heads of at most a batch of available chains, and returns
// their number.
func (r *ring) lookPacked() int { return r.scan(len(r.heads)) }

// room returns how many descriptors the driver may have made available from position pos on. These are not
// the descriptors that the device has taken but not published. Because of this limit, the device never
// takes more chains than fit into the ring.
func (r *ring) room(pos uint16) uint32 {
	ahead := uint32(pos&^packedWrap) - uint32(r.first&^packedWrap)
	if (pos^r.first)&packedWrap != 0 {
		ahead += r.num
	}
	return r.num - ahead
}

// peekPacked does the work of peek for a packed ring. Usually lookPacked has already read the heads.
func (r *ring) peekPacked(n int) int {
	if r.headsAt != r.takenCount {
		return max(r.scan(n), 0)
	}
	return n
}

func (r *ring) scan(limit int) int {
	at, n := r.position(), 0
	room := r.room(at)
	for ; n < limit; n++ {
		after, got := r.readHead(at, room, &r.heads[n])
		if got < 0 && n == 0 {
			return r.broken(faultLoop, uint64(at&^packedWrap), uint64(r.num))
		}
		if got <= 0 {
			break
		}
		at = after
		room -= r.heads[n].id >> 16
	}
	r.headsAt, r.availCount, r.headEnd = r.takenCount, r.takenCount+uint16(n), at
	return n
}

func (r *ring) headAtPacked(pos uint16) (h head, next uint16, found int) {
	next, found = r.readHead(pos, r.room(pos), &h)
	if found < 0 {
		r.broken(faultLoop, uint64(pos&^packedWrap), uint64(r.num))
	}
	return h, next, found
}

// readHead reads the first descriptor of the chain at position pos into h. It counts the descriptors
// of the chain, and reads the buffer id from the last one (virtio 1.2 section 2.8.6). It returns the
// position after the chain. foundChains is 1 for a valid chain, 0 if no chain is available, and -1 if
// the chain has more than room descriptors.
func (r *ring) readHead(pos uint16, room uint32, h *head) (next uint16, foundChains int) {
	// Acquire; pairs with the driver's release of the first descriptor's flags, which
	// it writes last (virtio 1.2 section 2.8.21.1).
	if room == 0 || !available(atomic.LoadUint32(r.idFlags(pos)), pos) {
		return pos, 0
	}
	var id uint16
	h.addr, h.n, id, h.flags = readDesc(r.packedDesc(pos))
	h.next = pos
	count := uint32(1)
	next = r.advance(pos, 1)
	for flags := h.flags; flags&descNext != 0 && flags&descIndirect == 0; next = r.advance(next, 1) {
		if count++; count > room {
			return pos, -1
		}
		word := *r.idFlags(next)
		id, flags = uint16(word), uint16(word>>16)
	}
	h.id = uint32(id) | count<<16
	return next, 1
}

// publishPacked writes the used elements to the guest, and reports whether the driver wants a call. It
// marks the beginning and the end of the write in the record, so that the next engine can finish an
// interrupted write.
func (r *ring) publishPacked() bool {
	storeRelease64(r.state, packedRecordState(r.first, r.published, r.usedCount-r.published))
	old := r.first
	r.first, r.published = r.writeUsed(), r.usedCount
	storeRelease64(r.state, packedRecordState(r.first, r.published, 0))
	if r.call == nil {
		return false
	}
	fence() // orders the stores above before the load of the driver area (virtio 1.2 section 2.8.14)
	if r.callOnce {
		return true
	}
	word := *(*uint32)(r.avail)
	switch {
	case word&eventsMask == eventsOff:
		return false
	case word&eventsMask != eventsAt || !r.eventIndex:
		return true
	}
	// The driver wants a call if its event position is among the written descriptors.
	// Positions are compared by their distance from the end of the written part,
	// because the ring wraps around.
	end, begin, event := uint16(r.first&^packedWrap), uint16(old&^packedWrap), uint16(word)&^packedWrap
	if end <= begin {
		begin -= uint16(r.num)
	}
	if uint16(word)&packedWrap != r.first&packedWrap {
		event -= uint16(r.num)
	}
	return end-event-1 < end-begin
}

// writeUsed writes the completed but unpublished used elements to the guest, the first one last. It
// returns the position after them.
func (r *ring) writeUsed() uint16 {
	at := r.first
	head, headElement := at, r.element(r.published)
	at = r.advance(at, uint32(headElement>>16&0xffff))
	for i := r.published + 1; i != r.usedCount; i++ {
		e := r.element(i)
		*(*uint64)(unsafe.Add(r.packedDesc(at), 8)) = usedElement(e, at)
		at = r.advance(at, uint32(e>>16&0xffff))
	}
	// Release; pairs with the driver's acquire of the flags.
	storeRelease64((*uint64)(unsafe.Add(r.packedDesc(head), 8)), usedElement(headElement, head))
	return at
}

// usedElement returns the second half of a used descriptor: length, buffer id and flags. e is an
// element as take stores it, and pos its position in the ring.
func usedElement(e uint64, pos uint16) uint64 {
	flags := uint64(0)
	if pos&packedWrap != 0 {
		flags = packedAvail | packedUsed
	}
	if e>>32 != 0 {
		flags |= descWrite
	}
	return e>>32 | e&0xffff<<32 | flags<<48
}

// armPacked requests a kick for the next chain.
func (r *ring) armPacked() {
	word := uint32(0)
	if r.eventIndex {
		word = eventsAt | uint32(r.position())
	}
	r.usedFlags = 0
	storeRelease32((*uint32)(r.used), word)
}

func (r *ring) disarmPacked() {
	if r.usedFlags == 0 {
		r.usedFlags = eventsOff
		storeRelease32((*uint32)(r.used), eventsOff)
	}
}

func ceilPowerOfTwo(n uint32) uint32 {
	p := uint32(1)
	for p < n {
		p <<= 1
	}
	return p
}
