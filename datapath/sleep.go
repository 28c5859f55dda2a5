// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

const (
	// readyEveryNS is the interval in nanoseconds at which a busy worker polls taps and
	// sockets. The interval limits the number of system calls. An idle worker polls
	// them in every pass.
	readyEveryNS = 20_000
	// maxReadUnasked is the largest number of taps and sockets that a worker reads
	// without calling epoll first. Reading an empty one costs a system call each.
	maxReadUnasked = 4
	// uncountedEveryNS is the interval in nanoseconds at which a worker asks epoll for
	// frames that its counted queues have not counted.
	uncountedEveryNS = 100_000
	// maxSleepMS is the longest sleep in milliseconds. It makes sure that the heartbeat
	// continues. noWaitFDSleepMS is the longest sleep if some queue cannot wake the
	// worker up.
	maxSleepMS      = 500
	noWaitFDSleepMS = 1
	// answerSpinNS is the shortest time in nanoseconds for which a worker with held
	// frames polls before it sleeps. Control answers 32 misses in about 60 µs. If the
	// worker sleeps meanwhile, control wakes it through its eventfd for each such batch:
	// 8 µs on a virtual machine whose other core halts.
	answerSpinNS = 250_000
	// spinGrowth multiplies the polling time after a sleep that was shorter than the
	// product. The next frame is then likely to come so soon that a sleep costs more than it
	// saves: on a virtual machine, the wake-up of a halted core takes about 40 µs
	// (docs/decisions/0046). KVM extends its polling for halted guests likewise
	// (halt_poll_ns_grow).
	spinGrowth = 4
	// bulkBytes is the greatest length in bytes of a batch that counts as part of a round
	// trip of small frames. In bulk traffic, polling for longer takes time from the guests
	// that share the core.
	bulkBytes = 2048
	// commandTag marks epoll events of the command eventfd. Other events carry a
	// queue's slot.
	commandTag = -1
)

// waiter is the epoll set of a worker. It is level-triggered, except for queues whose
// field edge is set.
type waiter struct {
	set       int
	command   int
	nextReady uint64 // time of the next poll of taps and sockets
	nextAsk   uint64 // time of the next poll for frames that are not counted
	short     bool   // the last sleep was short and no bulk came before it, see spinGrowth
	bulk      bool   // a batch since the last sleep had more than bulkBytes
	events    [64]unix.EpollEvent
}

func (p *waiter) init(command int) (err error) {
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

// findReady sets ready in the awake polled queues that may have frames. Queues that count their
// frames need no system call for this. A busy worker looks at the others every
// readyEveryNS.
func (w *Worker) findReady() {
	if w.queues.polled == 0 {
		return
	}
	if w.queues.counted > 0 {
		w.findCounted()
	}
	uncounted := w.queues.polled - w.queues.counted
	if uncounted == 0 || w.wasBusy && w.now < w.waiter.nextReady {
		return
	}
	w.waiter.nextReady = w.now + readyEveryNS
	if uncounted > maxReadUnasked {
		w.askEpoll()
		return
	}
	for at := range w.queues.awake {
		if q := w.queues.queue(at); q.counted == nil {
			q.ready = true
		}
	}
}

// findCounted sets ready in the queues that have counted frames. Every uncountedEveryNS it
// asks epoll, because the count is only a hint.
func (w *Worker) findCounted() {
	for at := range w.queues.awake {
		if q := w.queues.queue(at); q.counted != nil && q.counted.Waits() {
			q.ready = true
		}
	}
	if w.now >= w.waiter.nextAsk {
		w.waiter.nextAsk = w.now + uncountedEveryNS
		w.askEpoll()
	}
}

// askEpoll handles the events that the epoll set has now.
func (w *Worker) askEpoll() {
	w.parking.postpone(w)
	woken := w.queues.awake
	w.take(w.poll(0))
	for ; woken < w.queues.awake; woken++ {
		w.disarm(w.queues.queue(woken))
	}
	w.rxInUse = nil
}

// disarm cancels the request of queue q for a wake-up.
func (w *Worker) disarm(q *rxQueue) {
	w.visit(q)
	q.rx.Disarm()
}

// poll calls epoll_wait with a timeout in milliseconds and returns the number of
// events.
func (w *Worker) poll(timeoutMS int) int {
	n, err := unix.EpollWait(w.waiter.set, w.waiter.events[:], timeoutMS)
	w.sh.Counters.Syscalls++
	if err != nil { // EINTR: the caller polls again later
		return 0
	}
	return n
}

// take handles the first n events in w.waiter.events. It marks the queues of all these events as ready
// before it calls Woken on any of them. A memory fault in Woken ends take, and epoll reports an
// edge-triggered event only once. So a fault of one queue loses no event of another.
func (w *Worker) take(n int) {
	for i := range w.waiter.events[:n] {
		tag := w.waiter.events[i].Fd
		if tag == commandTag {
			shm.DrainOwn(w.waiter.command)
			w.sh.Counters.Syscalls++
			w.parking.commanded = true
			continue
		}
		q := &w.queues.slots[tag]
		q.ready = true
		w.wake(q)
	}
	for i := range w.waiter.events[:n] {
		tag := w.waiter.events[i].Fd
		if tag == commandTag || w.queues.slots[tag].edge {
			continue
		}
		q := &w.queues.slots[tag]
		w.visit(q)
		q.rx.Woken()
		w.rxInUse = nil
	}
}

// spinNS returns the time in nanoseconds for which the worker polls empty queues before
// it sleeps. It is spinGrowth times as long after a short sleep among small frames.
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

// sleep requests a wake-up from every awake queue, polls these queues once more, and then
// waits for an event. Parked queues have already requested their wake-ups. If the wait ends
// without an event, the next pass sleeps again at once.
func (w *Worker) sleep() {
	w.releaseAllQueues()
	woken, began := true, w.now
	if w.armAll() && w.commands.Sleep() {
		if w.mail.Load() == nil && !w.stopping.Load() {
			w.sh.Counters.Sleeps++
			w.sh.InHand.Asleep = 1
			n := w.poll(w.sleepMS())
			w.sh.InHand.Asleep = 0
			w.take(n)
			woken = n > 0
		}
		w.commands.Awake()
	}
	for at := range w.queues.awake {
		w.disarm(w.queues.queue(at))
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

// armAll requests a wake-up from every awake queue. It reports false if a queue has frames.
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

// idleMS returns the time in milliseconds that the worker may sleep if nothing is due.
func (w *Worker) idleMS() int {
	switch {
	case w.queues.withoutWaitFD > 0:
		return noWaitFDSleepMS
	case w.held.count > 0 || w.faults > 0 || w.sweeping:
		return heldSweepNS / 1_000_000
	}
	return maxSleepMS
}
