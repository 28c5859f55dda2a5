// SPDX-License-Identifier: Apache-2.0

// Package pipeline decides how frames are treated. It has the OpenFlow tables. It looks up missed
// frames in them and installs the results in the workers as megaflows. It looks up megaflows again
// after changes (revalidation), and adds the counts of megaflows to their rules.
//
//   - pipeline.go: the type Pipeline, the state that all bridges share
//   - bridge.go: the type Bridge, the tables and ports of one bridge
//   - upcalls.go: reads the upcalls of the workers
//   - missqueue.go: decides which sender's miss is answered next
//   - misses.go: looks up a miss and makes a megaflow, or executes the frame's actions once
//   - questions.go: makes frames wait until weft-central tells where an address is
//   - requests.go: answers requests of guests, such as DHCP, on this host
//   - caches.go: installs megaflows in the workers, removes them and reads their counts
//   - offload.go: decides which megaflows run in the kernel
//   - changes.go: changes the tables, for control/tables and control/bridges
//   - reading.go: reads the tables and statistics, for the same packages
//   - commit.go: updates the megaflows at the end of a transaction
//   - revalidate.go: looks up megaflows again after a change
//   - sweep.go: updates statistics and applies timeouts, every second
//   - learn.go: adds the flows of learn actions
//   - rulebook.go: saves the tables to the disk
//   - rulerows.go: assigns each rule a row, which is its index on the disk and in its statistics
//   - ruleload.go: loads the tables from the disk
//   - packetout.go: executes frames that the operator or a controller sends
//   - resume.go: resumes paused frames for a controller
//   - portmeters.go: sets the token buckets of queues and of policing, and the weights of ports
//   - tell.go: reports changes of flows to monitors
//   - answertimes.go: measures the time from a miss to its answer
//   - limitrows.go: reports the use of each limited resource
//   - view.go: the set of ports that look-ups read
//   - networks.go: the ports, addresses and flows of weft-central, which configures many hosts
//   - handover.go: starts the pipeline, and replaces its engine
//   - recover.go: takes over the megaflows of an earlier control process
//
// Pipeline.mu guards the tables, the View and the statistics. A goroutine that answers a
// miss holds it for reading from the look-up to the installation of the megaflow, so
// that the tables do not change between the two. A goroutine that holds Pipeline.mu waits
// only for space in a command ring and, to set a tap, for the workers. questions.mu and
// the locks of control/megaflows, openflow/fdb, the underlay and the command rings are
// taken after Pipeline.mu.
//
// A change of the tables also holds the configuration lock, which all packages of the control
// process share and which is taken before Pipeline.mu. Such a change may wait for the disk and for
// the workers. The code for ports and for the replacement of engines also holds the
// configuration lock when it calls this package.
package pipeline

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"weft/control/change"
	"weft/control/counters"
	"weft/control/lease"
	"weft/control/megaflows"
	"weft/control/underlay"
	"weft/control/workers"
	"weft/datapath"
	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
)

// Setup has the dependencies and settings of a Pipeline.
type Setup struct {
	Configuration *change.Configuration // the configuration lock
	Name          string                // name of the first bridge; "": none
	Store         Store
	Templates     *underlay.Templates
	Monitors      Monitors
	Declared      Declared        // nil: no ports are declared
	Sizes         flowtable.Sizes // sizes of the workers' caches
	Log           *slog.Logger
}

// Pipeline has the OpenFlow tables of all bridges, and the megaflows, which cache the results of
// look-ups in them. The package comment describes its locks.
type Pipeline struct {
	configuration *change.Configuration
	log           *slog.Logger
	monitors      Monitors
	sizes         flowtable.Sizes
	// watches is called in each transaction that may change which ports the groups or bundle actions
	// watch, see OnWatches. If it is nil, nobody checks the liveness of ports.
	watches func(tx *change.Tx)
	seal    sealKey // authenticates continuations, see resume.go

	mu      sync.RWMutex
	*Bridge           // the first bridge
	bridges []*Bridge // by number; nil: no bridge; a change replaces the slice
	view    *View     // ports of all bridges
	// vlanLimit is the number of VLAN tags that flows see, see xlate.VLANLimiter.
	vlanLimit int
	workers   *workers.Workers // nil before the first engine
	counters  *counters.Region
	rules     *book

	megaflows *megaflows.Index
	offloads  offloads
	macs      *fdb.Table
	recircs   *xlate.RecircTable
	notes     *xlate.NoteTable
	options   *xlate.OptionTable
	templates *underlay.Templates

	declared  declaredPorts
	questions *questions
	leases    *lease.Table
	// portMeters has the token buckets of ports, by index in the workers' arrays of buckets.
	// portMetersBegun has the time of the last change of each. The configuration lock guards both.
	portMeters      map[uint32]datapath.Meter
	portMetersBegun map[uint32]uint64
	portWeights     map[uint32]uint32 // weights above 1 by port; guarded by the configuration lock
	learner         *learner
	saving          bool          // a timer will call saveLater; guarded by the configuration lock
	upcalls         *upcalls      // guarded by the configuration lock
	macsStale       chan struct{} // a message wakes up maintain after addresses were learned
	refusals        atomic.Uint64 // number of misses executed without a megaflow
	untranslated    atomic.Uint64 // number of megaflows removed because their translation takes long
	unused          atomic.Uint64 // number of megaflows removed by revalidations because they got no frame
	// answerTimes is a histogram of the time from a miss to its answer.
	answerTimes answerTimes
	returning   atomic.Bool // a call of returnMemory is due
}

// New returns a Pipeline with the first bridge, without flows and ports.
func New(s Setup) *Pipeline {
	pl := &Pipeline{
		seal:          newSealKey(),
		configuration: s.Configuration, log: s.Log, monitors: s.Monitors, sizes: s.Sizes, templates: s.Templates,
		declared:  declaredPorts{events: s.Declared},
		view:      NewView(nil, nil),
		vlanLimit: 2,
		megaflows: megaflows.New(s.Sizes),
		macs:      fdb.New(fdb.DefaultLimit, fdb.DefaultAge),
		recircs:   xlate.NewRecircTable(),
		notes:     xlate.NewNoteTable(),
		options:   xlate.NewOptionTable(),
		macsStale: make(chan struct{}, 1),
		leases:    lease.NewTable(),
	}
	pl.Bridge = &Bridge{pl: pl, name: s.Name, tables: ofproto.NewTables(ofproto.Limits{Rules: counters.MaxRules})}
	pl.bridges = []*Bridge{pl.Bridge}
	pl.rules = newBook(pl.tables, s.Store, s.Log)
	pl.questions, pl.learner = makeQuestions(questioned{pl}), newLearner(pl)
	if s.Templates != nil { // tests without tunnels have none
		s.Templates.Notify(pl.offloads.setTemplate)
	}
	return pl
}

// OnWatches sets the function "watches". The pipeline calls it in each transaction that may change
// which ports the groups or bundle actions watch. Package ports sets it at its start. If the
// liveness of ports has changed, the function makes a new set of ports and calls LivenessChanged.
func (pl *Pipeline) OnWatches(watches func(*change.Tx)) { pl.watches = watches }

// watchAgain makes package ports check the liveness of the ports that flows and groups watch now.
func (pl *Pipeline) watchAgain(tx *change.Tx) {
	if pl.watches != nil {
		pl.watches(tx)
	}
}

// Run updates counts, timeouts and learned flows until ctx ends.
func (pl *Pipeline) Run(ctx context.Context) {
	var done sync.WaitGroup
	done.Go(func() { pl.maintain(ctx) })
	done.Go(func() { pl.learner.run(ctx) })
	done.Go(func() { pl.questions.Run(ctx) })
	done.Wait()
}

// Counts has numbers of flows and misses, for metrics.
type Counts struct {
	Flows, Megaflows, MACs int
	TableFlows             map[uint8]int // number of flows by table, without empty tables
	Refused                uint64        // misses executed without a megaflow
	NotLearned             uint64        // number of learned flows that the tables refused
	Answers                AnswerTimes   // times of answers to misses
}

// Counts returns the present numbers of flows and misses, for metrics.
func (pl *Pipeline) Counts() Counts {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	c := Counts{Megaflows: pl.megaflows.Len(), MACs: pl.macs.Len(), TableFlows: map[uint8]int{},
		Refused: pl.refusals.Load(), NotLearned: pl.learner.refused.Load(), Answers: pl.answerTimes.read()}
	pl.visitTables(func(tables *ofproto.Tables) {
		c.Flows += tables.Len()
		for table := range uint8(openflow.Tables) {
			if _, flows := tables.Config(table); flows > 0 {
				c.TableFlows[table] += flows
			}
		}
	})
	return c
}

// WatchesPorts reports whether a group or a bundle action watches ports.
func (pl *Pipeline) WatchesPorts(*change.Tx) (watches bool) {
	pl.visitTables(func(tables *ofproto.Tables) { watches = watches || tables.WatchesPorts() })
	return watches
}
