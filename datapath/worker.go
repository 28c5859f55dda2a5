// Package datapath is the worker and its pass. The files come in the order in
// which a frame goes through them:
//
//	worker.go    the loop: clock, commands, mailbox, queues
//	receive.go   a batch from one queue
//	gather.go    queues with few frames wait for more
//	fair.go      queues whose frames cost too much wait
//	classify.go  decapsulate, extract, look up
//	execute.go   the actions of a run of frames of one flow
//	track.go     connection tracking, and looking up again behind it
//	fuse.go      both look-ups and tracking in one, for established connections
//	sweep.go     a batch of those at once
//	fragment.go  fragments that wait for the rest of their datagram
//	coalesce.go  one large frame of a run's segments
//	meter.go     rates
//	controller.go  frames that flows show to the operator
//	tunnel.go    outer headers
//	send.go      pending lists, transmit queues, the end of the pass
//	kept.go      batches that are given back later, with frames that wait for more
//	segment.go   what an output leaves to do: checksums, cutting large frames
//	toobig.go    the answer to a frame too long for its tunnel
//	answer.go    the answer to a question for a neighbour
//	upcall.go    what the worker tells control: misses, neighbours, faults
//	held.go      frames that wait for control's answer
//	command.go   control's commands
//	fault.go     a port whose memory fails
//	sleep.go     nothing to do
//	inhand.go    what the worker is at, for a watchdog
//	mailbox.go   ports come and go
//	capture.go   what control sees of the frames, if it asks for them
//
// Invariants:
//   - A worker is one locked thread. It owns its Shared, its cache and the
//     queues given to it; nothing it does between two passes allocates, locks or
//     waits, but for the spin lock of a transmit queue that workers share.
//   - One batch is in hand at a time. It ends with finish: what was pending is
//     sent, touched queues are flushed, then the receive queue gets its buffers
//     back; where a flush was put off, behind that flush.
package datapath

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft/conntrack"
	"weft/flowtable"
	"weft/internal/cpu"
	"weft/internal/shm"
	"weft/packet"
	"weft/port"
	"weft/tunnel"
)

const (
	// emptyPassPauses is how many PAUSE instructions follow a pass that found
	// nothing, about a microsecond: a guest that polls its ring shares the cache
	// line of the avail index with us, and reading it too eagerly slows the guest
	// down.
	emptyPassPauses = 24
	// yieldEvery is how many idle passes one yields in: often enough for a process
	// that has become ready meanwhile, and not so often that a worker alone on its
	// core is late for a frame. One without polled queues begins after yieldAfterNS:
	// gaps in a load cost it no system call.
	yieldEvery   = 4
	yieldAfterNS = 10_000
	// fewFrames is what a pass may have had for it to end like one that found
	// nothing, if a process on this core may wait for them.
	fewFrames = 2
	// suspectNS is how long a pass takes after which the signals to front ends are
	// measured: see shm.Foreign.
	suspectNS = shm.MaxSignalNS
	// maxCommandsPerPass bounds what control can delay frames by.
	maxCommandsPerPass = 64
)

// Config of one worker.
type Config struct {
	// Core is the core the worker's thread is pinned to; -1: none.
	Core int
	// SpinUS is how long the worker polls empty queues before it sleeps, in µs.
	SpinUS int
	// CommandEvent wakes the worker, UpcallEvent control. They stay the caller's.
	CommandEvent, UpcallEvent int
	// Seed of the flow cache's hashes and of chosen ports; random.
	Seed uint64
	// Connections is the table of connections, which all workers share; nil: a ct
	// action finds every frame invalid. One worker has Sweeps set, which ends
	// those whose time has run out.
	Connections *conntrack.Table
	Sweeps      bool
	// Fused is the number of pairs of megaflows that connections are fused with, a
	// power of two; 0: DefaultFused.
	Fused int
	// Meters are those of the first worker; nil: its own.
	Meters []Meter
}

// Worker is one thread of the data path. Only AddPort, RemovePort and Stop may be
// called from other goroutines.
type Worker struct {
	batch packet.Batch // in hand; here so that its frames begin with a cache line

	sh       *Shared
	config   Config
	commands *shm.Consumer
	upcalls  *shm.Producer
	cache    *flowtable.Cache
	ends     *tunnel.Terminations

	clockBase  uint64 // CLOCK_MONOTONIC at clockStart
	clockStart time.Time
	now        uint64 // the pass's clock, CLOCK_MONOTONIC in ns
	turn       uint64 // the pass's number, from 1 on
	fixed      uint64 // what tests have the clock say; else 0

	// Of the batch in hand.
	keys     [packet.BatchSize]flowtable.Key
	words    [packet.BatchSize][flowtable.TunnelWords]uint64 // tunnel words of frames that have any
	wide     uint32                                          // bit a key: see extract
	live     uint32                                          // bit a frame: not dropped so far
	undone   uint32                                          // bit a frame: something is left to do, see segment.go
	slots    [packet.BatchSize]uint32                        // megaflows found
	cursor   int                                             // frames below have been executed
	overlay  [packet.BatchSize]overlay                       // tunnel header on a pending frame
	overlaid bool                                            // any of overlay may be set
	lookups  flowtable.LookupCounts
	rxInUse  *rxQueue // whose spans the batch borrows; nil: held frames
	visits   uint64   // of receive queues, see InHand
	txInUse  *txPort  // whose queue is being called

	coalescer packet.Coalescer
	segments  packet.Batch // of one large frame, or an answer
	answers   uint64       // see mayTell

	ports      [port.MaxPorts]txPort
	touched    portList // that the batch in hand has been sent to
	more       bool     // the batch in hand was full: another one is about to come
	owed       portList // whose flush was put off, see flush
	delivered  bool     // since the last pass with frames, to a port with local set
	queues     queueTable
	fullPasses uint32 // in a row, see gather.go
	faults     int    // ports whose fault control has not been told of

	held          heldPool
	fair          fairness
	controllerDue uint64 // see toController
	tracks        tracks
	fused         fused
	fragments     fragments
	scratch       [flowtable.MaxActions]flowtable.Action // of CmdExecute and CmdInstall
	holding       bool                                   // see CmdHold
	told          bool                                   // upcalls were written and not published
	waiter        waiter
	taps          taps

	processor cpu.Processor
	lastBusy  uint64 // clock of the last pass that did something
	wasBusy   bool   // the last pass did
	sweptHeld uint64 // clock of the last look for expired frames
	sweeping  bool   // there are connections that may expire

	mail     atomic.Pointer[mail] // pairs with takeMail
	mailing  sync.Mutex           // one letter at a time
	stopping atomic.Bool
	ended    chan struct{} // closed once Run has returned
}

// NewWorker makes a worker over sh. What is not told anew by commands is empty:
// megaflows, templates, terminations, ports. Close frees it after Run.
func NewWorker(sh *Shared, c Config) (*Worker, error) {
	w := &Worker{sh: sh, config: c, ended: make(chan struct{})}
	w.commands = shm.NewConsumer(sh.Commands)
	w.upcalls = shm.NewProducer(sh.Upcalls, c.UpcallEvent)
	w.taps.ring = shm.NewProducer(sh.Captures, -1)
	w.cache = flowtable.NewCache(sh.Cache, c.Seed)
	w.ends = tunnel.NewTerminations()
	w.fragments.Seed = c.Seed
	w.fragments.whole = make([]uint32, 0, conntrack.MaxDatagrams)
	w.fragments.slots = make([]uint32, 0, conntrack.MaxFragments)
	if c.Connections != nil {
		if err := w.setConnections(c.Connections); err != nil {
			return nil, fmt.Errorf("worker: %w", err)
		}
	}
	clear(sh.Templates)
	clear(sh.Meters)
	w.held.init(sh)
	for i := range w.ports {
		w.ports[i].no, w.ports[i].counters = uint32(i), &sh.Ports[i]
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return nil, fmt.Errorf("worker: clock: %w", err)
	}
	w.clockStart, w.clockBase = time.Now(), uint64(ts.Nano())
	if err := w.waiter.init(c.CommandEvent); err != nil {
		return nil, fmt.Errorf("worker: epoll: %w", err)
	}
	return w, nil
}

// Close frees the worker's own descriptors. Run has returned, or was never called.
func (w *Worker) Close() {
	w.waiter.close()
	if w.fused.region != nil {
		w.fused.region.Close()
		w.fused = fused{}
	}
}

// clock is CLOCK_MONOTONIC in ns, which is what Go's monotonic clock reads.
func (w *Worker) clock() uint64 {
	if w.fixed != 0 {
		return w.fixed
	}
	return w.clockBase + uint64(time.Since(w.clockStart))
}

// Run is the worker's loop, on a thread of its own, until Stop. It fails only if
// the thread cannot be pinned.
func (w *Worker) Run() error {
	defer close(w.ended)
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if w.config.Core >= 0 {
		if err := cpu.Pin(w.config.Core); err != nil {
			return err
		}
	}
	w.processor = cpu.OwnProcessor()
	// Memory of a guest that truncates its file faults: see fault.go.
	debug.SetPanicOnFault(true)
	w.now = w.clock()
	w.lastBusy = w.now
	w.beginHeartbeat()
	for !w.passes() {
	}
	return nil
}

// Stop ends Run and waits for it.
func (w *Worker) Stop() {
	w.stopping.Store(true)
	shm.SignalOwn(w.config.CommandEvent)
	<-w.ended
}

// passes runs passes until Stop, or until a port's memory fails; ended tells which.
func (w *Worker) passes() (ended bool) {
	defer w.recoverFault()
	w.finish() // of the batch in which a port failed; else there is nothing to do
	for !w.stopping.Load() {
		w.pass()
	}
	w.flushOwed(w.turn + 1)
	w.giveAllBack()
	return true
}

// pass is one turn of the loop: everything that waits now is dealt with once.
func (w *Worker) pass() {
	now := w.clock()
	c := w.sh.Counters
	if w.wasBusy {
		c.BusyNS += now - w.now
	}
	c.Gaps[GapBucket(now-w.now)]++
	if now-w.now > suspectNS {
		shm.Suspect()
	}
	w.now = now
	w.turn++
	c.HeartbeatNS = now
	w.processor.Keep()

	w.takeMail()
	did := w.applyCommands()
	if w.holding {
		w.giveAllBack() // not while the command is executed: memory may fail, and it would come again
	}
	w.sweepHeld()
	w.sweepFragments()
	if w.config.Sweeps && w.tracks.tracker != nil {
		w.sweeping = w.tracks.tracker.Sweep(now)
	}
	w.lookForReady()
	frames, full := 0, false
	for at := 0; at < w.queues.count && !w.holding; at++ {
		q := w.queues.at(at)
		if w.leaveOut(q) {
			w.giveKeptBack(q)
			continue
		}
		if w.letGather(q) {
			continue
		}
		n := w.receive(q)
		if n < 0 {
			w.giveAllBack() // the others are not visited, and sleep may follow
			break           // the table has changed
		}
		frames += n
		full = full || n == packet.BatchSize
		w.note(q, n)
	}
	w.visited()
	w.noteFull(full)
	if len(w.fragments.whole) > 0 {
		w.sendWhole()
	}
	if w.owed.count > 0 {
		w.flushOwed(w.turn)
	}
	if frames > 0 {
		c.Passes++
	} else {
		c.IdlePasses++
	}
	w.wasBusy = frames > 0
	waits := w.fair.leftOut > 0
	w.settleDebts()
	if w.faults > 0 {
		w.tellFaults()
	}
	if frames+did > 0 || waits {
		w.lastBusy = now
		if w.delivered && frames <= fewFrames {
			cpu.Yield()
			w.waiter.nextReady = 0 // an answer may be there by now
		}
		w.delivered = false
		return
	}
	if w.queues.polled == 0 {
		cpu.Pause(emptyPassPauses)
	}
	if c.IdlePasses%yieldEvery == 0 && (w.queues.polled > 0 || now-w.lastBusy > yieldAfterNS) {
		cpu.Yield() // whoever waits for what was delivered may be on this core
	}
	if now-w.lastBusy > uint64(w.config.SpinUS)*1000 {
		w.sleep()
	}
}
