// SPDX-License-Identifier: Apache-2.0

// Package engines runs the engine process. It takes over a living engine or starts
// one, keeps a spare engine ready, and replaces an engine that dies or hangs. A new
// engine gets all of control's state: workers, templates, terminations, meters,
// megaflows and ports.
//
// Engines.mu guards the client of the present engine. No other lock is taken while
// Engines.mu is held. The lock of changes guards the rest of the state. A replacement
// holds the lock of changes from begin to end, so no table and no port changes
// meanwhile. Engines calls the ports and the pipeline. The ports call Engines to get
// the client; the pipeline does not call Engines.
package engines

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"weft/conntrack"
	"weft/control/counters"
	"weft/control/pipeline"
	"weft/control/ports"
	"weft/control/underlay"
	"weft/engine"
)

// Launcher starts engines and finds running ones. dir is the state directory.
type Launcher interface {
	// Prepare starts a spare engine for the given number of workers. A Launcher
	// without spares returns nil, nil.
	Prepare(exe, dir string, workers int) (*engine.Spare, error)
	Spawn(exe, dir string) (Client, error)
	// Connect connects to the engine of the state directory. The error fs.ErrNotExist
	// or ECONNREFUSED means that no engine runs.
	Connect(dir string) (Client, error)
}

// Processes is a Launcher that starts each engine as a process.
type Processes struct{}

func (Processes) Prepare(exe, dir string, workers int) (*engine.Spare, error) {
	return engine.Prepare(exe, dir, workers)
}

func (Processes) Spawn(exe, dir string) (Client, error) {
	c, err := engine.Spawn(exe, dir)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (Processes) Connect(dir string) (Client, error) {
	c, err := engine.Connect(dir)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// ConnectionStore keeps the tracked connections on disk from a stop of the daemon to
// its next start.
type ConnectionStore interface {
	LoadConnections(table *conntrack.Memory) (n int, saved bool, err error)
	SaveConnections(table *conntrack.Memory) error
}

// Setup has the dependencies and settings of Engines.
type Setup struct {
	Change    sync.Locker // the lock of changes
	Launcher  Launcher
	Exe, Dir  string // Exe is the binary that contains the engine; Dir is the state directory
	Start     engine.Start
	Store     ConnectionStore
	Pipeline  *pipeline.Pipeline
	Templates *underlay.Templates
	Log       *slog.Logger
}

// Engines manages the present engine, the spare engine and replacements. See the
// package comment for its locks.
type Engines struct {
	change    sync.Locker
	launcher  Launcher
	exe, dir  string
	start     engine.Start
	store     ConnectionStore
	pipeline  *pipeline.Pipeline
	ports     *ports.Ports
	templates *underlay.Templates
	log       *slog.Logger

	region *counters.Region // counters, which the engine keeps
	spare  *engine.Spare    // spare engine, or nil; guarded by the lock of changes
	guard  *guard           // guard watches the present engine for hangs; written only under the lock of changes

	mu     sync.Mutex
	client Client // nil: none; guarded by mu

	restarts atomic.Uint64          // number of engines that died
	trouble  atomic.Pointer[string] // reason why API requests must wait, or nil if none is known
	replaced replacements
}

// New returns Engines without an engine. The caller must call Attach before any
// method except Client.
func New(s Setup) *Engines {
	return &Engines{change: s.Change, launcher: s.Launcher, exe: s.Exe, dir: s.Dir, start: s.Start, store: s.Store,
		pipeline: s.Pipeline, templates: s.Templates, log: s.Log}
}

// Attach sets the ports, which Engines attaches to each new engine.
func (es *Engines) Attach(p *ports.Ports) { es.ports = p }

// Current returns the client of the present engine, or nil if there is none.
func (es *Engines) Current() Client {
	es.mu.Lock()
	defer es.mu.Unlock()
	return es.client
}

func (es *Engines) setEngine(c Client) {
	es.mu.Lock()
	defer es.mu.Unlock()
	es.client = c
}

// Client implements ports.Engine: it returns the present engine, or nil if there is
// none.
func (es *Engines) Client() ports.Client {
	if c := es.Current(); c != nil {
		return c
	}
	return nil
}

// PID returns the process id of the present engine, or 0 if there is none.
func (es *Engines) PID() int {
	if c := es.Current(); c != nil {
		return c.PID()
	}
	return 0
}

// Replaced has numbers of replaced engines, by reason.
type Replaced struct {
	All                          uint64 // number of ended engines, including an engine whose successor has not started yet
	Died, WorkerHung, ServerHung uint64 // engines by reason
}

// Replaced returns the present counts.
func (es *Engines) Replaced() Replaced {
	r := &es.replaced
	return Replaced{All: es.restarts.Load(), Died: r.died.Load(), WorkerHung: r.worker.Load(), ServerHung: r.server.Load()}
}

// Stop ends the spare and the engine, and saves the tracked connections. The caller
// holds the lock of changes and has ended Supervise.
func (es *Engines) Stop() {
	if es.spare != nil { // The spare ends first, because it would otherwise replace the engine that ends.
		es.spare.Close()
		es.spare = nil
	}
	c := es.Current()
	if c == nil {
		return
	}
	if err := c.Stop(); err != nil && !errors.Is(err, engine.ErrGone) {
		es.log.Error("the engine does not stop, killing it", "error", err)
		if err := c.Kill(); err != nil {
			es.log.Error("the engine cannot be killed", "error", err)
		}
	}
	c.Close()
	if w := es.pipeline.Workers(); w != nil {
		if err := es.store.SaveConnections(w.Connections()); err != nil {
			es.log.Error("connections cannot be saved", "error", err)
		}
	}
	// Remove the ended engine's socket from the state directory.
	_ = os.Remove(filepath.Join(es.dir, engine.SocketName))
}
