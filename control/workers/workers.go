// SPDX-License-Identifier: Apache-2.0

// Package workers gives the control process access to the workers of one engine: their command rings and
// shared memory. Workers.mu is the last lock that the control process takes.
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

// Max is the largest number of workers (option --workers). The counter region has
// blocks for as many workers.
const Max = 64

// ErrGone means that the engine died before it applied a command. Changes of tables ignore this
// error, because the next engine gets the whole state.
var ErrGone = errors.New("the engine has died, another is being started: try again")

// Workers gives access to the command rings and the shared memory of one engine's workers.
type Workers struct {
	mem    *engine.Memory
	shared []*datapath.Shared // index: worker
	ended  atomic.Bool        // the engine has died, and new commands are discarded

	// mu guards commands.
	mu       sync.Mutex
	commands []*shm.Producer // index: worker
}

// New returns the workers of an engine with shared memory mem. When the channel "ended" is
// closed, the engine counts as dead. Goroutines that wait for its workers then return, because
// they may hold a lock that the engine's replacement needs.
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

// CommandRoom is a buffer capacity in bytes that suffices for a command with few actions.
const CommandRoom = 1 << 10

// Push sends the command msg to worker i and wakes it. It waits while the worker's ring is
// full. It returns false if the engine has died.
func (w *Workers) Push(i int, msg []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	ok := w.queueLocked(i, msg)
	w.commands[i].Publish()
	return ok
}

// Queue adds a command to the ring of worker i, like Push, but does not wake the
// worker. Publish wakes it.
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

// Publish makes the queued commands visible to worker i and wakes it.
func (w *Workers) Publish(i int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.commands[i].Publish()
}

// PublishAll makes the queued commands visible to all workers and wakes them.
func (w *Workers) PublishAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.commands {
		w.commands[i].Publish()
	}
}

// Batch queues many commands under one acquisition of the lock. Workers.Batch locks the command
// rings; Batch.End unlocks them.
type Batch struct{ w *Workers }

// Batch locks the command rings and begins a batch of commands.
func (w *Workers) Batch() *Batch {
	w.mu.Lock()
	return &Batch{w}
}

// Queue adds a command to the ring of worker i, like Workers.Queue.
func (b *Batch) Queue(i int, msg []byte) { b.w.queueLocked(i, msg) }

// QueueAll adds a command to the rings of all workers, like Workers.QueueAll.
func (b *Batch) QueueAll(msg []byte) {
	for i := range b.w.commands {
		b.w.queueLocked(i, msg)
	}
}

// End unlocks the command rings. It wakes no worker.
func (b *Batch) End() { b.w.mu.Unlock() }

// QueueAll queues a command for all workers, which get the commands of several calls in the
// same order. PublishAll wakes the workers.
func (w *Workers) QueueAll(msg []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	(&Batch{w}).QueueAll(msg)
}

// Broadcast sends one command to all workers and wakes them.
func (w *Workers) Broadcast(msg []byte) {
	w.QueueAll(msg)
	w.PublishAll()
}

// WaitApplied waits until the workers have applied all commands. It returns ErrGone if
// the engine has died.
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

// Shared returns the shared memory of each worker, by the worker's index.
func (w *Workers) Shared() []*datapath.Shared { return w.shared }

// Connections returns the engine's table of tracked connections.
func (w *Workers) Connections() *conntrack.Memory { return &w.mem.Connections }

// Memory returns the memory that the control process shares with the engine.
func (w *Workers) Memory() *engine.Memory { return w.mem }

// Gone reports whether the engine has died.
func (w *Workers) Gone() bool { return w.ended.Load() }

// MarkGone marks the engine as dead.
func (w *Workers) MarkGone() { w.ended.Store(true) }
