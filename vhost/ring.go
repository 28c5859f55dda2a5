package vhost

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"weft/internal/shm"
	"weft/packet"
)

// A split ring seen from the device (virtio 1.2 section 2.7). The driver owns
// the descriptor table and the avail ring, the device the used ring.
//
// Chains are completed in the order in which they were taken. Used elements are
// written as chains are taken and hidden behind the used index until publish,
// so that a device that dies in between has told the guest nothing, and the
// used index is all that its successor must know.
//
// Guest memory is read once into locals, which are checked and used. Indexes
// are free-running 16-bit counters; the index of the avail ring is read only
// when what was seen before is used up, for each reading takes the line away
// from a driver that writes it.
const (
	descAlign, availAlign, usedAlign = 16, 2, 4

	descSize = 16

	descNext     = 1 // flags of a descriptor
	descWrite    = 2
	descIndirect = 4

	availNoInterrupt = 1 // flag of the avail ring
	usedNoNotify     = 1 // flag of the used ring
)

// maxSegments bounds a chain, or all chains that one frame fills, in pieces of
// memory. A chain beyond it breaks the queue.
const maxSegments = packet.MaxSpans

type segment struct {
	addr uintptr
	n    uint32
}

// head is the first descriptor of an available chain, as read.
type head struct {
	addr  uint64
	n     uint32
	flags uint16
	next  uint16
	id    uint32
}

// ring is one vring. Worker owns.
type ring struct {
	desc, avail, used unsafe.Pointer
	mem               *memory
	last              region // the region found last
	num               uint32
	mask              uint32
	next              uint16 // avail position of the chain taken next
	seen              uint16 // the driver's avail index, as last read
	done              uint16 // used position of the next element
	published         uint16 // used index as the driver sees it
	usedFlags         uint32
	eventIndex        bool
	callOnce          bool // call at the next publish, whatever the driver wants
	kick, call        int  // -1: none
	fault             *fault
	index             int

	heads    [packet.BatchSize]head
	segments [maxSegments]segment
}

// open sets the ring up over guest memory. Not yet for the worker.
func (r *ring) open(v VringSpec, features uint64, resume bool, mem *memory, fds []int, f *fault) error {
	if err := checkVring(v); err != nil {
		return err
	}
	num := uint64(v.Num)
	var err [3]error
	r.desc, err[0] = mem.user(v.Desc, descSize*num)
	r.avail, err[1] = mem.user(v.Avail, 4+2*num+2) // used_event follows the ring
	r.used, err[2] = mem.user(v.Used, 4+8*num+2)   // avail_event too
	for i, name := range []string{"descriptors", "avail ring", "used ring"} {
		if err[i] != nil {
			return fmt.Errorf("vring %d: %s: %w", v.Index, name, err[i])
		}
	}
	for _, p := range []struct {
		fd   int
		into *int
	}{{v.Kick, &r.kick}, {v.Call, &r.call}} {
		*p.into = -1
		if p.fd >= len(fds) {
			return fmt.Errorf("vring %d: descriptor %d of %d", v.Index, p.fd, len(fds))
		}
		if p.fd >= 0 {
			*p.into = fds[p.fd]
		}
	}
	r.index, r.mem, r.last, r.fault = v.Index, mem, mem.regions[0], f
	r.num, r.mask = uint32(num), uint32(num-1)
	r.eventIndex = features&FeatureEventIndex != 0
	r.start(v.LastAvail, resume)
	return nil
}

// start takes the ring's position. Notifications are off until a worker arms
// them, and one call makes up for what an earlier device may not have sent.
func (r *ring) start(lastAvail uint16, resume bool) {
	r.published = uint16(atomic.LoadUint32((*uint32)(r.used)) >> 16) // ours alone; a successor reads what we published
	r.done = r.published
	r.next = lastAvail
	if resume {
		r.next = r.published
	}
	r.seen, r.callOnce = r.next, true
	r.disarm()
	if r.call >= 0 {
		shm.Signal(r.call)
	}
}

// usedIndex reads a ring's used index from guest memory, which is where the ring
// goes on if nobody is left who knows better. Control only.
func usedIndex(regions []RegionSpec, fds []int, v VringSpec) (index uint16, err error) {
	mem, err := openMemory(regions, fds)
	if err != nil {
		return 0, err
	}
	defer mem.close()
	defer recoverFault(&err)()
	used, err := mem.user(v.Used, 4)
	if err != nil {
		return 0, err
	}
	return uint16(atomic.LoadUint32((*uint32)(used)) >> 16), nil // written by a device that is gone
}

// waiting is the number of chains that the driver has made available and that
// were not taken; negative if the ring is broken.
func (r *ring) waiting() int {
	if r.seen == r.next {
		return r.look()
	}
	return int(r.seen - r.next)
}

// look reads the driver's avail index.
func (r *ring) look() int {
	if r.fault.set() {
		return -1
	}
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

// peek reads the heads of the next n available chains, without taking them. n
// is at most waiting and len(heads). It returns how many are sound, the ring
// being broken if that is 0 of more. One short loop lets the cache misses of a
// whole batch overlap.
func (r *ring) peek(n int) int {
	avail := unsafe.Add(r.avail, 4)
	pos := uint32(r.next)
	for i := range r.heads[:n] {
		id := uint32(*(*uint16)(unsafe.Add(avail, uintptr((pos+uint32(i))&r.mask)*2)))
		if id >= r.num {
			if i == 0 {
				r.broken(faultHead, uint64(id), uint64(r.num))
			}
			return i
		}
		h := &r.heads[i]
		h.id = id
		h.addr, h.n, h.flags, h.next = readDesc(unsafe.Add(r.desc, uintptr(id)*descSize))
	}
	return n
}

// readDesc reads a descriptor once, in two words.
func readDesc(p unsafe.Pointer) (addr uint64, n uint32, flags, next uint16) {
	addr = *(*uint64)(p)
	w := *(*uint64)(unsafe.Add(p, 8))
	return addr, uint32(w), uint16(w >> 32), uint16(w >> 48)
}

// head reads the one head at the avail position pos.
func (r *ring) head(pos uint16) (head, bool) {
	id := uint32(*(*uint16)(unsafe.Add(r.avail, 4+uintptr(uint32(pos)&r.mask)*2)))
	if id >= r.num {
		r.broken(faultHead, uint64(id), uint64(r.num))
		return head{}, false
	}
	h := head{id: id}
	h.addr, h.n, h.flags, h.next = readDesc(unsafe.Add(r.desc, uintptr(id)*descSize))
	return h, true
}

// take completes the next chain: its used element is written, n bytes having
// been written to its buffers. The driver sees it with publish.
func (r *ring) take(id, n uint32) {
	*(*uint64)(unsafe.Add(r.used, 4+uintptr(uint32(r.done)&r.mask)*8)) = uint64(id) | uint64(n)<<32
	r.done++
	r.next++
}

// publish shows the driver what take has completed, and calls it at most once.
func (r *ring) publish() {
	if r.done == r.published {
		return
	}
	old := r.published
	r.published = r.done
	// A release; pairs with the driver's acquire of used.idx: elements and
	// buffers are complete. Flags and index are both ours, so that one aligned
	// word holds them.
	storeRelease32((*uint32)(r.used), r.usedFlags|uint32(r.done)<<16)
	if r.call < 0 {
		return
	}
	// Store above, load below; the driver enables calls and then looks at
	// used.idx, in that order (virtio 1.2 section 2.7.7), so that one of the two
	// sees the other.
	fence()
	if r.wantsCall(old) {
		r.callOnce = false
		shm.Signal(r.call)
	}
}

func (r *ring) wantsCall(old uint16) bool {
	if r.callOnce {
		return true
	}
	if r.eventIndex { // virtio 1.2 section 2.7.10
		event := *(*uint16)(unsafe.Add(r.avail, 4+2*uintptr(r.num)))
		return r.done-event-1 < r.done-old
	}
	return *(*uint16)(r.avail)&availNoInterrupt == 0
}

// arm asks the driver for a kick with the next chain, and then looks once more:
// true says that chains are waiting, or that no kick can come. No more than
// num chains are ever waiting, so position next is the one to wait for.
func (r *ring) arm() bool {
	if r.kick < 0 || r.fault.set() {
		return true
	}
	if r.eventIndex {
		*(*uint16)(unsafe.Add(r.used, 4+8*uintptr(r.num))) = r.next
	} else {
		r.usedFlags = 0
		storeRelease32((*uint32)(r.used), uint32(r.published)<<16)
	}
	// Pairs with the driver's barrier between avail.idx and reading our wish
	// (virtio 1.2 section 2.7.13.4.1).
	fence()
	return r.look() != 0
}

// disarm takes the wish back. With the event index an old wish is left to
// itself: it is met once in 65536 chains.
func (r *ring) disarm() {
	if r.eventIndex {
		r.usedFlags = 0
		return
	}
	if r.usedFlags == 0 {
		r.usedFlags = usedNoNotify
		storeRelease32((*uint32)(r.used), r.usedFlags|uint32(r.published)<<16)
	}
}

// lastAvail is where a successor goes on: after the last chain published.
func (r *ring) lastAvail() uint16 { return r.next - (r.done - r.published) }

// walk lists the memory of a chain in r.segments, from number n on. write says
// which direction all its descriptors must have. It returns the new number of
// segments and the bytes added; -1, the ring being broken, for a chain that no
// driver may make (virtio 1.2 sections 2.7.5 and 2.7.5.3.1).
func (r *ring) walk(h *head, write bool, n int) (int, uint64) {
	addr, length, flags, next := h.addr, h.n, h.flags, h.next
	total := uint64(0)
	for left := r.num; ; {
		if flags&descIndirect != 0 {
			if flags&descNext != 0 {
				return r.broken(faultIndirectNext, uint64(h.id), 0), 0
			}
			var more uint64
			n, more = r.walkTable(addr, length, write, n)
			return n, total + more
		}
		if n = r.segment(addr, length, flags, write, n); n < 0 {
			return -1, 0
		}
		total += uint64(length)
		if flags&descNext == 0 {
			return n, total
		}
		if uint32(next) >= r.num {
			return r.broken(faultNext, uint64(next), uint64(r.num)), 0
		}
		if left--; left == 0 {
			return r.broken(faultLoop, uint64(h.id), uint64(r.num)), 0
		}
		addr, length, flags, next = readDesc(unsafe.Add(r.desc, uintptr(next)*descSize))
	}
}

// walkTable is walk for an indirect table at a guest address.
func (r *ring) walkTable(table uint64, length uint32, write bool, n int) (int, uint64) {
	if length == 0 || length%descSize != 0 {
		return r.broken(faultTable, table, uint64(length)), 0
	}
	size := length / descSize
	total := uint64(0)
	at := uint32(0)
	for left := size; ; {
		p, got := r.mem.find(&r.last, table+uint64(at)*descSize, descSize)
		if got != descSize {
			return r.broken(faultAddress, table+uint64(at)*descSize, descSize), 0
		}
		addr, length, flags, next := readDesc(foreignPointer(p))
		if flags&descIndirect != 0 {
			return r.broken(faultNested, table, uint64(at)), 0
		}
		if n = r.segment(addr, length, flags, write, n); n < 0 {
			return -1, 0
		}
		total += uint64(length)
		if flags&descNext == 0 {
			return n, total
		}
		if uint32(next) >= size {
			return r.broken(faultNext, uint64(next), uint64(size)), 0
		}
		if left--; left == 0 {
			return r.broken(faultLoop, table, uint64(size)), 0
		}
		at = uint32(next)
	}
}

// segment checks one descriptor and adds its memory, split where it crosses from
// one region into the next.
func (r *ring) segment(addr uint64, length uint32, flags uint16, write bool, n int) int {
	if write != (flags&descWrite != 0) {
		return r.broken(faultDirection, addr, uint64(flags))
	}
	if length == 0 {
		return r.broken(faultEmpty, addr, 0)
	}
	for length > 0 {
		p, got := r.mem.find(&r.last, addr, length)
		if got == 0 {
			return r.broken(faultAddress, addr, uint64(length))
		}
		if n == maxSegments {
			return r.broken(faultTooLong, addr, maxSegments)
		}
		r.segments[n] = segment{addr: p, n: got}
		n++
		addr += uint64(got)
		length -= got
	}
	return n
}

// broken stops the whole device; it returns -1.
func (r *ring) broken(why faultKind, a, b uint64) int {
	r.fault.raise(r.index, why, a, b)
	return -1
}
