// SPDX-License-Identifier: Apache-2.0

package datapath

// This file parks receive queues that have been empty for a while. A pass of the worker's loop polls
// only the other queues, which are called awake. So its cost follows the number of busy queues
// (docs/decisions/0052-idle-queues-are-parked.md).
//
// A parked queue is armed: the guest or the kernel signals the queue's next frame through the
// WaitFD, which the worker's epoll set watches. No frame is missed, because parking has this order:
//
//  1. The worker arms the queue. Arm then looks for frames once more.
//  2. If Arm has found none, the queue becomes a parked one. Otherwise it stays awake.
//  3. Any later event of the WaitFD makes the queue awake again (the method take).
//
// The worker asks epoll for events every parkedEveryNS, and in each pass after a pass without
// frames. A parked queue stays armed while the worker sleeps. Only the method take consumes events
// of the epoll set, so no other code can lose one.
//
// Queues of uplinks are never parked, because many senders share each of them.

const (
	// parkAfterNS is the time in nanoseconds after which an empty queue is parked. The usual
	// gaps in the traffic of a busy guest are shorter.
	parkAfterNS = 1_000_000
	// maxIdleAwake is the number of empty queues up to which the worker parks none of them. Polling so few
	// queues costs less than asking epoll.
	maxIdleAwake = 4
	// maxParks is the largest number of queues that one pass of the worker's loop arms to park them. It limits
	// the delay of frames, because arming a queue moves a cache line between cores.
	maxParks = 8
	// parkedEveryNS is the interval in nanoseconds at which a busy worker asks epoll for frames of parked
	// queues. It limits the delay of the first frame after a gap to parkedEveryNS and one pass of the worker's
	// loop.
	parkedEveryNS = 20_000
	// lookParkedNS is the time in nanoseconds in which the worker looks once into each parked queue. It
	// thus finds the frames of a guest that has failed to send a notification. A worker that sleeps finds
	// them after the same time (maxSleepMS).
	lookParkedNS = maxSleepMS * 1_000_000
)

// parking has the worker's state for parking queues. The parked queues themselves are in queueTable.
type parking struct {
	afterNS   uint64 // parkAfterNS; tests have another value
	lookNS    uint64 // lookParkedNS; tests have another value
	idle      int    // number of awake queues that the last pass found empty
	parks     int    // number of queues that this pass has tried to park
	askNS     uint64 // time from which a busy worker asks epoll again
	turn      uint64 // last pass in which the worker has asked epoll
	lookedNS  uint64 // time of the last look into parked queues
	cursor    int    // index among the parked queues of the one that is looked into next
	commanded bool   // the command eventfd was signalled, perhaps because of a device's fault
}

// endPass ends a pass of the worker's loop. idle is the number of awake queues that the pass found empty.
func (p *parking) endPass(idle int) { p.idle, p.parks = idle, 0 }

// postpone records that the worker asks epoll for events in this pass of the worker's loop. A busy worker
// then asks again only after parkedEveryNS.
func (p *parking) postpone(turn, now uint64) { p.turn, p.askNS = turn, now+parkedEveryNS }

// parked returns the number of parked queues, which follow the awake ones in the field order.
func (t *queueTable) parked() int { return t.count - t.awake }

// park parks the awake queue q, which the pass has found empty, unless a limit or the kind of queue forbids
// it. It reports whether it has parked the queue.
func (w *Worker) park(q *rxQueue) bool {
	p := &w.waiter.parking
	if w.now-q.usedNS < p.afterNS || p.parks == maxParks || p.idle <= maxIdleAwake && w.queues.parked() == 0 {
		return false
	}
	if q.tunnel || q.waitFD < 0 || q.debtNS > 0 || q.ready {
		return false
	}
	p.parks++
	w.releaseKept(q)
	w.visit(q)
	busy := q.rx.Arm()
	if busy {
		q.rx.Disarm()
		q.ready, q.usedNS = true, w.now // the queue has frames again, or cannot be armed: try again later
	}
	w.rxInUse = nil
	if busy {
		return false
	}
	if w.queues.parked() == 0 {
		p.lookedNS = w.now
	}
	w.queues.park(q)
	return true
}

// wake makes queue q awake if it is parked. The caller cancels the queue's request for a notification
// (Disarm).
func (p *waiter) wake(q *rxQueue) {
	if int(q.place) >= p.queues.awake {
		q.ready, q.usedNS = true, p.now
		p.queues.wake(q)
	}
}

// wakeParked makes parked queues awake that may have frames: those with an event in the epoll set, those of
// broken devices, and those in which it finds frames (lookAtParked).
func (p *waiter) wakeParked() {
	k := &p.parking
	if p.queues.parked() == 0 {
		k.commanded = false
		return
	}
	if k.turn != p.turn {
		if p.pacing.wasBusy && p.now < k.askNS {
			return
		}
		p.askEpoll()
	}
	if k.commanded {
		k.commanded = false
		p.wakeFaulty()
	}
	p.lookAtParked()
}

// wakeFaulty makes the parked queues of broken devices awake. The next Recv of such a queue fails, so that
// the worker detaches the port.
func (p *waiter) wakeFaulty() {
	for i := p.queues.awake; i < p.queues.count; i++ {
		if q := p.queues.queue(i); q.rx.Fault() != "" {
			p.wake(q) // the parked queue that moves to index i was asked before
		}
	}
}

// lookAtParked looks for frames in some parked queues, so that it looks into each of them once in
// lookParkedNS.
func (p *waiter) lookAtParked() {
	t, k := p.queues, &p.parking
	parked := uint64(t.parked())
	due := (p.now - k.lookedNS) * parked / k.lookNS
	switch {
	case due == 0:
		return
	case due >= parked:
		due, k.lookedNS = parked, p.now
	default:
		k.lookedNS += due * k.lookNS / parked
	}
	for ; due > 0 && t.parked() > 0; due-- {
		k.cursor %= t.parked()
		q := t.queue(t.awake + k.cursor)
		k.cursor++
		p.reception.visit(q)
		if q.rx.Arm() {
			p.wake(q)
			k.cursor-- // the first parked queue is now one index later
			q.rx.Disarm()
		}
	}
	p.reception.rxInUse = nil
}
