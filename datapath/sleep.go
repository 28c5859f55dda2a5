// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

const (
	// readyEveryNS is the interval in nanoseconds at which a busy worker polls taps and sockets. The interval
	// limits the number of system calls. An idle worker polls them in every pass of the worker's loop.
	readyEveryNS = 20_000
	// maxReadUnasked is the largest number of taps and sockets that a worker reads
	// without calling epoll first. Reading an empty one costs a system call each.
	maxReadUnasked = 4
	// uncountedEveryNS is the interval in nanoseconds at which a worker asks epoll about queues whose waiting
	// frames the kernel counts (port.Counted). The kernel's counts miss a few frames.
	uncountedEveryNS = 100_000
	// maxSleepMS is the longest sleep in milliseconds. It is finite, because the worker must go on
	// writing its heartbeat. noWaitFDSleepMS is the longest sleep if some queue cannot wake the worker up.
	maxSleepMS      = 500
	noWaitFDSleepMS = 1
	// answerSpinNS is the shortest time in nanoseconds for which a worker polls before it sleeps, if frames wait
	// for an answer of the control process. The control process answers 32 such frames in about 60 µs. If the
	// worker sleeps in this time, the control process has to wake it up through its eventfd. On a virtual
	// machine whose idle cores halt, this costs the control process 8 µs for each batch of answers.
	answerSpinNS = 250_000
	// spinGrowth is the factor by which the polling time grows after a short sleep. A sleep is short if
	// this longer polling time would have replaced it. The next frame is then likely to come so
	// soon that a sleep costs more than it saves: on a virtual machine, the wake-up of a halted core
	// takes about 40 µs (docs/decisions/0046). KVM extends its polling for halted guests likewise
	// (halt_poll_ns_grow).
	spinGrowth = 4
	// bulkBytes is the length in bytes above which a batch counts as bulk traffic. The polling time does not
	// grow after bulk traffic, because longer polling takes time from the guests that share the core. A
	// batch of at most bulkBytes may be part of a round trip of small frames.
	bulkBytes = 2048
	// commandTag marks epoll events of the command eventfd. Other events carry a
	// queue's slot.
	commandTag = -1
)

// waiter is the epoll set of a worker: its command eventfd and the WaitFDs of its queues. It is
// level-triggered, except for queues whose field edge is set. Its methods find the queues that may have
// frames, and make parked ones (park.go) awake. The decision to sleep is made elsewhere, by the worker.
type waiter struct {
	sh *Shared
	*passTime
	reception *reception
	pacing    *pacing
	queues    *queueTable
	parking   parking

	set       int    // epoll descriptor, which the waiter owns; -1: closed
	command   int    // Config.CommandEvent
	nextReady uint64 // time of the next poll of taps and sockets
	nextAsk   uint64 // time of the next question to epoll about counted queues
	short     bool   // the last sleep was short and no bulk came before it, see spinGrowth
	bulk      bool   // a batch since the last sleep had more than bulkBytes
	events    [64]unix.EpollEvent
}

func (p *waiter) init(w *Worker, command int) (err error) {
	p.sh, p.passTime, p.reception, p.pacing, p.queues = w.sh, &w.passTime, &w.reception, &w.pacing, &w.queues
	p.parking.afterNS, p.parking.lookNS = parkAfterNS, lookParkedNS
	p.command = command
	if p.set, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		p.set = -1
		return err
	}
	if err = p.add(command, commandTag, 0); err != nil {
		p.close()
	}
	return err
}

func (p *waiter) close() {
	if p.set >= 0 {
		unix.Close(p.set)
	}
	p.set = -1
}

func (p *waiter) add(fd int, tag int32, flags uint32) error {
	return unix.EpollCtl(p.set, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | flags, Fd: tag})
}

// watch adds the WaitFD of a queue to the epoll set. The method forget removes it.
func (p *waiter) watch(q *rxQueue) error {
	if q.waitFD < 0 {
		return nil
	}
	flags := uint32(0)
	if q.edge {
		flags = unix.EPOLLET
	}
	return p.add(int(q.waitFD), int32(q.slot), flags)
}

func (p *waiter) forget(q *rxQueue) {
	if q.waitFD >= 0 {
		unix.EpollCtl(p.set, unix.EPOLL_CTL_DEL, int(q.waitFD), nil)
	}
}

// findReady sets the field ready of the awake polled queues (taps and sockets) that may have frames. Queues
// whose waiting frames the kernel counts need no system call for this. For the other queues, a busy worker
// makes the system calls only every readyEveryNS.
func (p *waiter) findReady() {
	if p.queues.polled == 0 {
		return
	}
	if p.queues.counted > 0 {
		p.findCounted()
	}
	uncounted := p.queues.polled - p.queues.counted
	if uncounted == 0 || p.pacing.wasBusy && p.now < p.nextReady {
		return
	}
	p.nextReady = p.now + readyEveryNS
	if uncounted > maxReadUnasked {
		p.askEpoll()
		return
	}
	for at := range p.queues.awake {
		if q := p.queues.queue(at); q.counted == nil {
			q.ready = true
		}
	}
}

// findCounted sets the field ready of the queues in which frames wait by the kernel's count (port.Counted).
// Every uncountedEveryNS it also asks epoll, because the counts miss a few frames.
func (p *waiter) findCounted() {
	for at := range p.queues.awake {
		if q := p.queues.queue(at); q.counted != nil && q.counted.Waits() {
			q.ready = true
		}
	}
	if p.now >= p.nextAsk {
		p.nextAsk = p.now + uncountedEveryNS
		p.askEpoll()
	}
}

// askEpoll handles the present events of the epoll set without waiting. It disarms the parked queues that
// become awake, because the worker polls them from now on.
func (p *waiter) askEpoll() {
	p.parking.postpone(p.turn, p.now)
	woken := p.queues.awake
	p.take(p.poll(0))
	for ; woken < p.queues.awake; woken++ {
		p.disarm(p.queues.queue(woken))
	}
	p.reception.rxInUse = nil
}

// disarm cancels the request of queue q for a wake-up.
func (p *waiter) disarm(q *rxQueue) {
	p.reception.visit(q)
	q.rx.Disarm()
}

// poll calls epoll_wait with a timeout in milliseconds and returns the number of events, which are in
// p.events.
func (p *waiter) poll(timeoutMS int) int {
	n, err := unix.EpollWait(p.set, p.events[:], timeoutMS)
	p.sh.Counters.Syscalls++
	if err != nil { // EINTR: the caller polls again later
		return 0
	}
	return n
}

// take handles the first n events in p.events. It first marks the queues of all these events as
// ready and awake, and only then calls Woken of the queues. In this order, no queue loses an event if
// Woken of another one meets a memory fault, which ends take: epoll reports an edge-triggered event
// only once.
func (p *waiter) take(n int) {
	for i := range p.events[:n] {
		tag := p.events[i].Fd
		if tag == commandTag {
			shm.DrainOwn(p.command)
			p.sh.Counters.Syscalls++
			p.parking.commanded = true
			continue
		}
		q := &p.queues.slots[tag]
		q.ready = true
		p.wake(q)
	}
	for i := range p.events[:n] {
		tag := p.events[i].Fd
		if tag == commandTag || p.queues.slots[tag].edge {
			continue
		}
		q := &p.queues.slots[tag]
		p.reception.visit(q)
		q.rx.Woken()
		p.reception.rxInUse = nil
	}
}

// spinNS returns the time in nanoseconds for which the worker polls empty queues before it sleeps. It is
// Config.SpinUS, or spinGrowth times as long after a short sleep without bulk traffic. While frames wait in
// slots, it is at least answerSpinNS.
func (w *Worker) spinNS() uint64 {
	spin := uint64(w.config.SpinUS) * 1000
	if w.waiter.short {
		spin *= spinGrowth
	}
	if w.held.count > 0 {
		return max(spin, answerSpinNS)
	}
	return spin
}

// sleep requests a wake-up from every awake queue, polls these queues once more, and then waits for an event.
// Parked queues have already requested their wake-ups. If the wait ends without an event, the next pass of
// the worker's loop sleeps again at once.
func (w *Worker) sleep() {
	w.releaseAllQueues()
	woken, began := true, w.now
	if w.armAll() && w.commands.Sleep() {
		if w.mail.Load() == nil && !w.stopping.Load() {
			w.sh.Counters.Sleeps++
			w.sh.InHand.Asleep = 1
			n := w.waiter.poll(w.sleepMS())
			w.sh.InHand.Asleep = 0
			w.waiter.take(n)
			woken = n > 0
		}
		w.commands.Awake()
	}
	for at := range w.queues.awake {
		w.waiter.disarm(w.queues.queue(at))
	}
	w.rxInUse = nil
	w.visited()
	w.now = w.clock() // time asleep does not count as a gap between passes
	w.accounting.sampledNS = 0
	w.waiter.short = !w.waiter.bulk && w.now-began < spinGrowth*1000*uint64(w.config.SpinUS)
	w.waiter.bulk = false
	if woken {
		w.lastBusy = w.now
	}
}

// armAll requests a wake-up from every awake queue. It stops and returns false if a queue has frames.
func (w *Worker) armAll() bool {
	for at := range w.queues.awake {
		q := w.queues.queue(at)
		w.visit(q)
		if q.rx.Arm() {
			q.ready = true
			w.rxInUse = nil
			return false
		}
	}
	w.rxInUse = nil
	w.visited()
	return true
}

func (w *Worker) sleepMS() int {
	if w.bfdDue != ^uint64(0) {
		return min(w.idleMS(), int((max(w.bfdDue, w.now)-w.now)/1_000_000)+1)
	}
	return w.idleMS()
}

// idleMS returns the longest sleep in milliseconds, without regard to BFD sessions.
func (w *Worker) idleMS() int {
	switch {
	case w.queues.withoutWaitFD > 0:
		return noWaitFDSleepMS
	case w.held.count > 0 || w.faults > 0 || w.sweeping:
		return heldSweepNS / 1_000_000
	}
	return maxSleepMS
}
