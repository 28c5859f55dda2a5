package vhost

import (
	"fmt"
	"unsafe"

	"weft/internal/shm"
	"weft/packet"
)

// A ring seen from the device: split (virtio 1.2 section 2.7, ring_split.go) or
// packed (section 2.8, ring_packed.go). The verbs are the same, and which it is
// is asked once a batch, never once a chain.
//
//	waiting, look   how many chains the driver has made available
//	peek, headAt    read their first descriptors
//	walk            list the memory of a chain (ring_chain.go)
//	take            complete a chain: an element is written where the driver does not look
//	publish         show the driver all that was taken, and call it
//	retain          the same in a stream, but for the newest
//	arm, disarm     ask for a kick, or for none
//
// Chains are completed in the order in which they were taken (VIRTIO_F_IN_ORDER
// costs nothing), and the driver learns of it with publish, so that a device
// that dies in between has told the guest nothing. Of a split ring its successor
// must know the used index, in guest memory, and what was retained beyond it (retain);
// this, and all of a packed ring, the record knows (ring_record.go).
//
// Guest memory is read once into locals, which are checked and used. An index
// or a flag that the driver writes is read only when what was seen before is
// used up, for each reading takes the line away from the driver.
const (
	descAlign, availAlign, usedAlign = 16, 2, 4

	descSize = 16

	descNext     = 1 // flags of a descriptor
	descWrite    = 2
	descIndirect = 4
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
	next  uint16 // split: the descriptor that follows; packed: the position of this one
	id    uint32 // split: the descriptor's number; packed: buffer id, and the number of descriptors << 16
}

// ring is one vring. Worker owns.
type ring struct {
	desc, avail, used unsafe.Pointer // packed: descriptors, driver area, device area
	elems             unsafe.Pointer // where take writes: the used ring's elements, or the record's
	mem               *memory
	last              region // the region found last
	num               uint32
	mask              uint32 // of elems
	next              uint16 // chains taken, free-running; split: the avail position of the next
	seen              uint16 // chains seen; split: the driver's avail index, as last read
	done              uint16 // elements written; split: the used position of the next
	published         uint16 // elements as the driver sees them; split: its used index
	usedFlags         uint32
	packed            bool
	eventIndex        bool
	notifyOnEmpty     bool
	callOnce          bool         // call at the next publish, whatever the driver wants
	quiet             bool         // the driver wants no calls, as seen last
	retains           bool         // see retain
	unchanged         bool         // the elements written last were there already
	kick              int          // -1: none; a front end's, to wait on and nothing else
	call              *shm.Foreign // nil: none
	fault             *fault
	log               *dirtyLog     // nil: none
	flight            *inflightRing // nil: none
	index             int

	packedPosition

	heads    [packet.BatchSize]head
	segments [maxSegments]segment
}

// parts are a ring's three pieces of guest memory: name, bytes, alignment.
type part struct {
	name  string
	at    uint64
	size  uint64
	align uintptr
	into  *unsafe.Pointer
}

// open sets the ring up over guest memory. Not yet for the worker.
func (r *ring) open(v VringSpec, s DeviceSpec, mem *memory, fds []int, rec *record, flight *inflight, f *fault) (err error) {
	if err := checkVring(v, s.Features); err != nil {
		return err
	}
	r.packed = s.Features&FeatureRingPacked != 0
	r.num, r.mask = uint32(v.Num), uint32(v.Num-1)
	parts := r.splitParts(v)
	if r.packed {
		parts = r.packedParts(v)
	}
	for _, p := range parts {
		at, err := mem.user(p.at, p.size)
		if err != nil {
			return fmt.Errorf("vring %d: %s: %w", v.Index, p.name, err)
		}
		if uintptr(at)%p.align != 0 {
			return fmt.Errorf("vring %d: %s: the memory region's offset leaves it unaligned", v.Index, p.name)
		}
		*p.into = at
	}
	if err := r.openEvents(v, fds); err != nil {
		return fmt.Errorf("vring %d: %w", v.Index, err)
	}
	r.index, r.mem, r.last, r.fault = v.Index, mem, mem.regions[0], f
	r.eventIndex = s.Features&FeatureEventIndex != 0
	r.notifyOnEmpty = s.Features&FeatureNotifyOnEmpty != 0
	if r.flight, err = flight.vring(v, r.packed); err != nil {
		return fmt.Errorf("vring %d: %w", v.Index, err)
	}
	if r.packed {
		err = r.startPacked(v.LastAvail, s.Resume, rec)
	} else {
		r.startSplit(v.LastAvail, s.Resume, rec)
	}
	if err != nil {
		return err
	}
	if err := r.call.Probe(); err != nil { // the call that makes up for an earlier device's, see begin
		return fmt.Errorf("vring %d: call: %w", v.Index, err)
	}
	return nil
}

// openEvents takes the kick and call events; fds are the device's.
func (r *ring) openEvents(v VringSpec, fds []int) (err error) {
	r.kick = -1
	for _, at := range []int{v.Kick, v.Call} {
		if at >= len(fds) {
			return fmt.Errorf("descriptor %d of %d", at, len(fds))
		}
	}
	if v.Kick >= 0 {
		r.kick = fds[v.Kick]
		if err := shm.CheckEvent(r.kick); err != nil {
			return fmt.Errorf("kick: %w", err)
		}
	}
	if v.Call >= 0 {
		if r.call, err = shm.NewForeign(fds[v.Call]); err != nil {
			return fmt.Errorf("call: %w", err)
		}
	}
	return nil
}

// Place implements port.Placed.
func (r *ring) Place(worker, _ int) { r.call.Place(worker) }

// begin ends the start of a ring. Notifications are off until a worker arms
// them. A call at the end of open, and one at the first publish, make up for calls that
// an earlier device did not send.
func (r *ring) begin() {
	r.callOnce = true
	r.disarm()
}

// waiting is the number of chains that the driver has made available and that
// were not taken, of a packed ring no more than a batch; negative if the ring is
// broken.
func (r *ring) waiting() int {
	if r.seen == r.next {
		return r.look()
	}
	return int(r.seen - r.next)
}

// look reads what the driver has made available by now.
func (r *ring) look() int {
	if r.fault.set() {
		return -1
	}
	if r.packed {
		return r.lookPacked()
	}
	return r.lookSplit()
}

// peek reads the heads of the next n available chains, without taking them. n
// is at most waiting and len(heads). It returns how many are sound, the ring
// being broken if that is 0 of more.
func (r *ring) peek(n int) int {
	if r.packed {
		return r.peekPacked(n)
	}
	if r.index%2 == 1 { // the driver's transmit queues
		return r.peekBackward(n)
	}
	return r.peekSplit(n)
}

// upcoming is the position of the chain taken next, for headAt.
func (r *ring) upcoming() uint16 {
	if r.packed {
		return r.position()
	}
	return r.next
}

// headAt reads the one head at a position, and says at which position the next
// chain is. got is 0 if the driver has not made the chain available, -1 if the
// ring is broken.
func (r *ring) headAt(at uint16) (h head, after uint16, got int) {
	if r.packed {
		return r.headAtPacked(at)
	}
	return r.headAtSplit(at)
}

// take completes the next chain, n bytes having been written to its buffers. The
// driver sees it with publish.
func (r *ring) take(id, n uint32) {
	*(*uint64)(unsafe.Add(r.elems, uintptr(uint32(r.done)&r.mask)*8)) = uint64(id) | uint64(n)<<32
	r.done++
	r.next++
}

// takeAll is take for the chains of heads, the next ones, to which nothing was
// written.
func (r *ring) takeAll(heads []head) {
	elems, mask, at, unchanged := r.elems, r.mask, uint32(r.done), true
	for i := range heads {
		// Drivers whose descriptors go round in one order find in the ring what was
		// there a turn ago. What is not written stays with both cores.
		e := (*uint64)(unsafe.Add(elems, uintptr(at&mask)*8))
		if v := uint64(heads[i].id); *e != v {
			*e, unchanged = v, false
		}
		at++
	}
	r.unchanged = unchanged
	r.done += uint16(len(heads))
	r.next += uint16(len(heads))
}

// takeSizes is takeAll, sizes being the bytes written.
func (r *ring) takeSizes(heads []head, sizes []uint32) {
	elems, mask, at, unchanged := r.elems, r.mask, uint32(r.done), true
	for i := range min(len(heads), len(sizes)) {
		e := (*uint64)(unsafe.Add(elems, uintptr(at&mask)*8))
		if v := uint64(heads[i].id) | uint64(sizes[i])<<32; *e != v {
			*e, unchanged = v, false
		}
		at++
	}
	r.unchanged = unchanged
	r.done += uint16(len(heads))
	r.next += uint16(len(heads))
}

// prefetchElems fetches what the next n calls of take will write: the driver's core has
// read those lines a turn of the ring ago, and a store that waits for its line
// holds up all stores behind it. Where the last were the same as before, so will these
// be.
func (r *ring) prefetchElems(n int) {
	if r.unchanged {
		return
	}
	at := uintptr(uint32(r.done)&r.mask) * 8
	end := min(at+uintptr(n)*8, (uintptr(r.mask)+1)*8)
	prefetchSpanWrite(uintptr(r.elems)+at, uintptr(r.elems)+end)
}

// prefetchAvail fetches the avail entries of the next batch, if the driver has made it
// available long ago, as it does with buffers to receive into.
func (r *ring) prefetchAvail() {
	if r.packed || r.seen-r.next < packet.BatchSize {
		return
	}
	at := uintptr(r.avail) + 4 + uintptr(uint32(r.next)&r.mask)*2
	prefetchSpanRead(at, at+2*packet.BatchSize)
}

// maxHeldBack is the number of elements that the driver may not be shown yet while more
// are coming: between cores that share no cache, each line that goes over to the
// driver and back costs about what a frame does, whatever is in it.
const maxHeldBack = 2 * packet.BatchSize

// publish shows the driver what take has completed, and calls it at most once. With
// more to come, a few elements may be left to the publish that follows: of a small
// ring none, nor where the driver has nothing left to offer before it sees them. The
// result tells whether they were.
func (r *ring) publish(more bool) (owed bool) {
	fresh := r.done - r.published
	if fresh == 0 {
		return false
	}
	if more && uint32(fresh) < min(maxHeldBack, r.num/4) && r.waiting() > 0 {
		return true
	}
	r.publishUpTo(r.done)
	return false
}

// retainedChains is the number of used chains that a transmit ring's driver which polls is
// not shown in a stream: DPDK's frees what it has sent once all but 32 descriptors are
// used, a thousand buffers at a time, which its caches cannot hold; it then goes through
// all the memory of its pool. While 32 are missing it frees one buffer for each that it
// sends (decision 0025).
const retainedChains = packet.BatchSize

// retain is publish in a stream of a transmit ring: the driver is shown all but the
// newest chains, if it polls, and a successor knows which. Who wants to be called for
// what it gets back is waiting for it.
func (r *ring) retain() {
	if !r.retains || !r.quiet {
		r.publish(false)
		return
	}
	r.recordDone()
	if fresh := r.done - r.published; fresh >= retainedChains+maxHeldBack {
		r.publishUpTo(r.done - retainedChains)
	}
}

// publishUpTo shows the driver the elements before end, of a packed ring all.
func (r *ring) publishUpTo(end uint16) {
	wanted, old, first := false, r.published, r.first
	if r.flight != nil {
		r.inflightBegin()
	}
	if r.packed {
		wanted = r.publishPacked()
	} else {
		r.recordDone()
		r.publishSplit(end)
		wanted = r.wantsCall(old)
	}
	if r.flight != nil {
		r.inflightEnd()
	}
	if r.log != nil {
		r.logPublished(old, first)
	}
	r.prefetchElems(packet.BatchSize)
	if wanted {
		r.callOnce = false
		r.call.Signal()
		if r.call.Slow() {
			r.broken(faultWaiters, shm.SlowSignals, shm.MaxSignalNS)
		}
	}
}

// arm asks the driver for a kick with the next chain, and then looks once more:
// true says that chains are waiting, or that no kick can come.
func (r *ring) arm() bool {
	if r.kick < 0 || r.fault.set() {
		return true
	}
	if r.packed {
		r.armPacked()
	} else {
		r.armSplit()
	}
	// Pairs with the driver's barrier between making a chain available and
	// reading our wish (virtio 1.2 sections 2.7.13.4.1 and 2.8.21.3.1).
	fence()
	if r.log != nil {
		r.logArmed()
	}
	return r.look() != 0
}

// disarm takes the wish back.
func (r *ring) disarm() {
	if r.packed {
		r.disarmPacked()
	} else {
		r.disarmSplit()
	}
}

// lastAvail is where a successor goes on: after the last chain published.
func (r *ring) lastAvail() uint16 {
	if r.packed {
		return r.first
	}
	return r.next - (r.done - r.published)
}

// broken stops the whole device; it returns -1.
func (r *ring) broken(why faultKind, a, b uint64) int {
	r.fault.raise(r.index, why, a, b)
	return -1
}
