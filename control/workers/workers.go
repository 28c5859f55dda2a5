// SPDX-License-Identifier: Apache-2.0

// Package workers gives control access to one engine's workers: their command rings,
// and the memory that they share with control. Workers.mu guards control's ends of
// the rings. It is the innermost lock of control: every package may call this
// package, and this package calls no other.
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

// Max is the limit of --workers. The counter region has a block for each of this many
// workers.
const Max = 64

// ErrGone means that the engine died before it applied a command. The next engine
// gets all of control's state, so callers that changed tables ignore the error.
var ErrGone = errors.New("the engine has died, another is being started: try again")

// Workers has one engine's workers: the memory shared with them and control's ends of
// their command rings. A new engine gets new Workers.
type Workers struct {
	mem    *engine.Memory
	shared []*datapath.Shared // index: worker
	gone   atomic.Bool        // the engine has died, and new commands are discarded

	// mu guards commands. It is the innermost lock of control.
	mu       sync.Mutex
	commands []*shm.Producer // index: worker
}

// New returns the workers of an engine that runs on mem. The workers are marked as
// gone as soon as the channel gone is closed. The mark must not wait for the engine's
// replacement, because the replacement may need a lock that a goroutine holds while
// it waits for these workers.
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

// CommandRoom is the size in bytes of a buffer in which commands with few actions are
// encoded without an allocation.
const CommandRoom = 1 << 10

// Push sends one command to worker i. It waits while the command ring is full. It
// returns false if the engine has died.
func (w *Workers) Push(i int, msg []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	ok := w.queueLocked(i, msg)
	w.commands[i].Publish()
	return ok
}

// Queue queues one command for worker i like Push, but does not wake the worker. The
// worker reads the command after Publish.
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

// Publish wakes worker i to read the commands queued for it.
func (w *Workers) Publish(i int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.commands[i].Publish()
}

// PublishAll calls Publish for all workers.
func (w *Workers) PublishAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.commands {
		w.commands[i].Publish()
	}
}

// QueueAll queues one command for all workers, which read it after PublishAll. All
// workers get the commands of QueueAll in the same order.
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

// WaitApplied waits until the workers have applied every command sent so far. It
// returns ErrGone if the engine has died.
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

// Shared returns the memory shared with each worker.
func (w *Workers) Shared() []*datapath.Shared { return w.shared }

// Connections returns the connection table.
func (w *Workers) Connections() *conntrack.Memory { return &w.mem.Connections }

// Memory returns the engine's memory.
func (w *Workers) Memory() *engine.Memory { return w.mem }

// Gone reports whether the engine has died. Commands to a dead engine are discarded.
func (w *Workers) Gone() bool { return w.gone.Load() }

// MarkGone marks the engine as dead.
func (w *Workers) MarkGone() { w.gone.Store(true) }
