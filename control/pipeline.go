package control

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"weft/api"
	"weft/control/counters"
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
	view     *portView
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

// newPipeline makes empty tables, without ports and workers. Nothing may be asked of it
// before attach.
func newPipeline(s Setup) *Pipeline {
	return &Pipeline{
		change: s.Change, log: s.Log, store: s.Store, monitors: s.Monitors, sizes: s.Sizes, cores: s.Cores,
		tables:    openflow.NewPipeline(openflow.Limits{Rules: counters.MaxRules}),
		view:      &portView{},
		megaflows: newMegaflows(s.Sizes),
		macs:      newMACs(),
		recircs:   openflow.NewRecircTable(),
		macsStale: make(chan struct{}, 1),
		lessons:   make(chan lesson, learnQueue),
	}
}

// attach gives the pipeline its ports and its templates, before anything else.
func (d *Pipeline) attach(ports Ports, templates *underlay.Templates) {
	d.ports, d.templates = ports, templates
}

// run keeps counts, timeouts and learnt flows current, until ctx ends.
func (d *Pipeline) run(ctx context.Context) {
	var done sync.WaitGroup
	done.Go(func() { d.maintain(ctx) })
	done.Go(func() { d.learnFlows(ctx) })
	done.Wait()
}
