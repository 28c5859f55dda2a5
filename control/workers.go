package control

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"weft/conntrack"
	"weft/control/observe"
	"weft/control/watchdog"
	"weft/datapath"
	"weft/engine"
	"weft/internal/shm"
)

// maxWorkers bounds --workers: the counter region has as many blocks.
const maxWorkers = 64

// errEngineGone says that the engine died before it took what it was sent. What
// control holds is sent to the next one, so callers that changed tables ignore
// it.
var errEngineGone = errors.New("the engine has died, another is being started: try again")

// workers are one engine's workers: the memory shared with them and the
// producing ends of their command rings. They are replaced as a whole when the
// engine is.
type workers struct {
	mem    *engine.Memory
	shared []*datapath.Shared // index: worker
	gone   atomic.Bool        // the engine has died: commands go nowhere
	// hang is why the watchdog killed the engine, nil if it did not; watched is closed
	// once it reads the memory no more.
	hang    atomic.Pointer[watchdog.Hang]
	watched chan struct{}

	// mu guards the producers. It is the innermost lock.
	mu       sync.Mutex
	commands []*shm.Producer // index: worker
}

// newWorkers prepares the workers that client's engine runs on mem. Their gone is
// set as soon as that engine dies, whatever holds up those who are to replace it:
// they may need a lock of somebody who waits for these workers.
func newWorkers(mem *engine.Memory, client engineClient) *workers {
	w := &workers{mem: mem, shared: mem.Shared}
	for i, sh := range mem.Shared {
		w.commands = append(w.commands, shm.NewProducer(sh.Commands, mem.CommandEvents[i]))
	}
	go func() {
		<-client.Gone()
		w.gone.Store(true)
	}()
	return w
}

// commandRoom is the size of a command of few actions, to be encoded without
// allocating; larger ones take what they need.
const commandRoom = 1 << 10

// Push sends one command to worker i and waits where its ring is full. It reports
// false if the engine was gone before.
func (w *workers) Push(i int, msg []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	ok := w.queueLocked(i, msg)
	w.commands[i].Publish()
	return ok
}

// queue is push, of which the worker hears when its ring is published next.
func (w *workers) queue(i int, msg []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queueLocked(i, msg)
}

func (w *workers) queueLocked(i int, msg []byte) bool {
	for wait := time.Microsecond; !w.gone.Load(); wait = min(2*wait, time.Millisecond) {
		if room := w.commands[i].Reserve(len(msg)); room != nil {
			copy(room, msg)
			w.commands[i].Commit()
			return true
		}
		w.commands[i].Publish()
		time.Sleep(wait)
	}
	return false
}

// publish lets worker i hear of what is queued for it.
func (w *workers) publish(i int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.commands[i].Publish()
}

// publishAll is publish for all workers.
func (w *workers) publishAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.commands {
		w.commands[i].Publish()
	}
}

// queueAll sends one command to all workers, in the same order as every other of
// its kind. They hear of it when their rings are published next.
func (w *workers) queueAll(msg []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.commands {
		w.queueLocked(i, msg)
	}
}

// Broadcast is queueAll, of which the workers hear at once.
func (w *workers) Broadcast(msg []byte) {
	w.queueAll(msg)
	w.publishAll()
}

// WaitApplied waits until every command sent so far has taken effect, or the engine
// is gone: errEngineGone.
func (w *workers) WaitApplied() error {
	w.mu.Lock()
	targets := make([]uint64, len(w.commands))
	for i, p := range w.commands {
		targets[i] = p.Publish()
	}
	w.mu.Unlock()
	wait := time.Microsecond
	for i, p := range w.commands {
		for p.Done() < targets[i] {
			if w.gone.Load() {
				return errEngineGone
			}
			time.Sleep(wait)
			wait = min(2*wait, time.Millisecond)
		}
	}
	return nil
}

// Shared is the memory shared with each worker.
func (w *workers) Shared() []*datapath.Shared { return w.shared }

// Connections is the connection table.
func (w *workers) Connections() conntrack.Memory { return w.mem.Connections }

// Hold is observe.Engine's: it returns the workers of the present engine, which stay
// until release.
func (d *Daemon) Hold() (w observe.Workers, release func()) {
	d.mu.RLock()
	if d.workers == nil {
		return nil, d.mu.RUnlock
	}
	return d.workers, d.mu.RUnlock
}
