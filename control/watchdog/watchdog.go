// SPDX-License-Identifier: Apache-2.0

// Package watchdog detects hung engines, and finds out which ports were in use.
//
//	watchdog.go    watches one engine until it hangs or ends
//	standstill.go  measures how long a thread made no progress, except while it waited for a core
//	ticker.go      wakes the watchdog at a regular interval
//	thread.go      reads the kernel's accounting of a thread
//	probe.go       finds out in whose memory a worker hangs
//	freezer.go     finds out whether an engine is frozen
//	suspects.go    records the ports that were in use at a hang, and holds them back from engines
//
// A worker writes into shared memory which queue it is using (datapath.InHand), and when the present
// pass of its loop began. The watchdog compares these values with those that it read last. It asks the
// kernel about the thread only if nothing has changed and the worker does not sleep.
// docs/decisions/0029 has the reasons.
package watchdog

import (
	"fmt"
	"sync/atomic"
	"time"

	"weft/datapath"
	"weft/engine"
)

const (
	// WorkerLimit is the standstill of a worker after which its engine is replaced, if nothing proves
	// the cause.
	WorkerLimit = 100 * time.Millisecond
	// ProvenLimit is the length of a single wait of a worker in the kernel after which the engine is
	// replaced, if a probe proves in whose memory the worker waits. Because of mostBlocked, at least two
	// checks of the watchdog must see the wait.
	ProvenLimit = 8 * time.Millisecond
	// ServerLimit is the time without an answer to a request after which the engine is replaced. It is
	// longer than WorkerLimit, because the engine needs time to map a large guest's memory.
	ServerLimit = 2 * time.Second
	// ExitLimit is the longest standstill of a thread that is exiting, or that has ended before its
	// process. The kernel then closes sockets, frees memory and waits for RCU grace periods, which
	// takes 30 to 150 ms on a machine with little load. The next engine takes over meanwhile. No port
	// is to blame.
	ExitLimit = 20 * time.Millisecond
	// interval is the time between two checks of the engine. It is idleInterval while all workers have
	// slept since the last check and no request is in progress.
	interval     = 5 * time.Millisecond
	idleInterval = 25 * time.Millisecond
	// The time between two checks counts for at most mostBetween. For a request it counts for at most
	// mostBetweenServer, and for ProvenLimit for at most mostBlocked. If more time has passed, the machine
	// or the control process stood still. So at least three checks find a hung worker if nothing proves
	// the cause, and ten find a hung server.
	mostBetween       = 40 * time.Millisecond
	mostBetweenServer = ServerLimit / 10
	mostBlocked       = interval * 3 / 2
)

// Engine is an engine to watch.
type Engine struct {
	PID     int
	Workers []*datapath.Shared
	// Pending returns the control process's request that the engine is handling. If Number is 0, there is
	// none.
	Pending func() engine.Pending
	// Files returns duplicates of the descriptors of the files that are a port's memory, or none if
	// the memory is no file. It may block. nil: nothing can prove in whose memory a worker hangs.
	Files func(port uint32) []int
	// Gone is closed when the engine has ended.
	Gone <-chan struct{}
}

// Watch watches an engine until the engine hangs (ok is true) or ends (ok is false).
func Watch(e Engine) (h Hang, ok bool) {
	w := newWatch(e)
	defer w.endProbes()
	ended := make(chan struct{})
	defer close(ended)
	tick := newTicker(e.Gone, ended)
	tick.set(interval)
	for tick.wait() {
		h, hung, idle := w.look(uint64(time.Since(w.began)))
		if hung {
			return h, true
		}
		if idle {
			tick.set(idleInterval)
		} else {
			tick.set(interval)
		}
	}
	return Hang{}, false
}

type watch struct {
	Engine
	began       time.Time
	workers     []standstill // index: worker
	probes      []probes     // index: worker; empty while the worker makes progress
	server      standstill
	thread      func(pid int, tid uint64) (thread, error)
	otherThread func(pid int, skip func(uint64) bool) (thread, error)
	startProbe  func(port uint32) *probe
	frozen      func(pid int) bool
}

func newWatch(e Engine) *watch {
	return &watch{Engine: e, began: time.Now(), workers: make([]standstill, len(e.Workers)),
		probes: make([]probes, len(e.Workers)), thread: readThread, otherThread: readOthers, frozen: frozen,
		startProbe: func(port uint32) *probe { return startProbe(port, e.Files) }}
}

func (w *watch) endProbes() {
	for i := range w.probes {
		w.probes[i].end()
	}
}

func (w *watch) look(atNS uint64) (h Hang, hung, idle bool) {
	idle = true
	moved, longest := true, uint64(0)
	for i, sh := range w.Workers {
		at, s := read(sh.InHand), &w.workers[i]
		if at.Thread == 0 {
			continue // the worker is being started
		}
		p := progress{atomic.LoadUint64(&sh.Counters.HeartbeatNS), at.Visit}
		worked := s.valid && s.progress != p
		if at.Asleep == 0 {
			s.wakes()
		} else if s.sleeps(p, atNS, datapath.MaxSleepNS) {
			idle = idle && !worked
			continue // watching a sleeping worker costs two loads of shared memory and no system call
		}
		idle = false
		moved = moved && (!s.valid || worked)
		ns, t := s.observe(p, atNS, uint64(mostBetween), func() (thread, error) { return w.thread(w.PID, at.Thread) })
		w.probe(i, ns, t, at)
		// If a worker hangs while it owns a queue, the workers that wait for this queue
		// also make no progress. The worker with the longest standstill is the one that
		// hangs.
		if ns > longest && (w.waits(i, t) || hangs(ns, w.limitOf(i), t)) && !datapath.Sending(at.Sending).Awaiting() {
			longest = ns
			h, hung = Hang{Worker: i, Standing: time.Duration(ns), State: t.state, Suspects: inHand(at)}, true
			h.Exiting, h.Owners = t.ending, w.probes[i].owners()
		}
	}
	if !hung {
		h, hung = w.lookAtServer(atNS, moved, &idle)
	}
	if hung {
		w.acquit(&h)
	}
	return h, hung, idle && !hung
}

// acquit removes the suspects from a hang that no port has caused: the threads exit, or somebody has
// stopped or frozen the engine.
func (w *watch) acquit(h *Hang) {
	h.Frozen = !h.Exiting && len(h.Owners) == 0 && w.frozen(w.PID)
	if h.Exiting || h.Frozen || h.State == 'T' || h.State == 't' {
		h.Suspects, h.Owners = nil, nil
	}
}

// probe starts probes for the ports that worker i is using, when its thread t waits in the kernel or when
// it has made no progress for long (ns). It ends the probes when the worker makes progress again. marks
// tells which ports the worker is using.
func (w *watch) probe(i int, ns uint64, t thread, marks datapath.InHand) {
	waits := t.state == 'D' && !t.ending
	switch {
	case ns == 0 && !waits:
		w.probes[i].end()
	case w.Files != nil && (waits || ns >= uint64(probeAfter)):
		w.probes[i].add(inHand(marks), w.startProbe)
	}
}

// waits reports whether a probe proves that worker i has waited in the memory of a port for
// ProvenLimit or longer. t is the accounting of its thread.
func (w *watch) waits(i int, t thread) bool {
	return !t.ending && w.workers[i].blockedNS >= uint64(ProvenLimit) && len(w.probes[i].owners()) > 0
}

// limitOf returns the limit for the standstill of worker i. It is longer while a probe is too short to
// prove anything, because the probe's thread may have waited for a core.
func (w *watch) limitOf(i int) time.Duration {
	if len(w.probes[i]) > 1 && !w.probes[i].complete() { // if only one port is in use, no proof is necessary
		return WorkerLimit + mostProof
	}
	return WorkerLimit
}

// hangs reports whether a standstill exceeds the limit, or ExitLimit if the thread exits.
func hangs(ns uint64, limit time.Duration, t thread) bool {
	if t.ending {
		limit = ExitLimit
	}
	return ns >= uint64(limit)
}

// lookAtServer reports a hang of the engine's server (all threads that are no workers): the request in
// progress has taken ServerLimit. The server may wait for a worker. So the time since the previous call
// does not count if moved is false: since then, a worker that does not sleep has made no progress.
func (w *watch) lookAtServer(atNS uint64, moved bool, idle *bool) (h Hang, hung bool) {
	r := w.Pending()
	if r.Number == 0 {
		w.server = standstill{}
		return h, false
	}
	*idle = false
	most := uint64(mostBetweenServer)
	if !moved {
		most = 0
	}
	ns, t := w.server.observe(progress{r.Number}, atNS, most, func() (thread, error) { return w.otherThread(w.PID, w.isWorker) })
	if !hangs(ns, ServerLimit, t) {
		return h, false
	}
	h = Hang{Worker: NoWorker, Request: r.Op, Standing: time.Duration(ns), State: t.state, Exiting: t.ending}
	if r.Port != 0 {
		h.Suspects = []Suspect{{Port: r.Port, Queue: NoQueue}}
	}
	return h, true
}

func (w *watch) isWorker(tid uint64) bool {
	for _, sh := range w.Workers {
		if atomic.LoadUint64(&sh.InHand.Thread) == tid {
			return true
		}
	}
	return false
}

// read returns a copy of a worker's InHand, which the worker may change during the
// copy.
func read(hand *datapath.InHand) datapath.InHand {
	return datapath.InHand{
		Visit: atomic.LoadUint64(&hand.Visit), Sending: atomic.LoadUint64(&hand.Sending),
		Asleep: atomic.LoadUint64(&hand.Asleep), Thread: atomic.LoadUint64(&hand.Thread),
	}
}

// inHand returns the ports that a worker may be using: the port to which it sends, and the port whose
// frames it handles. While a worker sends, it accesses the memory of both ports.
func inHand(marks datapath.InHand) []Suspect {
	var list []Suspect
	to, from := datapath.Sending(marks.Sending), datapath.Visit(marks.Visit)
	if to.Port() != 0 {
		list = append(list, Suspect{Port: to.Port(), Queue: to.Queue(), Sending: true})
	}
	if from.Port() != 0 && from.Port() != to.Port() && !to.Flushing() {
		list = append(list, Suspect{Port: from.Port(), Queue: from.Queue()})
	}
	return list
}

// NoWorker is the value of Hang.Worker if the server hangs. NoQueue is the value of
// Suspect.Queue for a whole port.
const (
	NoWorker = -1
	NoQueue  = -1
)

// Hang describes an engine that hangs.
type Hang struct {
	Worker   int
	Request  string // request that was not answered, if the server hangs
	Standing time.Duration
	State    byte      // state of the hung thread, see proc_pid_stat(5)
	Exiting  bool      // the engine was killed and does not end; no port is suspected
	Frozen   bool      // the engine's control group is frozen; no port is suspected
	Suspects []Suspect // at most two
	// Owners are the ports in whose memory the worker is proven to hang; none: nothing is proven.
	Owners []uint32
}

// Suspect is a queue that a worker was using when it hung.
type Suspect struct {
	Port    uint32
	Queue   int
	Sending bool // true: transmit queue; false: receive queue
}

// Text describes the hang in one line. The function name returns the name of a port.
func (h Hang) Text(name func(port uint32) string) string {
	text := fmt.Sprintf("worker %d has stood still for %d ms (%s)", h.Worker, h.Standing.Milliseconds(), stateText(h.State))
	if h.Worker == NoWorker {
		text = fmt.Sprintf("the engine has not answered the request %q for %.1f s", h.Request, h.Standing.Seconds())
	}
	if h.Exiting {
		text += ", it was killed and does not end"
	}
	if h.Frozen {
		text += ", its control group is frozen"
	}
	for i, s := range h.Suspects {
		text += [2]string{", with ", " and "}[i] + s.text(name)
	}
	if len(h.Suspects) > 0 {
		text += " in hand"
	}
	for _, port := range h.Owners {
		text += "; the front end of port " + name(port) + " has locked its memory"
	}
	return text
}

func (s Suspect) text(name func(port uint32) string) string {
	direction := "receive"
	if s.Sending {
		direction = "transmit"
	}
	if s.Queue == NoQueue {
		return "port " + name(s.Port)
	}
	return fmt.Sprintf("port %s %s queue %d", name(s.Port), direction, s.Queue)
}

func stateText(state byte) string {
	switch state {
	case 'R':
		return "running"
	case 'D':
		return "blocked in the kernel, uninterruptible"
	case 't', 'T':
		return "stopped by a signal or a debugger"
	}
	return "blocked in the kernel"
}
