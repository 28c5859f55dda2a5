// SPDX-License-Identifier: Apache-2.0

// Package watchdog detects hung engines and the ports in use at a hang.
//
//	watchdog.go    watches one engine until it hangs or ends
//	standstill.go  measures how long a thread made no progress, except while it waited for a core
//	ticker.go      wakes the watchdog at a regular interval
//	thread.go      reads the kernel's accounting of a thread
//	probe.go       finds out in whose memory a worker hangs
//	freezer.go     finds out whether an engine is frozen
//	suspects.go    records the ports in use at a hang, and holds them
//
// A worker writes into shared memory which queue it uses (datapath.InHand) and when
// its current pass of the loop began. The watchdog compares these values with its
// last reading, and asks the kernel about the thread only if nothing has changed and the
// worker does not sleep.
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
	// WorkerLimit is the standstill of a worker after which its engine is replaced, if the cause is not
	// proven.
	WorkerLimit = 100 * time.Millisecond
	// ProvenLimit is the length of a single wait in the kernel after which the engine is replaced, if a
	// probe proves in whose memory the worker waits. It takes two looks, whatever is between them.
	ProvenLimit = 8 * time.Millisecond
	// ServerLimit is the time without an answer to a request after which the engine is
	// replaced. It is longer than WorkerLimit, because mapping a large guest's memory
	// takes time.
	ServerLimit = 2 * time.Second
	// ExitLimit is the longest standstill of a thread that exits, or has ended while its process has not.
	// The kernel closes sockets and frees memory then, and waits for RCU grace periods: 30 to 150 ms on a
	// machine with little load. The next engine takes over meanwhile. No port is to blame.
	ExitLimit = 20 * time.Millisecond
	// intervals of the watchdog's checks; idleInterval applies while no worker has made a pass since the
	// last one and no request is in progress
	interval     = 5 * time.Millisecond
	idleInterval = 25 * time.Millisecond
	// The time between two looks counts for at most mostBetween, for a request at most
	// mostBetweenServer, and for ProvenLimit at most mostBlocked: if more has passed, the machine or
	// control stood still. So it takes three looks to find a hung worker without a proof, and ten to find
	// a hung server.
	mostBetween       = 40 * time.Millisecond
	mostBetweenServer = ServerLimit / 10
	mostBlocked       = interval * 3 / 2
)

// Engine is an engine to watch.
type Engine struct {
	PID     int
	Workers []*datapath.Shared
	// Pending returns the request of control that the engine is handling.
	Pending func() engine.Pending
	// Files returns duplicates of the descriptors of the files in which a port's memory is; none if
	// the memory is no file. It may block. nil: a hang has no owner.
	Files func(port uint32) []int
	// Gone is closed when the engine has ended.
	Gone <-chan struct{}
}

// Watch watches an engine until it hangs (ok true) or ends (ok false).
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

// acquit removes the suspects of a hang that no port has caused: the threads exit, or somebody has stopped
// or frozen the engine.
func (w *watch) acquit(h *Hang) {
	h.Frozen = !h.Exiting && len(h.Owners) == 0 && w.frozen(w.PID)
	if h.Exiting || h.Frozen || h.State == 'T' || h.State == 't' {
		h.Suspects, h.Owners = nil, nil
	}
}

// probe starts probes of worker i's suspects when its thread t waits in the kernel or stands still for
// long, and ends them when the worker goes on.
func (w *watch) probe(i int, ns uint64, t thread, marks datapath.InHand) {
	waits := t.state == 'D' && !t.ending
	switch {
	case ns == 0 && !waits:
		w.probes[i].end()
	case w.Files != nil && (waits || ns >= uint64(probeAfter)):
		w.probes[i].add(inHand(marks), w.startProbe)
	}
}

// waits reports whether worker i, whose thread is t, is proven to wait in the memory of a port for
// ProvenLimit or longer.
func (w *watch) waits(i int, t thread) bool {
	return !t.ending && w.workers[i].blockedNS >= uint64(ProvenLimit) && len(w.probes[i].owners()) > 0
}

// limitOf returns the limit of worker i's standstill. It is longer while a probe, whose thread may have
// waited for a core, is too short to prove anything.
func (w *watch) limitOf(i int) time.Duration {
	if len(w.probes[i]) > 1 && !w.probes[i].complete() { // a port that is alone in hand needs no proof
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

// lookAtServer looks at a request in progress. The server may wait for each worker, so
// the time in which a worker stands still or waits for a core does not count: moved is
// false then.
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

// inHand returns the ports that a worker may be using. A worker that sends also reads
// the memory of the port that received the frame.
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
	Request  string // request without an answer
	Standing time.Duration
	State    byte      // state of the hung thread, see proc_pid_stat(5)
	Exiting  bool      // the engine was killed and does not end; no port is suspected
	Frozen   bool      // the engine's control group is frozen; no port is suspected
	Suspects []Suspect // at most two
	// Owners are the ports in whose memory the worker is proven to hang; none: nothing is proven.
	Owners []uint32
}

// Suspect is a queue that was in use.
type Suspect struct {
	Port    uint32
	Queue   int
	Sending bool // true: transmit queue
}

// Text describes the hang in one line. name returns the name of a port number.
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
