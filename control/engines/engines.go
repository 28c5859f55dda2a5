// Package engines runs the engine: it takes over one that lives or starts one, keeps a
// spare ready, replaces an engine that dies or hangs, and gives its successor what control
// holds: workers, templates, terminations, meters, megaflows, ports.
//
// Engines owns the present engine's client under Engines.mu, which is never held while
// another lock is taken; the rest of its state is changed under the lock of changes, which
// it takes for a whole replacement: no table and no port changes meanwhile. It calls the
// ports and the pipeline; nobody under it calls it but the ports, which ask for the client.
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

// Launcher starts engines and finds those that run. Dir is the state directory.
type Launcher interface {
	// Prepare starts a spare engine with room for some workers; nil, nil: none.
	Prepare(exe, dir string, workers int) (*engine.Spare, error)
	Spawn(exe, dir string) (Client, error)
	// Connect finds the engine that serves dir; fs.ErrNotExist or ECONNREFUSED: none.
	Connect(dir string) (Client, error)
}

// Processes is the Launcher of engines in processes of their own.
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

// ConnectionStore keeps the connections from a stop to the next start.
type ConnectionStore interface {
	LoadConnections(table *conntrack.Memory) (n int, saved bool, err error)
	SaveConnections(table *conntrack.Memory) error
}

// Setup is what Engines are made of.
type Setup struct {
	Change    sync.Locker // the lock of changes
	Launcher  Launcher
	Exe, Dir  string // the binary with the engine in it; the state directory
	Start     engine.Start
	Store     ConnectionStore
	Pipeline  *pipeline.Pipeline
	Templates *underlay.Templates
	Log       *slog.Logger
}

// Engines are the present engine, its spare and their successors. See the package's
// comment for their locks.
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

	region *counters.Region // what was counted, for the engine to keep
	spare  *engine.Spare    // nil: none; change
	guard  *guard           // of the present engine; change, for writing

	mu     sync.Mutex
	client Client // nil: none; mu

	restarts atomic.Uint64          // engines that died
	trouble  atomic.Pointer[string] // why requests have to wait; nil: nothing is known
	replaced replacements
}

// New has no engine. Nothing may be asked of it but Client before attach.
func New(s Setup) *Engines {
	return &Engines{change: s.Change, launcher: s.Launcher, exe: s.Exe, dir: s.Dir, start: s.Start, store: s.Store,
		pipeline: s.Pipeline, templates: s.Templates, log: s.Log}
}

// Attach gives the engines the ports, before anything else.
func (es *Engines) Attach(p *ports.Ports) { es.ports = p }

// Current returns the client, nil while there is no engine.
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

// Client is ports.Engine's: the present engine, nil while there is none.
func (es *Engines) Client() ports.Client {
	if c := es.Current(); c != nil {
		return c
	}
	return nil
}

// PID is the process of the present engine, 0 while there is none.
func (es *Engines) PID() int {
	if c := es.Current(); c != nil {
		return c.PID()
	}
	return 0
}

// Replaced counts the engines that were replaced.
type Replaced struct {
	All                          uint64 // that ended, whether or not another has started
	Died, WorkerHung, ServerHung uint64 // by reason
}

// Replaced are the counts of now.
func (es *Engines) Replaced() Replaced {
	r := &es.replaced
	return Replaced{All: es.restarts.Load(), Died: r.died.Load(), WorkerHung: r.worker.Load(), ServerHung: r.server.Load()}
}

// Stop ends the spare and the engine, and saves the connections. Caller holds change, and
// has ended supervise.
func (es *Engines) Stop() {
	if es.spare != nil { // before the engine, whose place it would take
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
	// Its socket is in this process's directory, and nobody answers it now.
	_ = os.Remove(filepath.Join(es.dir, engine.SocketName))
}
