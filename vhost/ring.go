// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"fmt"
	"unsafe"

	"weft/internal/shm"
	"weft/packet"
)

// A ring from the device's side is split (virtio 1.2 section 2.7, ring_split.go) or
// packed (section 2.8, ring_packed.go). Both layouts have the same operations. The
// layout is checked once for a batch, never for each chain.
//
//	waiting, look   count the chains that the driver has made available
//	peek, headAt    read the first descriptors of these chains
//	walk            list the memory of a chain (ring_chain.go)
//	take            complete a chain: write a used element where the driver does not see it yet
//	publish         show the driver all completed chains, and call it
//	retain          publish all but the newest chains while frames keep coming
//	arm, disarm     request kicks, or request none
//
// Chains are completed in the order in which they were taken, so VIRTIO_F_IN_ORDER
// costs nothing. The driver sees a completed chain only after publish, so an engine
// that dies before publish has changed nothing for the guest.
//
// To resume a split ring, the next engine needs the used index, which is in guest
// memory, and the number of chains that retain has not published. To resume a packed
// ring, it needs the whole position. The record holds the number and the position
// (ring_record.go).
//
// A word of guest memory is read once into a local, which is checked and then used.
// An index or a flag that the driver writes is read again only when the chains of the
// last read are used up, because each read takes the cache line from the driver's
// core.
const (
	descAlign, availAlign, usedAlign = 16, 2, 4

	descSize = 16

	descNext     = 1 // flags of a descriptor
	descWrite    = 2
	descIndirect = 4
)

// maxSegments is the largest number of pieces of memory in one chain, or in all
// chains that one frame fills. A longer chain breaks the device.
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
	next  uint16 // index of the next descriptor (split ring), or position of this descriptor (packed ring)
	id    uint32 // descriptor index (split ring), or buffer id | number of descriptors << 16 (packed ring)
}

// ring is one vring. The worker owns it after open.
type ring struct {
	desc, avail, used unsafe.Pointer // addresses of the descriptors, driver area and device area in a packed ring
	elems             unsafe.Pointer // address of the array into which the method take writes used elements: the used ring, or the record
	mem               *memory
	last              region // region of the last successful find
	num               uint32
	mask              uint32 // mask of an index into elems
	next              uint16 // number of chains taken, modulo 65536; in a split ring the next avail position
	seen              uint16 // number of chains seen; in a split ring the driver's avail index at the last read
	done              uint16 // number of used elements written; in a split ring the next used position
	published         uint16 // number of used elements visible to the driver; in a split ring the used index
	usedFlags         uint32
	packed            bool
	eventIndex        bool
	notifyOnEmpty     bool
	callOnce          bool         // the next publish sends a call, whether or not the driver wants one
	quiet             bool         // the driver did not want a call at the last publish
	retains           bool         // retain may hold chains back
	unchanged         bool         // the last used elements written were the same as those of the previous lap
	kick              int          // kick eventfd, or -1; never read or written, because the front end shares it
	call              *shm.Foreign // nil: no call event
	fault             *fault
	log               *dirtyLog     // nil: no dirty log
	flight            *inflightRing // nil: no inflight buffer
	index             int

	packedPosition

	heads    [packet.BatchSize]head
	segments [maxSegments]segment
}

// part is one of the three areas of guest memory of a ring: its name, address, size
// and alignment in bytes, and the pointer to set.
type part struct {
	name  string
	at    uint64
	size  uint64
	align uintptr
	into  *unsafe.Pointer
}

// open sets the ring up in guest memory. No worker uses the ring yet.
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
	if err := r.call.Probe(); err != nil { // the previous device may have died before its last call, so the new one sends two, see begin
		return fmt.Errorf("vring %d: call: %w", v.Index, err)
	}
	return nil
}

// openEvents sets the kick and call events of a ring. The descriptors stay in fds,
// which the device owns.
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

// begin finishes the start of a ring. It disables kicks until a worker arms the ring.
// The previous device may have died before it called the driver, so the ring sends
// two calls in any case: one at the end of open, one at the first publish.
func (r *ring) begin() {
	r.callOnce = true
	r.disarm()
}

// waiting returns the number of available chains that the device has not taken. It
// returns at most a batch for a packed ring, and a negative number if the device is
// broken.
func (r *ring) waiting() int {
	if r.seen == r.next {
		return r.look()
	}
	return int(r.seen - r.next)
}

// look reads how many chains the driver has made available, and returns the number of
// chains not taken.
func (r *ring) look() int {
	if r.fault.set() {
		return -1
	}
	if r.packed {
		return r.lookPacked()
	}
	return r.lookSplit()
}

// peek reads the heads of the next n available chains without taking the chains. n is
// at most waiting() and len(heads). It returns the number of valid heads before the
// first invalid one. If the first head is invalid, it breaks the device and returns
// 0.
func (r *ring) peek(n int) int {
	if r.packed {
		return r.peekPacked(n)
	}
	if r.index%2 == 1 { // rings on which the guest transmits
		return r.peekBackward(n)
	}
	return r.peekSplit(n)
}

// upcoming returns the position of the next chain to take, as the argument of headAt.
func (r *ring) upcoming() uint16 {
	if r.packed {
		return r.position()
	}
	return r.next
}

// headAt reads the head of the chain at a position. after is the position of the
// following chain. got is 1, or 0 if the driver has not made the chain available, or
// -1 if the device is broken.
func (r *ring) headAt(at uint16) (h head, after uint16, got int) {
	if r.packed {
		return r.headAtPacked(at)
	}
	return r.headAtSplit(at)
}

// take completes the next chain, to whose buffers the device has written n bytes. The
// driver sees the chain after publish.
func (r *ring) take(id, n uint32) {
	*(*uint64)(unsafe.Add(r.elems, uintptr(uint32(r.done)&r.mask)*8)) = uint64(id) | uint64(n)<<32
	r.done++
	r.next++
}

// takeAll completes the next chains, whose heads the caller has peeked. No bytes were
// written to their buffers.
func (r *ring) takeAll(heads []head) {
	elems, mask, at, unchanged := r.elems, r.mask, uint32(r.done), true
	for i := range heads {
		// A driver that uses its descriptors in a fixed order gets the same used
		// elements in every lap of the ring. An element with the right value is not
		// written again, so its cache line stays in the caches of both cores.
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

// takeSizes completes the next chains, whose heads the caller has peeked. sizes are
// the numbers of bytes written to each chain.
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

// prefetchElems prefetches, for writing, the used elements of the next n calls of
// take. The driver's core read these cache lines in the last lap, and a store that
// waits for its line delays all later stores. If the last elements were unchanged,
// the next ones probably are too, and nothing is prefetched.
func (r *ring) prefetchElems(n int) {
	if r.unchanged {
		return
	}
	at := uintptr(uint32(r.done)&r.mask) * 8
	end := min(at+uintptr(n)*8, (uintptr(r.mask)+1)*8)
	prefetchSpanWrite(uintptr(r.elems)+at, uintptr(r.elems)+end)
}

// prefetchAvail prefetches the avail entries of the next batch if the driver has
// already made a batch available, which is usual for receive buffers.
func (r *ring) prefetchAvail() {
	if r.packed || r.seen-r.next < packet.BatchSize {
		return
	}
	at := uintptr(r.avail) + 4 + uintptr(uint32(r.next)&r.mask)*2
	prefetchSpanRead(at, at+2*packet.BatchSize)
}

// maxHeldBack is the number of used elements that publish may hold back while more
// are coming. Publishing them together saves moves of the used index's cache line:
// between cores that share no cache, one move to the driver and back costs about as
// much as forwarding a frame.
const maxHeldBack = 2 * packet.BatchSize

// publish shows the driver all completed chains and calls it at most once. If more is
// true, another publish follows soon, and this one may hold back up to maxHeldBack
// used elements. It holds back none in a small ring, nor if the driver has no more
// chains available. owed reports whether it held elements back.
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

// retainedChains is the number of used chains that retain does not show to the
// polling driver of a transmit ring. DPDK's driver frees transmitted buffers in bulk
// once all but 32 descriptors are used: a thousand buffers at a time, more than its
// caches hold, so it cycles through all the memory of its pool. While 32 or more
// descriptors are unused, it frees one buffer for each that it sends (decision 0025).
const retainedChains = packet.BatchSize

// retain replaces publish on a transmit ring while frames keep coming. If the driver
// polls, retain publishes all but the newest chains, and records the number of
// completed chains for the next engine. A driver that wants calls is waiting for its
// buffers, so retain publishes all chains for it.
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

// publishUpTo shows the driver the used elements before element number end. In a
// packed ring it always shows all elements.
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

// arm requests a kick for the next chain, and then looks at the ring once more. It
// returns true if the worker must not sleep: chains are waiting, or no kick can come.
func (r *ring) arm() bool {
	if r.kick < 0 || r.fault.set() {
		return true
	}
	if r.packed {
		r.armPacked()
	} else {
		r.armSplit()
	}
	// This fence pairs with the driver's barrier between making a chain available and
	// reading whether the device wants a kick (virtio 1.2 sections 2.7.13.4.1 and
	// 2.8.21.3.1).
	fence()
	if r.log != nil {
		r.logArmed()
	}
	return r.look() != 0
}

// disarm requests that the driver sends no more kicks.
func (r *ring) disarm() {
	if r.packed {
		r.disarmPacked()
	} else {
		r.disarmSplit()
	}
}

// lastAvail returns the position of the first chain that is not published. The next
// engine continues there.
func (r *ring) lastAvail() uint16 {
	if r.packed {
		return r.first
	}
	return r.next - (r.done - r.published)
}

// broken raises a fault, which breaks the whole device, and returns -1.
func (r *ring) broken(why faultKind, a, b uint64) int {
	r.fault.raise(r.index, why, a, b)
	return -1
}
