// Package watchdog finds out that an engine hangs, and who is to blame.
//
//	watchdog.go    looks at one engine, until it hangs or ends
//	standstill.go  how long a thread made no progress, waiting for a core aside
//	thread.go      what the kernel accounts to a thread
//	suspects.go    which ports were in hand, and which of them pay for it
//
// A worker says in shared memory what it is at (datapath.InHand) and when its pass
// began; the watchdog compares, and asks the kernel about the thread only where
// nothing has changed. The reasons are in docs/decisions/0029.
package watchdog

import (
	"fmt"
	"sync/atomic"
	"time"

	"weft/datapath"
	"weft/engine"
)

const (
	// WorkerLimit is how long a worker may stand still. Beyond, its engine is replaced.
	WorkerLimit = 100 * time.Millisecond
	// ServerLimit is the same for one request of control to an engine: opening and
	// closing a large guest's memory takes its time.
	ServerLimit = 2 * time.Second
	// every is the time between two looks, idleEvery where all workers sleep and no
	// request is under way.
	every     = 20 * time.Millisecond
	idleEvery = 100 * time.Millisecond
)

// Engine is what the watchdog looks at.
type Engine struct {
	PID     int
	Workers []*datapath.Shared
	// Pending returns the request under way.
	Pending func() engine.Pending
	// Gone is closed once the engine has ended.
	Gone <-chan struct{}
}

// Watch looks at an engine until it ends, ok being false then, or until it hangs.
func Watch(e Engine) (h Hang, ok bool) {
	w := newWatch(e)
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-e.Gone:
			return Hang{}, false
		case <-timer.C:
		}
		h, hung, idle := w.look(uint64(time.Since(w.began)))
		if hung {
			return h, true
		}
		if idle {
			timer.Reset(idleEvery)
		} else {
			timer.Reset(every)
		}
	}
}

type watch struct {
	Engine
	began   time.Time
	workers []standstill // index: worker
	server  standstill
	thread  func(pid int, tid uint64) (thread, error)
	others  func(pid int, but func(uint64) bool) (thread, error)
}

func newWatch(e Engine) *watch {
	return &watch{Engine: e, began: time.Now(), workers: make([]standstill, len(e.Workers)), thread: readThread, others: readOthers}
}

// look is one look at a time of the watch's own clock.
func (w *watch) look(atNS uint64) (h Hang, hung, idle bool) {
	idle = true
	longest := uint64(0)
	for i, sh := range w.Workers {
		at := read(sh.InHand)
		if at.Thread == 0 {
			continue // does not run yet: the request to start it is under way
		}
		ns, t := w.workers[i].observe(progress{atomic.LoadUint64(&sh.Counters.HeartbeatNS), at.Visit}, atNS,
			func() (thread, error) { return w.thread(w.PID, at.Thread) })
		limit := uint64(WorkerLimit)
		if at.Asleep != 0 {
			limit += datapath.MaxSleepNS
		} else {
			idle = false
		}
		// Where one hangs, others that wait for a queue of its follow; the first is to
		// blame.
		if ns >= limit && ns > longest && !datapath.Sending(at.Sending).Awaiting() {
			longest = ns
			h, hung = Hang{Worker: i, Standing: time.Duration(ns), State: t.state, Suspects: inHand(at)}, true
		}
	}
	if hung {
		return h, true, false
	}
	h, hung = w.lookAtServer(atNS, &idle)
	return h, hung, idle
}

func (w *watch) lookAtServer(atNS uint64, idle *bool) (h Hang, hung bool) {
	r := w.Pending()
	if r.Number == 0 {
		w.server = standstill{}
		return h, false
	}
	*idle = false
	ns, t := w.server.observe(progress{r.Number}, atNS, func() (thread, error) { return w.others(w.PID, w.isWorker) })
	if ns < uint64(ServerLimit) {
		return h, false
	}
	h = Hang{Worker: NoWorker, Request: r.Op, Standing: time.Duration(ns), State: t.state}
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

// read copies what the worker writes meanwhile.
func read(hand *datapath.InHand) datapath.InHand {
	return datapath.InHand{
		Visit: atomic.LoadUint64(&hand.Visit), Sending: atomic.LoadUint64(&hand.Sending),
		Asleep: atomic.LoadUint64(&hand.Asleep), Thread: atomic.LoadUint64(&hand.Thread),
	}
}

// inHand names the ports whose memory or descriptors the worker may be touching. A
// flush touches the port flushed alone; sending copies from the port that the frames
// came from.
func inHand(at datapath.InHand) []Suspect {
	var list []Suspect
	to, from := datapath.Sending(at.Sending), datapath.Visit(at.Visit)
	if to.Port() != 0 {
		list = append(list, Suspect{Port: to.Port(), Queue: to.Queue(), Sending: true})
	}
	if from.Port() != 0 && from.Port() != to.Port() && !to.Flushing() {
		list = append(list, Suspect{Port: from.Port(), Queue: from.Queue()})
	}
	return list
}

// NoWorker is Hang.Worker where the engine's server hangs, NoQueue is Suspect.Queue
// where the whole port is meant.
const (
	NoWorker = -1
	NoQueue  = -1
)

// Hang is an engine that stands still.
type Hang struct {
	Worker   int
	Request  string // that the server does not answer
	Standing time.Duration
	State    byte      // of the thread, see proc_pid_stat(5)
	Suspects []Suspect // at most two
}

// Suspect is a queue that was in hand.
type Suspect struct {
	Port    uint32
	Queue   int
	Sending bool // a transmit queue
}

// Text names the hang in one line, ports by name.
func (h Hang) Text(name func(port uint32) string) string {
	text := fmt.Sprintf("worker %d has stood still for %d ms (%s)", h.Worker, h.Standing.Milliseconds(), stateText(h.State))
	if h.Worker == NoWorker {
		text = fmt.Sprintf("the engine has not answered the request %q for %.1f s", h.Request, h.Standing.Seconds())
	}
	for i, s := range h.Suspects {
		text += [2]string{", with ", " and "}[i] + s.text(name)
	}
	if len(h.Suspects) > 0 {
		text += " in hand"
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
