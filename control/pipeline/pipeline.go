// SPDX-License-Identifier: Apache-2.0

// Package pipeline decides how frames are treated. It has rules, groups and meters
// and their changes, the state that frames and ports teach, the translation of misses
// into megaflows, their revalidation, and the statistics of all of them.
//
// Pipeline owns this state under Pipeline.mu: the tables, the view of the ports, the
// present workers, and the credits of statistics. A miss holds mu for reading from
// its translation to the installation of its megaflow. A megaflow is therefore
// installed either before a change, which revalidates it, or after it. While mu is
// held, nothing waits except for room in a command ring and, to set a tap, for the
// workers. Inside mu are taken the locks of megaflows (slots, and the order of
// installations and removals), of macs, of the underlay and of the command rings.
//
// A change of the tables holds the lock of changes. It is taken before mu and belongs
// to the whole of control, so there is one change at a time, which may wait for the
// disk and for the workers. Changes come from the API, from learning and from the
// sweep, which take that lock; the ports and the supervision of engines hold it when
// they call.
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

// Store saves the tables. It may wait for the disk.
type Store interface {
	ChangeFlows(save iter.Seq[store.Flow], remove []uint32) error
	ChangeTables(groups, meters map[uint32]string, remove []uint32) error
	SaveTableConfigs(texts map[uint32]string) error
}

// Monitors get the events of changed flows.
type Monitors interface {
	// Count returns the number of monitors. Without any, flows are not described.
	Count() int
	TellFlow(now time.Time, event string, r *openflow.Rule, describe func() api.Flow)
}

// Ports is the part of the set of ports that the pipeline calls. It sees the ports
// themselves through its View.
type Ports interface {
	// UpdateLiveness sets a View with the ports that are down now, if a group watches
	// ports, and reports whether that has changed. The caller holds the lock of
	// changes.
	UpdateLiveness() (changed bool)
	// Fault reports that the workers have stopped using a port, and why. It takes the
	// lock of changes.
	Fault(number uint32, why string)
}

// Setup has the dependencies and settings of a Pipeline.
type Setup struct {
	// Change is the lock of changes.
	Change   sync.Locker
	Store    Store
	Monitors Monitors
	Sizes    flowtable.Sizes // sizes of the workers' caches
	Cores    []int           // index: worker
	Log      *slog.Logger
}

// Pipeline has the tables, their translation, and the resulting megaflows. See the
// package comment for its locks.
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
	rules    ruleBook                  // guarded by the lock of changes and mu
	places   []uint32                  // index: Rule.Slot; slot in the counter region
	byPlace  map[uint32]*openflow.Rule // key: slot in the counter region; used at the start only

	megaflows *megaflows
	macs      *macs
	recircs   *openflow.RecircTable
	templates *underlay.Templates

	upcalls   *upcalls      // guarded by the lock of changes
	macsStale chan struct{} // wakes maintain after addresses were learned
	lessons   chan lesson   // flows waiting to be learned
	unlearnt  atomic.Uint64 // number of learned flows that found no room
	refusals  atomic.Uint64 // number of misses executed without a megaflow
}

// New returns a Pipeline with empty tables, without ports and workers. Attach must be
// called before anything else.
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

// Attach sets the ports and templates that the pipeline uses.
func (pl *Pipeline) Attach(ports Ports, templates *underlay.Templates) {
	pl.ports, pl.templates = ports, templates
}

// Run updates counts, timeouts and learned flows until ctx ends.
func (pl *Pipeline) Run(ctx context.Context) {
	var done sync.WaitGroup
	done.Go(func() { pl.maintain(ctx) })
	done.Go(func() { pl.learnFlows(ctx) })
	done.Wait()
}

// Counts are figures of the pipeline, for metrics.
type Counts struct {
	Flows, Megaflows, MACs int
	TableFlows             map[uint8]int // number of flows, by table; empty tables are left out
	Refused                uint64        // misses executed without a megaflow
	NotLearnt              uint64        // flows of learn actions that found no room
}

// Counts returns the present figures.
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

// WatchesPorts reports whether a group watches ports. The caller holds the lock of
// changes.
func (pl *Pipeline) WatchesPorts() bool { return pl.tables.WatchesPorts() }

// ReadConnections calls read with the connection table, for its counters. It returns
// false if there is no table.
func (pl *Pipeline) ReadConnections(read func(m *conntrack.Memory)) bool {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	m, err := pl.connections()
	if err == nil {
		read(m)
	}
	return err == nil
}

// LimitRows is a limits.Source for tables, caches, learned state, addresses, and the
// memory shared with the workers.
func (pl *Pipeline) LimitRows(emit func(limits.Row)) {
	pl.megaflows.limitRows(emit)
	pl.tableLimitRows(emit)
	pl.workerLimitRows(emit)
	pl.learnedLimitRows(emit)
	pl.macs.limitRows(emit)
}
