// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"weft/control/loop"
	"weft/control/underlay"
	"weft/control/workers"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/internal/shm"
	"weft/openflow"
)

// upcalls answers the upcalls of one engine's workers, with one goroutine for each
// worker. Another goroutine wakes them up through the workers' eventfd.
type upcalls struct {
	d       *Pipeline
	workers *workers.Workers
	event   *os.File
	wake    []chan struct{} // index: worker
	stop    chan struct{}
	stopped sync.WaitGroup
}

func (pl *Pipeline) startUpcalls(w *workers.Workers) (*upcalls, error) {
	fd, err := unix.FcntlInt(uintptr(w.Memory().UpcallEvent), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	u := &upcalls{d: pl, workers: w, event: os.NewFile(uintptr(fd), "upcalls"), stop: make(chan struct{})}
	for i := range w.Shared() {
		u.wake = append(u.wake, make(chan struct{}, 1))
		u.stopped.Add(1)
		go u.serve(i)
	}
	go u.watch()
	return u, nil
}

// close ends the goroutines. The caller holds no lock that a miss takes, such as
// Pipeline.mu.
func (u *upcalls) close() {
	close(u.stop)
	u.event.Close() // ends watch
	u.stopped.Wait()
}

func (u *upcalls) watch() {
	var count [8]byte
	for {
		if _, err := u.event.Read(count[:]); err != nil {
			return // closed
		}
		for _, wake := range u.wake {
			loop.Notify(wake)
		}
	}
}

// missBatch limits the misses answered under one lock. A larger batch would delay its
// first miss.
const missBatch = 32

// serve answers the upcalls of worker i: misses in turn by port, others in order of
// arrival.
func (u *upcalls) serve(i int) {
	defer u.stopped.Done()
	ring := shm.NewConsumer(u.workers.Shared()[i].Upcalls)
	q := newMissQueue(ring)
	misses := make([]datapath.Upcall, 0, missBatch)
	for {
		q.take(func(msg []byte) { u.take(i, msg) })
		misses = q.next(misses[:0], missBatch)
		u.d.answer(u.workers, i, misses, false)
		q.answered()
		select {
		case <-u.stop:
			return
		default:
		}
		if q.waiting() || !ring.Sleep() {
			continue
		}
		select {
		case <-u.wake[i]:
		case <-u.stop:
			return
		}
		ring.Awake()
	}
}

func (u *upcalls) take(worker int, msg []byte) {
	up, err := datapath.ParseUpcall(msg)
	if err != nil {
		u.d.log.Error("malformed upcall", "worker", worker, "error", err)
		return
	}
	switch up.Op {
	case datapath.UpNeighbour:
		u.d.templates.Wait(up.Template, underlay.HeldFrame{Worker: worker, Slot: up.Arg})
	case datapath.UpFault:
		go u.d.ports.Fault(up.Arg, up.Reason) // in its own goroutine, because Fault waits for the engine
	}
}

// answer installs megaflows for misses of one worker, and resumes the frames. Without
// room for a megaflow, the worker executes the actions once. learnt means that the
// flows of learn actions are already in the tables.
func (pl *Pipeline) answer(w *workers.Workers, worker int, misses []datapath.Upcall, learnt bool) {
	if len(misses) == 0 {
		return
	}
	a := answers{d: pl, w: w, worker: worker, learnt: learnt}
	a.all(misses)
}

func (a *answers) all(misses []datapath.Upcall) {
	pl, w, worker := a.d, a.w, a.worker
	pl.mu.RLock()
	if pl.workers != w { // the engine has been replaced meanwhile
		pl.mu.RUnlock()
		return
	}
	a.generation, a.now, a.env = pl.macs.Generation(), clock.Monotonic(), pl.env()
	for i := range misses {
		a.miss(&misses[i])
	}
	w.Publish(worker)
	if a.installed {
		w.PublishAll()
	}
	pl.mu.RUnlock()
	pl.refusals.Add(uint64(len(a.executed)))
	pl.creditExecuted(a.executed, a.now)
	if len(a.addresses) > 0 && pl.macs.Generation() != a.generation {
		pl.macs.Touch(a.addresses)
		pl.macsChanged() // another miss has learned an address meanwhile
	}
}

// answers is the state of one call of the function answer.
type answers struct {
	d          *Pipeline
	w          *workers.Workers
	worker     int
	learnt     bool
	asked      bool // nobody can answer the frames' questions
	generation uint64
	now        uint64
	env        *env
	addresses  []openflow.AddressRef // on which the translations depend
	installed  bool
	spare      *megaflow // for the next translation
	executed   []executedFrame
}

// executedFrame is a frame that was executed without a megaflow.
type executedFrame struct {
	rules    []*openflow.Rule
	groups   []openflow.GroupHit
	finished []openflow.Finished
	learned  []openflow.FlowMod
	ruleRows []uint32
	bytes    uint64
}

func (a *answers) miss(up *datapath.Upcall) {
	d, held := a.d, underlay.HeldFrame{Worker: a.worker, Slot: up.Arg}
	bytes := a.w.HeldBytes(held.Worker, held.Slot)
	if a.env.view.anyCentral {
		d.noteSeen(uint32(up.Key[flowtable.WPort] >> 32))
	}
	t := d.tables.Translate(&up.Key, a.env)
	if !a.learnt && d.learnFirst(a.w, held, up, &t) {
		return
	}
	if !a.asked && t.Question.Valid() && d.askFirst(a.w, held, up, &t) {
		return
	}
	if a.spare == nil {
		a.spare = new(megaflow)
	}
	m := a.spare
	d.setMegaflow(m, &up.Key, &t, a.now)
	var room [workers.CommandRoom]byte
	switch d.install(m, &up.Key, &t.Mask) {
	case refused:
		a.w.Queue(a.worker, datapath.AppendExecute(room[:0], held.Slot, t.Actions))
		a.executed = append(a.executed, executedFrame{m.rules, m.groups, t.Finished, t.Learned, m.ruleRows, bytes})
	case admitted:
		a.spare, a.installed = nil, true
		fallthrough
	default:
		a.w.Queue(a.worker, datapath.AppendCommand(room[:0], datapath.CmdRetry, held.Slot, nil))
	}
	if t.Learn.Valid {
		d.learn(t.Learn, a.now)
	}
	a.addresses = append(a.addresses, t.Addresses...)
}

// creditExecuted counts frames without a megaflow for their rules, and learns from
// them.
func (pl *Pipeline) creditExecuted(frames []executedFrame, now uint64) {
	if len(frames) == 0 {
		return
	}
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for _, f := range frames {
		pl.counters.Credit(flowtable.NoSlot, f.ruleRows, 1, f.bytes, now)
		for _, r := range f.rules {
			r.Credit(1, f.bytes, now)
		}
		pl.tables.CreditGroups(f.groups, 1, f.bytes)
		pl.learnOn(f.learned, now)
		pl.finish(f.finished)
	}
}
