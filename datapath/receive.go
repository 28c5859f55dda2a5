// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/conntrack"
	"weft/packet"
	"weft/port"
)

// reception has the receive queue of the current batch, and says which frames of the batch are
// still to be executed. Sets of frames have one bit for each frame. The function receive fills
// it, and finish resets it.
type reception struct {
	rxInUse *rxQueue        // receive queue of the batch; nil: held frames
	next    port.Prefetcher // queue that is polled after rxInUse; nil: it cannot prefetch
	live    uint32          // set of frames not dropped so far
	undone  uint32          // set of frames with an unfinished offload, see segment.go
	cursor  int             // index of the first frame that is not executed yet
	visits  uint64          // number of polls of receive queues so far, see Visit
	// batchFull is true if outputs may postpone the flush of this batch. The batch must have been full,
	// because the queue's next batch then follows soon. The queue must be a port.Keeper, which can leave the
	// buffers of this batch unreleased until then.
	batchFull bool
	inHand    *InHand
}

// maxQueues is the largest number of receive queues of one worker. AddPort fails for
// a port that would exceed it.
const maxQueues = 1024

// rxQueue is a receive queue with the worker's state for it. Only one worker uses the queue, and owns it.
type rxQueue struct {
	rx      port.Rx
	port    uint32
	slot    uint16 // index in queueTable.slots; epoll events carry it
	number  uint16 // the queue's number among the device's receive queues
	waitFD  int32
	place   uint16 // index in queueTable.order
	edge    bool   // epoll watches waitFD edge-triggered, see port.EdgeWatched
	polled  bool   // Recv costs a system call, so the worker calls it only if ready is set
	ready   bool   // frames may wait in a polled queue, see findReady
	tunnel  bool   // the port is an uplink, whose frames the worker decapsulates
	limit   uint8  // largest batch while other queues have frames; 0: no limit
	slow    uint8  // largest batch while other ports have frames; 0: no limit, see account.go
	lateIn  uint64 // number of the port's pass in which this queue had to wait, see waitsForNextPass
	debtNS  uint64 // cost of expensive frames in nanoseconds, less what was paid by waiting, see fair.go
	nextNS  uint64 // time of the next visit, see gather.go
	usedNS  uint64 // time of the last frame or wake-up, see park.go
	fuses   bool   // the connections of "zone" are searched before the flow cache, see fuse.go
	zone    uint16
	counted port.Counted    // rx as a port.Counted; nil: rx does not count waiting frames
	ahead   port.Prefetcher // rx as a port.Prefetcher; nil: rx cannot prefetch
	keeper  port.Keeper     // rx as a port.Keeper; nil: rx cannot keep a batch, see kept.go
	// rx as a port.Offloaded; nil: no flows of the port may run in the kernel
	offloaded port.Offloaded
	// rx as a conntrack.Kernel, to which the worker lends connections (lend.go); nil: it lends none
	kernel       conntrack.Kernel
	kernelNumber uint32 // number of kernel in the connection table, see AddKernel
	kept         keptBatch
	lateNS       uint64    // time until which buffers may be released late, see streamNS; 0: never
	agreed       agreement // key words of the queue's last fused frames, see the type agreement
}

// queueTable holds the receive queues of a worker. Its field order lists the awake queues first, in
// the polling order, and then the parked queues (park.go).
type queueTable struct {
	count         int
	awake         int // number of queues that a pass visits
	taps          int // number of queues with polled set, parked ones included
	polled        int // number of awake queues with polled set
	counted       int // number of awake queues that are a port.Counted
	withoutWaitFD int // number of queues without a WaitFD, which are never parked
	offloaded     int // number of queues of ports whose flows may run in the kernel
	slots         [maxQueues]rxQueue
	order         [maxQueues]uint16 // indexes in slots
}

func (t *queueTable) queue(i int) *rxQueue { return &t.slots[t.order[i]] }

// add copies q into a free slot and returns the copy, or nil if all slots are in use.
func (t *queueTable) add(q rxQueue) *rxQueue {
	for i := range t.slots {
		if s := &t.slots[i]; s.rx == nil {
			*s = q
			s.slot, s.place = uint16(i), uint16(t.count)
			t.order[t.count] = s.slot
			t.count++
			if s.polled {
				t.taps++
			}
			if s.offloaded != nil {
				t.offloaded++
			}
			t.wake(s)
			return s
		}
	}
	return nil
}

// remove frees the slot of the queue at index i of the polling order.
func (t *queueTable) remove(i int) {
	q := t.queue(i)
	if q.polled {
		t.taps--
	}
	if q.offloaded != nil {
		t.offloaded--
	}
	if i < t.awake {
		t.awake--
		t.tally(q, -1)
	}
	copy(t.order[i:t.count], t.order[i+1:t.count])
	t.count--
	for ; i < t.count; i++ {
		t.queue(i).place = uint16(i)
	}
	*q = rxQueue{}
}

// wake moves queue q, which is not awake, to the end of the polling order.
func (t *queueTable) wake(q *rxQueue) {
	t.swap(int(q.place), t.awake)
	t.awake++
	t.tally(q, 1)
}

// park moves the awake queue q to the parked ones. The last awake queue takes its place.
func (t *queueTable) park(q *rxQueue) {
	t.awake--
	t.swap(int(q.place), t.awake)
	t.tally(q, -1)
}

func (t *queueTable) swap(i, j int) {
	t.order[i], t.order[j] = t.order[j], t.order[i]
	t.queue(i).place, t.queue(j).place = uint16(i), uint16(j)
}

// tally updates the counts of awake queues when queue q becomes awake (change 1) or stops being awake
// (change -1).
func (t *queueTable) tally(q *rxQueue, change int) {
	if q.polled {
		t.polled += change
	}
	if q.counted != nil {
		t.counted += change
	}
	if q.waitFD < 0 {
		t.withoutWaitFD += change
	}
}

// receive polls queue q, takes the batch through all stages, and returns the number of frames. It
// returns a negative number if the queue is broken. It has then detached the queue's port.
func (w *Worker) receive(q *rxQueue) int {
	if q.polled && !q.ready {
		return 0
	}
	w.releaseIfFlushed(q)
	b := &w.batch
	b.Reset()
	b.Port = q.port
	w.limitVisit(q)
	w.cursor, w.live, w.undone = 0, 0, 0
	w.beginTracks()
	w.visit(q)
	w.captures.poll()
	n := q.rx.Recv(b)
	w.prefetchNext()
	if n < 0 {
		reason := q.rx.Fault()
		b.Reset()
		w.rxInUse = nil
		w.failPort(q.port, reason)
		return -1
	}
	q.ready = n > 0 && q.counted == nil // the next pass then reads the queue without asking epoll
	if n == 0 {
		// Recv may have taken descriptors that contain no frame. The guest needs them back.
		w.flushAndRelease(q)
		w.rxInUse = nil
		return 0
	}
	w.countReceived(n)
	w.live = allOf(n)
	// While a capture looks at every frame, no flush is postponed, because the capture records
	// when each batch ends.
	w.batchFull = n == packet.BatchSize && q.keeper != nil && !w.captures.everyFrame
	q.lateNS = 0
	if w.batchFull {
		q.lateNS = w.now + streamNS
	}
	w.captures.received()
	tunneled := uint32(0)
	if q.tunnel {
		tunneled = w.decapsulate()
	}
	var before costs
	before.read(w)
	w.classify(tunneled)
	w.prefetchNext()
	w.execute()
	w.prefetchNext()
	w.finish()
	w.charge(q, n, &before)
	return n
}

// prefetchNext prefetches a few frames of the queue that the worker visits next. The worker
// calls it between two stages of the current batch (docs/decisions/0041).
func (r *reception) prefetchNext() {
	if r.next != nil {
		r.next.Prefetch()
	}
}

// allOf returns the set of the first n frames of a batch.
func allOf(n int) uint32 { return uint32(1<<n - 1) }

func (w *Worker) countReceived(n int) {
	bytes := uint64(0)
	for i := range w.batch.Frames[:n] {
		bytes += uint64(w.batch.Frames[i].Len())
	}
	w.waiter.bulk = w.waiter.bulk || bytes > bulkBytes
	w.sh.Counters.Frames += uint64(n)
	w.sh.Counters.Batches++
	p := &w.sh.Ports[w.batch.Port%port.MaxPorts]
	p.RxPackets += uint64(n)
	p.RxBytes += bytes
}

// drop counts a frame that reached no output, under its drop reason.
func (w *Worker) drop(f *packet.Frame, reason packet.DropReason) {
	w.captures.drop(f, reason)
	w.sh.dropFrom(f.InPort, reason)
}

// dropFrom counts a frame of the port inPort that reached no output.
func (sh *Shared) dropFrom(inPort uint32, reason packet.DropReason) {
	sh.Counters.Drops[reason]++
	sh.Ports[inPort%port.MaxPorts].RxDrops[reason]++
}
