// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"weft/conntrack"
	"weft/flowtable"
	"weft/internal/cpu"
	"weft/internal/shm"
	"weft/packet"
	"weft/tunnel"
)

const (
	// emptyPassPauses is the number of PAUSE instructions after an empty pass of the worker's loop, about a
	// microsecond in total. The pause reduces traffic on the cache line of the avail index, which the guest
	// writes.
	emptyPassPauses = 24
	// yieldEvery is the number of idle passes of the worker's loop between two yields of the core (sched_yield).
	// A worker without taps and sockets yields only after yieldAfterNS nanoseconds without frames, to avoid
	// system calls during short gaps in the load.
	yieldEvery   = 4
	yieldAfterNS = 10_000
	// yieldFrames is the number of frames after which a worker with taps yields the core, although frames keep
	// coming. Otherwise a local process waits for the core until the kernel's timer tick, up to 4 ms, and its
	// socket buffer may overflow: by default, Linux buffers 95 datagrams of 1,400 bytes. Only passes of the
	// worker's loop with at least manyFrames frames count. Streams of large frames have fewer frames in a pass,
	// and yields slow them down (docs/decisions/0050).
	yieldFrames = 64
	manyFrames  = packet.BatchSize / 2
	// fewFrames is a number of frames. If a pass of the worker's loop has sent a frame to a local process and
	// received at most fewFrames frames, the worker yields the core to that process.
	fewFrames = 2
	// suspectNS is the duration in nanoseconds above which a pass of the worker's loop is suspiciously long. A
	// guest may have made its eventfd slow, so the worker then measures the next signals (shm.Suspect).
	suspectNS = shm.MaxSignalNS
	// maxCommandsPerPass is the largest number of commands that one pass of the worker's loop executes. It
	// limits the delay of frames. Further commands wait for the next pass.
	maxCommandsPerPass = 64
)

// Config is the configuration of one worker.
type Config struct {
	// Core is the core to which the worker's thread is pinned; negative: not pinned.
	Core int
	// SpinUS is the time in microseconds for which the worker polls empty queues before it
	// sleeps. The function spinNS extends it in some cases.
	SpinUS int
	// CommandEvent is the eventfd that wakes the worker up, and UpcallEvent the one that wakes the
	// control process up. The caller owns both.
	CommandEvent, UpcallEvent int
	// Seed is the random seed of the hashes and of the choice of NAT ports.
	Seed uint64
	// OptionsKey is the key of the hashes of Geneve options, equal for all workers.
	OptionsKey flowtable.OptionsKey
	// Connections is the table of tracked connections, which all workers share. nil: a
	// ct action treats every frame as invalid. Sweeps is true in the one worker that
	// expires connections.
	Connections *conntrack.Table
	Sweeps      bool
	// Fused is the number of pairs of megaflows that the worker stores for established connections (fuse.go). It
	// is a power of two; 0: defaultFused.
	Fused int
	// Meters are the meters of the first worker, whose token buckets all workers share; nil: this
	// worker is the first.
	Meters []Meter
	// BFD are the BFD sessions, which all workers share; nil: this worker has its own.
	// The worker with Sweeps sends the periodic packets.
	BFD *BFDTable
}

// Worker is one thread of the data path. Only AddPort, RemovePort, Settle and Stop may be called from other
// goroutines.
//
// Its state is divided into types, one for each stage of the work on a batch. The file of the stage defines
// the type. A type is embedded if several stages use its fields.
type Worker struct {
	batch packet.Batch // first field, for alignment to cache lines

	sh           *Shared
	config       Config
	commands     *shm.Consumer
	upcalls      upcalls
	cache        *flowtable.Cache
	terminations *tunnel.Terminations

	passTime   // worker.go: the clock
	reception  // receive.go: the batch's queue, and which of its frames are left
	lookup     // classify.go: keys, and the megaflows found
	outputs    // send.go: ports, pending frames, postponed flushes
	largeWork  // segment.go: frames cut, merged, cut off or made by the worker
	pacing     // worker.go: when the worker yields, sleeps and does periodic work
	mailbox    // mailbox.go: requests of other goroutines
	tracks     tracks
	fused      fused
	fragments  fragments
	held       heldPool
	meters     meters
	captures   captures
	queues     queueTable
	fair       fairness
	accounting accounting
	receivers  receivers
	waiter     waiter

	kernelFlows kernelFlows

	faults int // number of failed ports not yet reported to the control process
	// decoded actions of the command that the worker executes
	scratch [flowtable.MaxActions]flowtable.Action
	holding bool // CmdHold has stopped the receive queues
}

// passTime is the clock of a worker. The stages of a pass of the worker's loop use the time at which the pass
// began.
type passTime struct {
	clockBase  uint64 // CLOCK_MONOTONIC in ns at clockStart
	clockStart time.Time
	now        uint64 // time at which this pass began, CLOCK_MONOTONIC in nanoseconds
	turn       uint64 // number of this pass, from 1 on
	fixed      uint64 // time that a test has set; 0: the real clock
}

// pacing decides when the worker yields its core, sleeps, and does periodic work.
type pacing struct {
	processor  cpu.Processor
	lastBusy   uint64 // time of the last pass that had something to do, or of the last wake-up
	wasBusy    bool   // the last pass received frames
	sweeping   bool   // some tracked connections may expire, see conntrack's Sweep
	unyielded  int    // number of frames since the last yield, see yieldFrames
	fullPasses uint32 // number of consecutive passes with a full batch, see gather.go
	bfdDue     uint64 // time of the next call of runBFD; the largest uint64: no sessions
}

// NewWorker returns a worker that uses the shared memory sh. The worker has no megaflows, templates,
// terminations and ports until commands of the control process add them. Frames that the worker of an earlier
// engine process held stay held. The caller calls Close after Run.
func NewWorker(sh *Shared, c Config) (*Worker, error) {
	w := &Worker{sh: sh, config: c}
	w.ended = make(chan struct{})
	w.commands = shm.NewConsumer(sh.Commands)
	w.upcalls.ring = shm.NewProducer(sh.Upcalls, c.UpcallEvent)
	w.cache = flowtable.NewCache(sh.Cache, c.Seed)
	w.terminations = tunnel.NewTerminations()
	w.terminations.OptionsKey = c.OptionsKey
	w.fragments.Seed = c.Seed
	w.fragments.whole = make([]uint32, 0, conntrack.MaxDatagrams)
	w.fragments.slots = make([]uint32, 0, conntrack.MaxFragments)
	if c.Connections != nil {
		if err := w.setConnections(c.Connections); err != nil {
			return nil, fmt.Errorf("worker: %w", err)
		}
	}
	if w.bfdDue = ^uint64(0); c.BFD == nil {
		w.config.BFD = NewBFDTable(sh.BFD)
	}
	clear(sh.Templates)
	clear(sh.Meters)
	w.reception.inHand, w.outputs.inHand = sh.InHand, sh.InHand
	w.captures.init(w)
	w.held.init(w)
	w.meters = meters{own: sh.Meters, shared: c.Meters}
	w.kernelFlows = kernelFlows{sh: sh, cache: w.cache, queues: &w.queues, tracks: &w.tracks}
	w.accounting.init(w)
	w.receivers.init(w)
	for i := range w.ports {
		w.ports[i].port, w.ports[i].counters = uint32(i), &sh.Ports[i]
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return nil, fmt.Errorf("worker: clock: %w", err)
	}
	w.clockStart, w.clockBase = time.Now(), uint64(ts.Nano())
	if err := w.waiter.init(w, c.CommandEvent); err != nil {
		return nil, fmt.Errorf("worker: epoll: %w", err)
	}
	return w, nil
}

// Close frees the worker's own descriptors and memory. Run must have returned, or
// must never have been called.
func (w *Worker) Close() {
	w.waiter.close()
	if w.fused.region != nil {
		w.fused.region.Close()
		w.fused = fused{}
	}
}

// The method clock returns CLOCK_MONOTONIC in nanoseconds. Go's time.Since reads the same clock
// without a system call.
func (t *passTime) clock() uint64 {
	if t.fixed != 0 {
		return t.fixed
	}
	return t.clockBase + uint64(time.Since(t.clockStart))
}

// Run runs the worker's loop on a thread of its own until Stop. It returns an error
// only if the thread cannot be pinned.
func (w *Worker) Run() error {
	defer close(w.ended)
	runtime.LockOSThread() // never unlocked, so that the thread ends with its goroutine
	if w.config.Core >= 0 {
		if err := cpu.Pin(w.config.Core); err != nil {
			return err
		}
	}
	w.processor = cpu.OwnProcessor()
	// An access to truncated guest memory then becomes a panic, which recoverFault handles.
	debug.SetPanicOnFault(true)
	w.now = w.clock()
	w.lastBusy = w.now
	w.beginHeartbeat()
	for !w.passes() {
	}
	// Thread 0 tells the watchdog that the worker has ended. If the thread is the first one of the process, it
	// continues to exist.
	w.sh.InHand.Thread = 0
	return nil
}

// Stop makes Run return after its present pass, and waits for that.
func (w *Worker) Stop() {
	w.stopping.Store(true)
	shm.SignalOwn(w.config.CommandEvent)
	<-w.ended
}

// passes repeats passes of the worker's loop until Stop is called (result true) or a port's memory fails
// (result false).
func (w *Worker) passes() (ended bool) {
	defer w.recoverFault()
	w.finish() // ends the current batch if a port failed in the middle of it
	for !w.stopping.Load() {
		w.pass()
	}
	w.flushOwed(w.turn + 1)
	w.releaseAllQueues()
	return true
}

func (w *Worker) pass() {
	now := w.clock()
	c := w.sh.Counters
	if w.wasBusy {
		c.BusyNS += now - w.now
		w.accounting.noteDuration(now-w.now, now)
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
		// CmdHold does not release the queues itself, because the worker would execute the command
		// again after a memory fault.
		w.releaseAllQueues()
	}
	w.held.sweep()
	w.sweepFragments()
	if w.config.Sweeps && w.tracks.tracker != nil {
		w.sweeping = w.tracks.tracker.Sweep(now)
	}
	w.kernelFlows.work(now)
	w.waiter.findReady()
	w.waiter.wakeParked()
	w.accounting.begin(did)
	frames, idle, full := 0, 0, false
	for at := 0; at < w.queues.awake && !w.holding; at++ {
		q := w.queues.queue(at)
		if w.skipDebtor(q) || w.accounting.waits(q) {
			w.fair.skipped++
			w.releaseKept(q)
			continue
		}
		if w.pacing.skips(q, now) {
			continue
		}
		w.next = w.queues.queue((at + 1) % w.queues.awake).ahead
		n := w.receive(q)
		if n < 0 {
			w.releaseAllQueues() // this pass does not poll the other queues, which may keep batches
			break                // failPort has changed the table of queues
		}
		w.accounting.add(q, n)
		frames += n
		full = full || n == packet.BatchSize
		q.scheduleVisit(n, now)
		if n == 0 {
			if idle++; w.park(q) {
				at-- // another queue now has this index of the polling order
			}
		}
	}
	w.waiter.parking.endPass(idle)
	c.ParkedQueues = uint64(w.queues.parked())
	w.next = nil
	w.visited()
	if now >= w.bfdDue {
		w.runBFD() // called after the polls, because packets of the remotes may have waited in the queues
	}
	w.countFullPasses(full)
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
	waits := w.fair.skipped > 0
	w.payDebts()
	w.accounting.end()
	if w.faults > 0 {
		w.reportFaults()
	}
	if frames+did > 0 || waits {
		w.lastBusy = now
		w.yieldBusy(frames)
		return
	}
	if w.queues.taps == 0 {
		cpu.Pause(emptyPassPauses)
	}
	if c.IdlePasses%yieldEvery == 0 && (w.queues.taps > 0 || now-w.lastBusy > yieldAfterNS) {
		w.yield() // a local process may be waiting for this core
	}
	if now-w.lastBusy > w.spinNS() {
		w.sleep()
	}
}

// yieldBusy is called at the end of a pass of the worker's loop that had something to do. It yields the core
// if the pass had at most fewFrames frames and sent one to a local process, which may answer at once. A
// worker with taps also yields after yieldFrames frames.
func (w *Worker) yieldBusy(frames int) {
	answer := w.delivered && frames <= fewFrames
	if frames >= manyFrames {
		w.unyielded += frames
	}
	if answer || w.queues.taps > 0 && w.unyielded >= yieldFrames {
		w.yield()
	}
	if answer && w.toTap {
		w.waiter.nextReady, w.waiter.parking.askNS = 0, 0 // the local process may have answered
	}
	w.delivered, w.toTap = false, false
}

// yield gives the core to another waiting thread, if any.
func (w *Worker) yield() {
	cpu.Yield()
	w.unyielded = 0
}
