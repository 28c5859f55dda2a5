// Package pipeline decides what is done with frames: rules, groups and meters and their
// changes, what flows and ports teach, the translation of misses into megaflows, their
// revalidation, and the counts of all of them.
//
// Pipeline owns this state under Pipeline.mu: the tables, the view of the ports, the
// present workers, and what statistics are credited to. Misses hold mu for reading from
// translation to installation, so that a megaflow is from before a change, and
// revalidated by it, or from after it. Nothing is waited for under mu but room in a
// command ring and, for the setting of a tap, the workers. Inside mu are taken the locks
// of megaflows (slots, and the order of install and remove), of macs, of the underlay and
// of the command rings.
//
// A change of the tables is made under the lock of changes, which is taken before mu and
// belongs to the whole of control: one change at a time. It may wait for the disk and for
// the workers. Changes come from the API, from learning and from the sweep, which take
// that lock; the ports and the supervision of engines hold it when they call.
package pipeline

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"weft/api"
	"weft/conntrack"
	"weft/control/counters"
	"weft/control/limits"
	"weft/control/store"
	"weft/control/underlay"
	"weft/control/workers"
	"weft/flowtable"
	"weft/openflow"
)

// Store saves the tables; it may wait for the disk.
type Store interface {
	ChangeFlows(save iter.Seq[store.Flow], remove []uint32) error
	ChangeTables(groups, meters map[uint32]string, remove []uint32) error
	SaveTableConfigs(texts map[uint32]string) error
}

// Monitors are told of changed flows.
type Monitors interface {
	// Count is the number of monitors: without any, flows are not described.
	Count() int
	TellFlow(now time.Time, event string, r *openflow.Rule, describe func() api.Flow)
}

// Ports are the ports as the pipeline needs them besides its View.
type Ports interface {
	// UpdateLiveness sets a View with the ports that are down now, if a group watches
	// ports, and reports whether that has changed. Caller holds the change lock.
	UpdateLiveness() (changed bool)
	// Fault says that the workers have stopped using a port, and why. It takes the
	// change lock.
	Fault(number uint32, why string)
}

// Setup is what a Pipeline is made of.
type Setup struct {
	// Change is the lock of changes.
	Change   sync.Locker
	Store    Store
	Monitors Monitors
	Sizes    flowtable.Sizes // of the workers' caches
	Cores    []int           // index: worker
	Log      *slog.Logger
}

// Pipeline is the tables, their translation, and the megaflows that came of it. See the
// package's comment for its locks.
type Pipeline struct {
	change   sync.Locker
	log      *slog.Logger
	store    Store
	monitors Monitors
	ports    Ports
	sizes    flowtable.Sizes
	cores    []int

	mu       sync.RWMutex
	tables   *openflow.Pipeline
	view     *View
	workers  *workers.Workers // nil before the first engine
	counters *counters.Region
	rules    ruleBook                  // change and mu
	places   []uint32                  // index: Rule.Slot; place in the counter region
	byPlace  map[uint32]*openflow.Rule // used at the start only

	megaflows *megaflows
	macs      *macs
	recircs   *openflow.RecircTable
	templates *underlay.Templates

	upcalls   *upcalls      // change
	macsStale chan struct{} // addresses were learnt: megaflows are to be revalidated
	lessons   chan lesson   // to be learnt
	unlearnt  atomic.Uint64 // flows that found no room
	refusals  atomic.Uint64 // misses executed without a megaflow
}

// New makes empty tables, without ports and workers. Nothing may be asked of it
// before attach.
func New(s Setup) *Pipeline {
	return &Pipeline{
		change: s.Change, log: s.Log, store: s.Store, monitors: s.Monitors, sizes: s.Sizes, cores: s.Cores,
		tables:    openflow.NewPipeline(openflow.Limits{Rules: counters.MaxRules}),
		view:      &View{},
		megaflows: newMegaflows(s.Sizes),
		macs:      newMACs(),
		recircs:   openflow.NewRecircTable(),
		macsStale: make(chan struct{}, 1),
		lessons:   make(chan lesson, learnQueue),
	}
}

// Attach gives the pipeline its ports and its templates, before anything else.
func (pl *Pipeline) Attach(ports Ports, templates *underlay.Templates) {
	pl.ports, pl.templates = ports, templates
}

// Run keeps counts, timeouts and learnt flows current, until ctx ends.
func (pl *Pipeline) Run(ctx context.Context) {
	var done sync.WaitGroup
	done.Go(func() { pl.maintain(ctx) })
	done.Go(func() { pl.learnFlows(ctx) })
	done.Wait()
}

// Counts are numbers of the pipeline, for whoever shows them.
type Counts struct {
	Flows, Megaflows, MACs int
	TableFlows             map[uint8]int // flows of tables that have some
	Refused                uint64        // misses executed without a megaflow
	NotLearnt              uint64        // flows of learn actions that found no room
}

// Counts are those of now.
func (pl *Pipeline) Counts() Counts {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	c := Counts{Flows: pl.tables.Len(), Megaflows: pl.megaflows.len(), MACs: pl.macs.len(), TableFlows: map[uint8]int{},
		Refused: pl.refusals.Load(), NotLearnt: pl.unlearnt.Load()}
	for table := range uint8(openflow.Tables) {
		if _, flows := pl.tables.Config(table); flows > 0 {
			c.TableFlows[table] = flows
		}
	}
	return c
}

// WatchesPorts tells whether a group watches ports. Caller holds the change lock.
func (pl *Pipeline) WatchesPorts() bool { return pl.tables.WatchesPorts() }

// ReadConnections calls read with the connection table, for its counters; it reports
// false if there is none.
func (pl *Pipeline) ReadConnections(read func(m *conntrack.Memory)) bool {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	m, err := pl.connections()
	if err == nil {
		read(m)
	}
	return err == nil
}

// LimitRows is a limits.Source: tables, caches, learning, addresses, and the memory
// shared with the workers.
func (pl *Pipeline) LimitRows(emit func(limits.Row)) {
	pl.megaflows.limitRows(emit)
	pl.tableLimitRows(emit)
	pl.workerLimitRows(emit)
	pl.learnedLimitRows(emit)
	pl.macs.limitRows(emit)
}
