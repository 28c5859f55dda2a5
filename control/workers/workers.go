// Package workers is one engine's workers as control has them: their command rings, and
// the memory that they share with control. Workers.mu guards the producing ends of the
// rings. It is the innermost lock of control: every package may call this one, and it
// calls none.
package workers

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"weft/conntrack"
	"weft/datapath"
	"weft/engine"
	"weft/internal/shm"
)

// Max bounds --workers: the counter region has as many blocks.
const Max = 64

// ErrGone says that the engine died before it applied a command. The next engine
// is sent everything that control holds, so callers that changed tables ignore it.
var ErrGone = errors.New("the engine has died, another is being started: try again")

// Workers are one engine's workers: the memory shared with them and the producing ends
// of their command rings. They are replaced as a whole with the engine.
type Workers struct {
	mem    *engine.Memory
	shared []*datapath.Shared // index: worker
	gone   atomic.Bool        // the engine has died: commands go nowhere

	// mu guards the producers. It is the innermost lock.
	mu       sync.Mutex
	commands []*shm.Producer // index: worker
}

// New prepares the workers that an engine runs on mem. They are gone as soon as
// that channel is closed, whatever delays their replacement: the replacement may need a
// lock whose holder waits for these workers.
func New(mem *engine.Memory, gone <-chan struct{}) *Workers {
	w := &Workers{mem: mem, shared: mem.Shared}
	for i, sh := range mem.Shared {
		w.commands = append(w.commands, shm.NewProducer(sh.Commands, mem.CommandEvents[i]))
	}
	go func() {
		<-gone
		w.gone.Store(true)
	}()
	return w
}

// CommandRoom is the size in bytes of a command of few actions, which is encoded
// without allocating.
const CommandRoom = 1 << 10

// Push sends one command to worker i and waits where its ring is full. It reports
// false if the engine was gone before.
func (w *Workers) Push(i int, msg []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	ok := w.queueLocked(i, msg)
	w.commands[i].Publish()
	return ok
}

// Queue is Push without the wake-up: the worker reads the command once its ring is
// published.
func (w *Workers) Queue(i int, msg []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queueLocked(i, msg)
}

func (w *Workers) queueLocked(i int, msg []byte) bool {
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

// Publish wakes worker i for the commands queued for it.
func (w *Workers) Publish(i int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.commands[i].Publish()
}

// PublishAll is publish for all workers.
func (w *Workers) PublishAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.commands {
		w.commands[i].Publish()
	}
}

// QueueAll sends one command to all workers, which get all such commands in one order.
// They read it once their rings are published.
func (w *Workers) QueueAll(msg []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.commands {
		w.queueLocked(i, msg)
	}
}

// Broadcast sends one command to all workers and wakes them.
func (w *Workers) Broadcast(msg []byte) {
	w.QueueAll(msg)
	w.PublishAll()
}

// WaitApplied waits until every command sent so far has taken effect, or the engine
// is gone: ErrGone.
func (w *Workers) WaitApplied() error {
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
				return ErrGone
			}
			time.Sleep(wait)
			wait = min(2*wait, time.Millisecond)
		}
	}
	return nil
}

// Shared is the memory shared with each worker.
func (w *Workers) Shared() []*datapath.Shared { return w.shared }

// Connections is the connection table.
func (w *Workers) Connections() *conntrack.Memory { return &w.mem.Connections }

// Memory is the engine's memory.
func (w *Workers) Memory() *engine.Memory { return w.mem }

// Gone tells whether the engine has died: commands go nowhere.
func (w *Workers) Gone() bool { return w.gone.Load() }

// MarkGone says that the engine has died.
func (w *Workers) MarkGone() { w.gone.Store(true) }
