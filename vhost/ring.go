// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"fmt"
	"unsafe"

	"weft/internal/shm"
	"weft/packet"
)

// A ring is split (virtio 1.2 section 2.7, ring_split.go) or packed (section 2.8, ring_packed.go).
// This package has the device's side. Both layouts have the same operations:
//
// waiting, look   count the chains that the driver has made available
// peek, headAt    read the first descriptors of these chains
// walk            list the memory of a chain (ring_chain.go)
// take            complete a chain: write its used element, not yet visible to the driver
// publish         make completed chains visible, and call the driver
// retain          publish all but the newest chains
// arm, disarm     request kicks, or no kicks
//
// Chains are completed in order (VIRTIO_F_IN_ORDER). The driver sees a completed chain
// only after publish, so an engine that dies before publish has changed nothing for the
// guest.
//
// To resume a split ring, the next engine needs the used index, which is in guest
// memory, and the number of completed chains. To resume a packed ring, it needs the
// position. The record (shared memory that outlives the engine, ring_record.go) has both.
//
// A word of guest memory is read once into a local, which is checked and then used.
// Each read of the driver's index or flags moves a cache line from the driver's core to
// this core. The device therefore reads them again only when all known chains are
// taken.
const (
	descAlign, availAlign, usedAlign = 16, 2, 4

	descSize = 16

	descNext     = 1 // flags of a descriptor
	descWrite    = 2
	descIndirect = 4
)

// maxSegments is the largest number of memory segments that the chains of one frame may have. A chain
// with more of them breaks the device.
const maxSegments = packet.MaxSpans

type segment struct {
	addr uintptr
	n    uint32
}

// head is a copy of the first descriptor of an available chain.
type head struct {
	addr  uint64
	n     uint32
	flags uint16
	next  uint16 // next descriptor index (split ring), or own position (packed ring)
	id    uint32 // descriptor index (split ring), or buffer id | number of descriptors << 16 (packed ring)
}

// ring is one vring. After open, only the worker of the queue uses it.
type ring struct {
	desc, avail, used unsafe.Pointer // addresses of the descriptors, driver area and device area in a packed ring
	// address of the used elements that the method take writes: they are in the used ring (split) or in the
	// record (packed)
	elems         unsafe.Pointer
	mem           *memory
	cached        region // region of the last successful find
	num           uint32
	mask          uint32 // mask of an index into elems
	takenCount    uint16 // number of chains taken, modulo 65536
	availCount    uint16 // number of chains known to be available (split ring: the avail index)
	usedCount     uint16 // number of used elements written
	published     uint16 // number of used elements visible to the driver (split ring: the used index)
	usedFlags     uint32
	packed        bool
	eventIndex    bool
	notifyOnEmpty bool
	// true: the next publish calls the driver even if the driver asks for no call
	callOnce bool
	quiet    bool // the driver asked for no call at the last publish
	retains  bool // true: the method retain may leave chains unpublished
	// true: the last batch did not have to write its used elements, because memory had the same values
	// already; see takeAll
	unchanged bool
	// kick eventfd, which the switch neither reads nor writes, because the front end shares it; -1:
	// none
	kick   int
	call   *shm.Foreign // nil: no call event
	fault  *fault
	log    *dirtyLog     // nil: no dirty log
	flight *inflightRing // nil: no inflight buffer
	index  int

	packedPosition

	heads    [packet.BatchSize]head
	segments [maxSegments]segment
}

// part describes one of the three areas of a ring in guest memory: its name, address, size and
// alignment in bytes, and the field of ring that open sets to it.
type part struct {
	name    string
	addr    uint64
	size    uint64
	align   uintptr
	pointer *unsafe.Pointer
}

// open sets up the ring over guest memory. It runs before any worker uses the ring.
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
		at, err := mem.user(p.addr, p.size)
		if err != nil {
			return fmt.Errorf("vring %d: %s: %w", v.Index, p.name, err)
		}
		if uintptr(at)%p.align != 0 {
			return fmt.Errorf("vring %d: %s: the memory region's offset leaves it unaligned", v.Index, p.name)
		}
		*p.pointer = at
	}
	if err := r.openEvents(v, fds); err != nil {
		return fmt.Errorf("vring %d: %w", v.Index, err)
	}
	r.index, r.mem, r.cached, r.fault = v.Index, mem, mem.regions[0], f
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
	// Probe sends a call, which the previous device may have omitted because it died after a publish.
	if err := r.call.Probe(); err != nil {
		return fmt.Errorf("vring %d: call: %w", v.Index, err)
	}
	return nil
}

// openEvents sets the kick and call events of a ring. The Device owns the descriptors and closes them.
// The session has checked that they are eventfds. The engine cannot check that, because it opens no
// file of /proc.
func (r *ring) openEvents(v VringSpec, fds []int) error {
	r.kick = -1
	for _, at := range []int{v.Kick, v.Call} {
		if at >= len(fds) {
			return fmt.Errorf("descriptor %d of %d", at, len(fds))
		}
	}
	if v.Kick >= 0 {
		r.kick = fds[v.Kick]
	}
	if v.Call >= 0 {
		r.call = shm.NewForeign(fds[v.Call])
	}
	return nil
}

// Place implements port.Placed. It tells the call event which worker will usually signal it.
func (r *ring) Place(worker, _ int) { r.call.Place(worker) }

// begin finishes the start of a ring. It disables kicks. It makes the first publish call the driver,
// because the previous device may have died between a publish and its call.
func (r *ring) begin() {
	r.callOnce = true
	r.disarm()
}

// waiting returns the number of available chains that are not taken yet. In a packed ring it counts at
// most a batch. It returns a negative number if the device is broken.
func (r *ring) waiting() int {
	if r.availCount == r.takenCount {
		return r.look()
	}
	return int(r.availCount - r.takenCount)
}

// look reads from guest memory how many chains the driver has made available, and returns the number
// of chains that are not taken yet. It returns a negative number if the device is broken.
func (r *ring) look() int {
	if r.fault.set() {
		return -1
	}
	if r.packed {
		return r.lookPacked()
	}
	return r.lookSplit()
}

// peek reads the heads (first descriptors) of the next n available chains into r.heads, without taking
// the chains. n is at most waiting() and len(heads). peek returns the number of valid heads before the
// first invalid one. If the first head is invalid, it breaks the device and returns 0.
func (r *ring) peek(n int) int {
	if r.packed {
		return r.peekPacked(n)
	}
	if r.index%2 == 1 { // rings on which the guest transmits
		return r.peekBackward(n)
	}
	return r.peekSplit(n)
}

// upcoming returns the position of the next chain to take, as headAt needs it.
func (r *ring) upcoming() uint16 {
	if r.packed {
		return r.position()
	}
	return r.takenCount
}

// headAt reads the head of the chain at position pos, and returns the position of the chain after it
// as nextPos. foundHeads is 1 for a valid head, 0 if no chain is available, and -1 if the device is
// broken.
func (r *ring) headAt(pos uint16) (h head, nextPos uint16, foundHeads int) {
	if r.packed {
		return r.headAtPacked(pos)
	}
	return r.headAtSplit(pos)
}

// take completes the next chain. id identifies the chain to the driver, and n is the number of bytes
// that the device has written into it.
func (r *ring) take(id, n uint32) {
	*(*uint64)(unsafe.Add(r.elems, uintptr(uint32(r.usedCount)&r.mask)*8)) = uint64(id) | uint64(n)<<32
	r.usedCount++
	r.takenCount++
}

// takeAll completes one chain for each element of headIDs, from which it uses only the id. The device
// has written no bytes into these chains.
func (r *ring) takeAll(headIDs []head) {
	elems, mask, at, unchanged := r.elems, r.mask, uint32(r.usedCount), true
	for i := range headIDs {
		// If the driver uses its descriptors in a fixed order, the used element
		// already has this value. An unchanged cache line stays in the caches of both
		// cores.
		e := (*uint64)(unsafe.Add(elems, uintptr(at&mask)*8))
		if v := uint64(headIDs[i].id); *e != v {
			*e, unchanged = v, false
		}
		at++
	}
	r.unchanged = unchanged
	r.usedCount += uint16(len(headIDs))
	r.takenCount += uint16(len(headIDs))
}

// takeSizes completes one chain for each element of headIDs, from which it uses only the id.
// writtenBytes[i] is the number of bytes that the device has written into chain i.
func (r *ring) takeSizes(headIDs []head, writtenBytes []uint32) {
	elems, mask, at, unchanged := r.elems, r.mask, uint32(r.usedCount), true
	for i := range min(len(headIDs), len(writtenBytes)) {
		e := (*uint64)(unsafe.Add(elems, uintptr(at&mask)*8))
		if v := uint64(headIDs[i].id) | uint64(writtenBytes[i])<<32; *e != v {
			*e, unchanged = v, false
		}
		at++
	}
	r.unchanged = unchanged
	r.usedCount += uint16(len(headIDs))
	r.takenCount += uint16(len(headIDs))
}

// prefetchElems prefetches the next n used elements for writing. It does nothing if the last batch did not
// have to write its used elements, because memory had the same values already. The next batch probably does
// not have to write them either.
func (r *ring) prefetchElems(n int) {
	if r.unchanged {
		return
	}
	at := uintptr(uint32(r.usedCount)&r.mask) * 8
	end := min(at+uintptr(n)*8, (uintptr(r.mask)+1)*8)
	prefetchSpanWrite(uintptr(r.elems)+at, uintptr(r.elems)+end)
}

// prefetchAvail prefetches the avail entries of one batch, if the driver has made a whole batch
// available. skip is the number of available chains before this batch.
func (r *ring) prefetchAvail(skip uint16) {
	if r.packed || r.availCount-r.takenCount < skip+packet.BatchSize {
		return
	}
	at := uintptr(r.avail) + 4 + uintptr(uint32(r.takenCount+skip)&r.mask)*2
	prefetchSpanRead(at, at+2*packet.BatchSize)
}

// maxHeldBack is the largest number of used elements that publish may leave unpublished until its next
// call. Each publish moves the cache line of the used index between cores, which costs about as much as
// forwarding a frame. With more elements in one publish, the line moves less often.
const maxHeldBack = 2 * packet.BatchSize

// publish makes completed chains visible to the driver, and calls the driver at most once. pending says
// that the caller will soon call publish again. publish may then leave up to maxHeldBack used elements
// unpublished until that call. owed reports whether it has left any.
func (r *ring) publish(pending bool) (owed bool) {
	fresh := r.usedCount - r.published
	if fresh == 0 {
		return false
	}
	if pending && uint32(fresh) < min(maxHeldBack, r.num/4) && r.waiting() > 0 {
		return true
	}
	r.publishUpTo(r.usedCount)
	return false
}

// retainedChains is the number of completed chains that retain leaves unpublished if the driver polls. The
// driver counts their descriptors as in use. If fewer than 32 descriptors are in use, DPDK's driver frees
// the buffers of transmitted frames in bulk, which spoils its caches. Otherwise it frees one buffer for
// each buffer that it sends (decision 0025).
const retainedChains = packet.BatchSize

// retain ends a batch of a transmit ring. It may leave up to retainedChains+maxHeldBack completed
// chains unpublished, and records the number of completed chains for the next engine. If the driver
// wants calls, retain publishes all chains.
func (r *ring) retain() {
	if !r.retains || !r.quiet {
		r.publish(false)
		return
	}
	r.recordDone()
	if fresh := r.usedCount - r.published; fresh >= retainedChains+maxHeldBack {
		r.publishUpTo(r.usedCount - retainedChains)
	}
}

// publishUpTo publishes the used elements of a split ring up to the index end-1. In a packed ring it
// publishes all completed chains.
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

// arm requests a kick for the next chain, and then looks for chains once more. It returns true if the
// worker must not sleep: chains are waiting, the guest cannot send a kick, or the device is broken.
func (r *ring) arm() bool {
	if r.kick < 0 || r.fault.set() {
		return true
	}
	if r.packed {
		r.armPacked()
	} else {
		r.armSplit()
	}
	// Pairs with the driver's barrier between publishing a chain and reading the kick
	// request (virtio 1.2 sections 2.7.13.4.1 and 2.8.21.3.1).
	fence()
	if r.log != nil {
		r.logArmed()
	}
	return r.look() != 0
}

// disarm tells the driver to send no kicks.
func (r *ring) disarm() {
	if r.packed {
		r.disarmPacked()
	} else {
		r.disarmSplit()
	}
}

// lastAvail returns the position of the oldest chain that is not published. The next engine continues
// there.
func (r *ring) lastAvail() uint16 {
	if r.packed {
		return r.first
	}
	return r.takenCount - (r.usedCount - r.published)
}

// broken stores a fault, which breaks the whole device, and returns -1. The values a and b appear in the
// text of the fault.
func (r *ring) broken(reason faultKind, a, b uint64) int {
	r.fault.raise(r.index, reason, a, b)
	return -1
}
