// SPDX-License-Identifier: Apache-2.0

// Package enginetest has a fake engine in the test's process, with fake workers of
// package workertest.
package enginetest

import (
	"encoding/json"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/control/workers/workertest"
	"weft/engine"
	"weft/internal/buildinfo"
)

// Engine is an engines.Client that plays an engine. It also keeps the state of ports for the next
// control process, as a real engine does.
type Engine struct {
	mu       sync.Mutex
	Workers  []*workertest.Worker
	start    *engine.Kept
	attached map[uint32]engine.Kept
	kept     map[string]engine.Kept
	ended    chan struct{}
	dead     bool
	halted   bool
	recorded func() []engine.Kept // Recall returns its result; nil: Recall returns the kept requests
	stuck    bool                 // Kill returns engine.ErrStuck
	// Attaching is called at the start of each Attach, unless it is nil.
	Attaching func(port uint32)
	// Waiting is the result of Pending: the request that the engine has not answered yet.
	Waiting atomic.Pointer[engine.Pending]
}

func New() *Engine {
	return &Engine{ended: make(chan struct{}), attached: map[uint32]engine.Kept{}, kept: map[string]engine.Kept{}}
}

// NewRecorded returns a fake engine of another version. The function recorded replaces its Recall, which
// returns the state that the engine keeps for the control process.
func NewRecorded(recorded func() []engine.Kept) *Engine {
	e := New()
	e.recorded = recorded
	return e
}

// Attached returns the attached device of a port, or nil.
func (e *Engine) Attached(port uint32) *engine.Attach {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.attached[port].Request.Attach
}

func (e *Engine) PID() int { return os.Getpid() }

func (e *Engine) Build() buildinfo.Build { return buildinfo.Build{Version: "fake", Commit: "abc"} }

func (e *Engine) Gone() <-chan struct{} { return e.ended }

func (e *Engine) Wait() { <-e.ended }

func (e *Engine) Start(s engine.Start, m *engine.Memory) error {
	e.start = &engine.Kept{Request: engine.Request{Op: engine.OpStart, Start: &s}, FDs: duplicates(m.FDs())}
	own, err := engine.OpenMemory(s, duplicates(m.FDs()))
	if err != nil {
		return err
	}
	for i := range own.Shared {
		w := workertest.New(own.Shared[i], own.UpcallEvent, e.ended)
		e.Workers = append(e.Workers, w)
	}
	return nil
}

func duplicates(fds []int) []int {
	var dups []int
	for _, fd := range fds {
		dup, err := unix.Dup(fd)
		if err != nil {
			panic(err)
		}
		dups = append(dups, dup)
	}
	return dups
}

func (e *Engine) Attach(a engine.Attach, fds []int) error {
	if e.Attaching != nil {
		e.Attaching(a.Port)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead {
		return engine.ErrGone
	}
	e.attached[a.Port] = engine.Kept{Request: engine.Request{Op: engine.OpAttach, Attach: &a}}
	return nil
}

func (e *Engine) Detach(port uint32) (json.RawMessage, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead {
		return nil, engine.ErrGone
	}
	delete(e.attached, port)
	return nil, nil
}

func (e *Engine) Keep(key string, blob json.RawMessage, fds []int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead {
		return engine.ErrGone
	}
	e.kept[key] = engine.Kept{Request: engine.Request{Op: engine.OpKeep, Key: key, Blob: blob}, FDs: duplicates(fds)}
	return nil
}

func (e *Engine) Forget(key string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.kept, key)
	return nil
}

func (e *Engine) Recall() ([]engine.Kept, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.recorded != nil {
		return e.recorded(), nil
	}
	all := []engine.Kept{*e.start}
	for _, k := range e.attached {
		all = append(all, k)
	}
	for _, k := range e.kept {
		all = append(all, k)
	}
	for i := range all {
		all[i].FDs = duplicates(all[i].FDs)
	}
	return all, nil
}

func (e *Engine) Halt() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.halted = !e.dead
	return nil
}

// Halted implements engines.Client.
func (e *Engine) Halted() bool { return e.WasHalted() }

// WasHalted reports whether Halt was called before the engine's end.
func (e *Engine) WasHalted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.halted
}

func (e *Engine) Stop() error { return e.Kill() }

func (e *Engine) Kill() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.dead {
		e.dead = true
		close(e.ended)
	}
	if e.stuck {
		return engine.ErrStuck
	}
	return nil
}

// Quiesce implements engines.Client. It does the same as Kill.
func (e *Engine) Quiesce() error { return e.Kill() }

func (e *Engine) Close() error { return nil }

// MayKill implements engines.Client.
func (e *Engine) MayKill() bool { return true }

func (e *Engine) Condemn() { _ = e.Kill() }

func (e *Engine) Pending() engine.Pending {
	if p := e.Waiting.Load(); p != nil {
		return *p
	}
	return engine.Pending{}
}

// HasEnded reports whether the engine was killed.
func (e *Engine) HasEnded() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dead
}

// GetStuck makes Kill return engine.ErrStuck from now on.
func (e *Engine) GetStuck() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stuck = true
}
