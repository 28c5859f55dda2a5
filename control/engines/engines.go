// SPDX-License-Identifier: Apache-2.0

// Package engines runs the engine process. It starts an engine or takes over a running one. It keeps a
// spare engine (a started process that waits), and replaces an engine that dies or hangs. A new engine
// gets all of its state from the control process.
//
// Present.mu guards the client of the present engine; no other lock is taken under Present.mu. The
// configuration lock guards everything else, and is held during a replacement. Package engines calls the
// ports and the pipeline. The ports only know a Present, from which they get the client.
package engines

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"weft/conntrack"
	"weft/control/change"
	"weft/control/counters"
	"weft/control/macs"
	"weft/control/pipeline"
	"weft/control/ports"
	"weft/control/underlay"
	"weft/engine"
	"weft/internal/buildinfo"
)

// Launcher starts engine processes and finds running ones. exe is the program, dir the state
// directory.
type Launcher interface {
	// Prepare starts a spare engine, which waits until it is needed. It returns nil if
	// this launcher has no spares.
	Prepare(exe, dir string, workers int) (*engine.Spare, error)
	Spawn(exe, dir string) (Client, error)
	// Rehearse checks that an engine can start with the configuration s, while another one serves dir.
	Rehearse(exe, dir string, s engine.Start) error
	// Connect connects to the running engine. The errors fs.ErrNotExist and ECONNREFUSED mean that no
	// engine runs.
	Connect(dir string) (Client, error)
}

// Processes is a Launcher that starts each engine as a process.
type Processes struct{}

func (Processes) Prepare(exe, dir string, workers int) (*engine.Spare, error) {
	return engine.Prepare(exe, dir, workers)
}

func (Processes) Rehearse(exe, dir string, s engine.Start) error {
	return engine.Rehearse(exe, dir, s)
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

// ConnectionStore keeps the tracked connections on the disk while the switch is stopped.
type ConnectionStore interface {
	LoadConnections(table *conntrack.Memory) (n int, saved bool, err error)
	SaveConnections(table *conntrack.Memory) error
}

// Setup has the dependencies and settings of Engines.
type Setup struct {
	Configuration *change.Configuration // the configuration lock
	Launcher      Launcher
	Exe, Dir      string // Exe is the binary that contains the engine. Dir is the state directory.
	Start         engine.Start
	Store         ConnectionStore
	Pipeline      *pipeline.Pipeline
	Ports         *ports.Ports
	Present       *Present   // the Present through which Ports finds the engine
	MACs          *macs.MACs // the MACs of Pipeline
	Templates     *underlay.Templates
	// Delayed is called when the start waits because no new engine can start. reason is
	// one line. Delayed may be nil.
	Delayed func(reason string)
	Log     *slog.Logger
}

// Engines manages the present engine, the spare engine and replacements. See the
// package comment for its locks.
type Engines struct {
	configuration *change.Configuration
	launcher      Launcher
	image         image
	dir           string
	start         engine.Start
	store         ConnectionStore
	pipeline      *pipeline.Pipeline
	macs          *macs.MACs
	ports         *ports.Ports
	templates     *underlay.Templates
	delayed       func(reason string)
	log           *slog.Logger

	region *counters.Region // counters, which the engine keeps
	// engine process that waits to replace the present one; nil: none; guarded by the configuration
	// lock
	spare *engine.Spare
	guard *guard // watches the present engine for hangs; written under the configuration lock

	present  *Present
	restarts atomic.Uint64          // number of engines that died
	trouble  atomic.Pointer[string] // why API requests must wait; nil: there is no known reason
	replaced replacements
}

// New returns Engines that have no engine yet.
func New(s Setup) *Engines {
	s.Start.OptionsKey = engine.NewOptionsKey()
	return &Engines{configuration: s.Configuration, launcher: s.Launcher, image: newImage(s.Exe), dir: s.Dir, start: s.Start, store: s.Store,
		pipeline: s.Pipeline, ports: s.Ports, present: s.Present, macs: s.MACs, templates: s.Templates, delayed: s.Delayed, log: s.Log}
}

// Present has the client of the engine that runs now. Its zero value means that no engine runs. Engines
// sets it, and the ports get the client from it.
type Present struct {
	mu     sync.Mutex
	client Client // nil: none
}

func (p *Present) current() Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client
}

func (p *Present) set(c Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.client = c
}

// Client implements ports.Engine. It returns nil if there is no engine.
func (p *Present) Client() ports.Client {
	if c := p.current(); c != nil {
		return c
	}
	return nil
}

// Current returns the client of the present engine, or nil if there is none.
func (es *Engines) Current() Client { return es.present.current() }

// PID returns the process id of the present engine, or 0 if there is none.
func (es *Engines) PID() int {
	if c := es.Current(); c != nil {
		return c.PID()
	}
	return 0
}

// Build returns the build of the present engine, or a zero Build if there is none.
func (es *Engines) Build() buildinfo.Build {
	if c := es.Current(); c != nil {
		return c.Build()
	}
	return buildinfo.Build{}
}

// Replaced counts replaced engines by reason.
type Replaced struct {
	All                          uint64 // engines that have ended, including one that is not replaced yet
	Died, WorkerHung, ServerHung uint64 // replaced engines
}

// Replaced returns the counts since the control process started.
func (es *Engines) Replaced() Replaced {
	r := &es.replaced
	return Replaced{All: es.restarts.Load(), Died: r.died.Load(), WorkerHung: r.worker.Load(), ServerHung: r.server.Load()}
}

// Stop ends the engine and the spare engine, and saves the tracked connections. The caller must have
// ended Supervise before.
func (es *Engines) Stop(*change.Tx) {
	if es.spare != nil { // the spare engine would otherwise take over
		es.spare.Close()
		es.spare = nil
	}
	if c := es.Current(); c != nil {
		if err := c.Stop(); err != nil && !errors.Is(err, engine.ErrGone) {
			es.log.Error("the engine does not stop, killing it", "error", err)
			if err := c.Kill(); err != nil {
				es.log.Error("the engine cannot be killed", "error", err)
			}
		}
		c.Close()
		engine.RemoveSockets(es.dir)
	}
	if w := es.pipeline.Workers(); w != nil {
		if err := es.store.SaveConnections(w.Connections()); err != nil {
			es.log.Error("connections cannot be saved", "error", err)
		}
	}
}
