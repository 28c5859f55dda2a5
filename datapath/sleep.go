package datapath

import (
	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

const (
	// readyEveryNS is how often a worker with frames from elsewhere looks into taps
	// and sockets: a system call, and a frame's latency at most. With nothing else
	// to do it looks in every pass.
	readyEveryNS = 20_000
	// maxReadUnasked is the number of polled queues up to which it looks by reading
	// each. That is a system call a queue, but one less before a frame, and a sender
	// need not put the queue on a list of readable ones first. With more queues it
	// asks which are readable.
	maxReadUnasked = 4
	// maxSleepMS bounds a sleep, so that the heartbeat goes on and held frames
	// expire. noWaitFDSleepMS bounds it where a queue cannot wake us.
	maxSleepMS      = 500
	noWaitFDSleepMS = 1
	// commandTag marks the command eventfd among epoll's events; others carry a
	// queue's slot.
	commandTag = -1
)

// waiter is the epoll set of what a sleeping worker waits for: level triggered, but for
// queues with edge set.
type waiter struct {
	set       int
	command   int
	nextReady uint64 // clock of the next look at polled queues
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

// watch adds a queue's WaitFD, forget takes it out.
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

// findReady marks the polled queues that have, or may have, something to read,
// now and then.
func (w *Worker) findReady() {
	if w.queues.polled == 0 || w.wasBusy && w.now < w.waiter.nextReady {
		return
	}
	w.waiter.nextReady = w.now + readyEveryNS
	if w.queues.polled > maxReadUnasked {
		w.wait(0)
		return
	}
	for at := range w.queues.count {
		w.queues.at(at).ready = true
	}
}

// wait asks the epoll set and deals with its events. It goes through the
// scheduler also where it does not block: the processor it gives up is taken by
// nobody in so short a time, for there are more processors than workers. It
// returns the number of events.
func (w *Worker) wait(timeoutMS int) int {
	n := w.poll(timeoutMS)
	w.take(n)
	return n
}

// poll asks the epoll set, and returns the number of events.
func (w *Worker) poll(timeoutMS int) int {
	n, err := unix.EpollWait(w.waiter.set, w.waiter.events[:], timeoutMS)
	w.sh.Counters.Syscalls++
	if err != nil { // EINTR: the caller comes back
		return 0
	}
	return n
}

// take deals with the first n of the waiter's events.
func (w *Worker) take(n int) {
	for i := range w.waiter.events[:n] {
		tag := w.waiter.events[i].Fd
		if tag == commandTag {
			shm.DrainOwn(w.waiter.command)
			w.sh.Counters.Syscalls++
			continue
		}
		q := &w.queues.slots[tag]
		q.ready = true
		if q.edge {
			continue
		}
		w.visit(q)
		q.rx.Woken()
		w.rxInUse = nil
	}
}

// sleep arms everything, looks once more, and waits until something wakes the
// worker. Where nothing but the time did, one pass follows and no spinning.
func (w *Worker) sleep() {
	w.releaseAllQueues()
	woken := true
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
	for at := range w.queues.count {
		q := w.queues.at(at)
		w.visit(q)
		q.rx.Disarm()
	}
	w.rxInUse = nil
	w.visited()
	w.now = w.clock() // the next pass is not counted as one that came late
	if woken {
		w.lastBusy = w.now
	}
}

// armAll asks every queue for a wake-up; it reports false if one has frames.
func (w *Worker) armAll() bool {
	for at := range w.queues.count {
		q := w.queues.at(at)
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
	switch {
	case w.queues.withoutWaitFD > 0:
		return noWaitFDSleepMS
	case w.held.count > 0 || w.faults > 0 || w.sweeping:
		return heldSweepNS / 1_000_000
	}
	return maxSleepMS
}
