// SPDX-License-Identifier: Apache-2.0

// Package workers gives control access to one engine's workers: command rings and
// shared memory. Workers.mu is the innermost lock of control.
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

// Max is the limit of --workers, and of the blocks in the counter region.
const Max = 64

// ErrGone means that the engine died before it applied a command. Changes of tables
// ignore it, because the next engine gets all state.
var ErrGone = errors.New("the engine has died, another is being started: try again")

// Workers has the workers of one engine.
type Workers struct {
	mem    *engine.Memory
	shared []*datapath.Shared // index: worker
	ended  atomic.Bool        // the engine has died, and new commands are discarded

	// mu guards commands.
	mu       sync.Mutex
	commands []*shm.Producer // index: worker
}

// New returns the workers of an engine on mem. Closing the channel ended marks them as
// gone at once, because goroutines may wait for them with a lock that the engine's
// replacement needs.
func New(mem *engine.Memory, ended <-chan struct{}) *Workers {
	w := &Workers{mem: mem, shared: mem.Shared}
	for i, sh := range mem.Shared {
		w.commands = append(w.commands, shm.NewProducer(sh.Commands, mem.CommandEvents[i]))
	}
	go func() {
		<-ended
		w.ended.Store(true)
	}()
	return w
}

// CommandRoom is a buffer size in bytes, enough for a command with few actions.
const CommandRoom = 1 << 10

// Push sends a command to worker i, and waits for room. It returns false if the
// engine has died.
func (w *Workers) Push(i int, msg []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	ok := w.queueLocked(i, msg)
	w.commands[i].Publish()
	return ok
}

// Queue is Push without waking the worker, which Publish does.
func (w *Workers) Queue(i int, msg []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queueLocked(i, msg)
}

func (w *Workers) queueLocked(i int, msg []byte) bool {
	for wait := time.Microsecond; !w.ended.Load(); wait = min(2*wait, time.Millisecond) {
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

// Publish makes worker i read its queued commands.
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

// QueueAll queues a command for all workers, in the same order everywhere. PublishAll
// wakes them.
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

// WaitApplied waits until all commands are applied, or returns ErrGone if the engine
// has died.
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
			if w.ended.Load() {
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

// Gone reports whether the engine has died.
func (w *Workers) Gone() bool { return w.ended.Load() }

// MarkGone marks the engine as dead.
func (w *Workers) MarkGone() { w.ended.Store(true) }
