// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"weft/packet"
	"weft/port"
)

// This file divides a worker's time among its ports. A pass is one turn of the worker's loop over its receive
// queues. A visit is one poll of a queue together with the handling of the polled frames. The code in fair.go
// limits frames whose cost is known in advance. But the real time of a visit also depends on the guest: on
// missing pages of its memory, on the number of descriptors in its chains, on CPU caches. So the worker
// measures the time of its visits (docs/decisions/0055-ports-pay-with-time.md).
//
// The worker reads the clock once after each visit that found frames. It does so only under two conditions:
// frames of several ports came within the last measuredForNS, and passes were not cheap in this time
// (cheapPassNS). Each port has one account for all its queues. The account has the port's debt in
// nanoseconds. While a port is in debt, the worker does not poll its queues. There are two cases:
//
//   - Another port wants as much time as it can get: it has full batches, or it has frames again and again in
//     brief passes. Then all of the port's time is added to its debt, and the port waits while it is in debt.
//     After each pass, all debts fall by the smallest debt of a port that wants more time. This is deficit
//     round robin. A round lasts until the other ports have used as much time.
//   - No other port is so busy. Then only the port's time beyond sliceNS in one pass is added to its debt,
//     and the debt falls by a part of the elapsed time. The port waits if its debt exceeds sliceNS and
//     another port had frames within the last maxAwayNS. If another port is in debt, all of the port's time
//     is added to its debt in this case, too.
//
// Uplinks are never in debt, because many senders share their queues.
//
// For a port of weight n, only one n-th of its time is added to its debt. Ports that want as much time as
// they can get thus share it in proportion to their weights. If some port has a weight above 1, the worker
// measures visits even if passes are cheap.

// MaxWeight is the largest weight of a port. Busy ports share the worker's time in proportion to their
// weights. The worker refuses larger weights.
const MaxWeight = 100

const (
	// measuredForNS is a time in nanoseconds. The worker measures the time of each poll while frames come from
	// several ports. When all frames in this time have come from one port, it stops measuring.
	measuredForNS = 1_000_000_000
	// A pass (one turn of the worker's loop) is cheap if it takes at most cheapPassNS plus cheapFrameNS for each
	// frame. While passes are cheap, the worker does not measure its visits, because the clock readings would
	// make frames 4 % more expensive (BenchmarkGuests). Passes no longer count as cheap when the sum of their
	// time above this limit reaches extraNS within extraWindowNS. Interrupts and short pauses of a virtual
	// machine take about 0.12 ms of each such window.
	cheapFrameNS  = 80
	cheapPassNS   = 2_000
	extraNS       = 1_000_000
	extraWindowNS = 10_000_000
	// sliceNS is the time in nanoseconds that a port may use in one pass of the worker's loop without an
	// increase of its debt. A port has this free time only if no other port is in debt or has full batches in
	// this pass (chargePort).
	sliceNS = 200_000
	// maxPassNS is the time in nanoseconds that all queues of a port together may use in one pass of the
	// worker's loop. After that, the port's other queues wait for the next pass. The poll that reaches the limit
	// may exceed it. The limit applies only to passes in which the worker measures the time of its polls.
	maxPassNS = 500_000
	// briefPassNS is the longest duration of a brief pass of the worker's loop in nanoseconds. If a port has
	// frames in two consecutive passes, and the first of them was brief, the port counts as wanting as much time
	// as it can get, like a port with full batches. Otherwise two guests that only answer each other's frames
	// would not count, because they seldom have full batches.
	briefPassNS = 50_000
	// tinyDebtNS is the largest debt in nanoseconds with which the worker still polls a port's queues. It is the
	// time of a few batches of frames of known flows.
	tinyDebtNS = 10_000
	// maxOwedNS is the largest debt of a port in nanoseconds. If a worker hangs for this time, the watchdog of
	// the control process replaces the engine process (control/watchdog, WorkerLimit).
	maxOwedNS = 100_000_000
	// The worker usually reads the clock neither at the start of a pass of the worker's loop nor after the poll
	// of an empty queue. The next measured time then includes other work than one poll and the handling of its
	// frames. If such a mixed time reaches sliceNS, it is added to no port's debt. For the next exactForNS, the
	// worker also reads the clock at these two points. So at most one long time in exactForNS is added to no
	// debt.
	exactForNS = 10_000_000_000
	// sampledEveryNS is the interval in nanoseconds at which a worker that measures the time of its polls asks
	// the kernel for the CPU time, the waits and the page faults of its thread (threadTimes).
	sampledEveryNS = 500_000
)

// account has the time that a port has used in one worker, and the port's debt: the time for which the worker
// will not poll the port's queues.
type account struct {
	turn    uint64 // pass in which the port was visited last
	passNS  uint64 // time of the visits in that pass
	debtNS  uint64
	frames  bool   // one of the visits in that pass found frames
	repeats bool   // the pass before that one was brief, and the port had frames in it
	full    bool   // one of the visits found a full batch, or found frames while repeats was set
	exempt  bool   // the port is an uplink, which is never in debt
	passes  uint64 // number of passes with visits of the port
	lateIn  uint64 // the last of these passes in which queues had to wait because of maxPassNS
}

func (a *account) owes() bool { return a.debtNS > tinyDebtNS }

// accounting has the accounts of all ports of a worker. In each pass of the worker's loop, the worker first
// calls begin. It calls waits before each visit of a queue, and add after the visit. At the end of the pass
// it calls end.
type accounting struct {
	sh *Shared
	*passTime
	receivers *receivers

	accounts  [port.MaxPorts]account
	last      uint32 // port whose frames were received last
	changedNS uint64 // time of the last change of the field "last"
	frames    uint64 // number of frames received in this pass
	frameNS   uint64 // average time for a frame in the last pass with frames
	dearNS    uint64 // time of passes beyond that of cheap ones, since windowNS
	windowNS  uint64 // beginning of the window of dearNS
	costlyNS  uint64 // time until which passes count as not cheap
	measured  bool   // the worker measures the visits of this pass
	readNS    uint64 // last reading of the clock in this pass
	mixed     bool   // the time since readNS includes other work than the next visit
	exactNS   uint64 // time until which visits of empty queues are measured, too

	visited  []uint16              // ports visited in this pass
	debtors  []uint16              // ports with a debt above 0
	paidNS   uint64                // beginning of the previous pass, which has reduced the debts
	weights  [port.MaxPorts]uint32 // by port; 0 counts as 1
	weighted int                   // number of weights above 1

	full   rivals // ports without debt for which account.full was set, and in which pass
	active rivals // ports without debt that had frames, and when

	sampledNS uint64             // time of the last reading of the thread's times
	thread    threadTimes        // result of that reading
	times     func() threadTimes // readThreadTimes; tests have another function
}

// rivals has the last three different ports that the method note has recorded, the newest first. For each
// port, the field seen has a time or the number of a pass of the worker's loop.
type rivals struct {
	ports [3]uint32
	seen  [3]uint64
}

func (r *rivals) note(number uint32, seen uint64) {
	if number != r.ports[0] {
		if number != r.ports[1] {
			r.ports[2], r.seen[2] = r.ports[1], r.seen[1]
		}
		r.ports[1], r.seen[1] = r.ports[0], r.seen[0]
		r.ports[0] = number
	}
	r.seen[0] = seen
}

// lastBeside returns when a port other than the given one was recorded last, as in the field seen; 0: never.
func (r *rivals) lastBeside(number uint32) uint64 {
	if r.ports[0] != number {
		return r.seen[0]
	}
	return r.seen[1]
}

// lastBesideTwo returns when a port other than the two given ones was recorded last, as in the field seen; 0:
// never.
func (r *rivals) lastBesideTwo(first, second uint32) uint64 {
	for i, number := range r.ports {
		if number != first && number != second {
			return r.seen[i]
		}
	}
	return 0
}

func (r *rivals) forget(number uint32) {
	for i := range r.ports {
		if r.ports[i] == number {
			r.seen[i] = 0
		}
	}
}

// threadTimes has what the kernel has counted for a worker's thread since the thread began.
type threadTimes struct {
	cpuNS      uint64 // time on a core, without stolen time if the host reports it
	waits      int64  // number of times at which the thread waited in the kernel, for example for a page
	pageFaults int64  // number of minor and major page faults
}

// readThreadTimes reads the CPU time, the waits and the page faults of the calling thread. The CPU time
// comes from the thread's clock, because getrusage is only as exact as the kernel's timer tick. All values
// are 0 if a system call fails.
func readThreadTimes() (t threadTimes) {
	var ts unix.Timespec
	var r unix.Rusage
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) == nil && unix.Getrusage(unix.RUSAGE_THREAD, &r) == nil {
		t = threadTimes{uint64(ts.Nano()), r.Nvcsw, r.Minflt + r.Majflt}
	}
	return t
}

func (t *accounting) init(w *Worker) {
	t.sh, t.passTime, t.receivers = w.sh, &w.passTime, &w.receivers
	t.visited = make([]uint16, 0, port.MaxPorts)
	t.debtors = make([]uint16, 0, port.MaxPorts)
	t.times = readThreadTimes
}

// reset clears the account of a port. It is called when the worker gets the port. exempt is true for an
// uplink, which never gets a debt.
func (t *accounting) reset(number uint32, exempt bool) {
	t.accounts[number] = account{exempt: exempt}
	for i, no := range t.debtors {
		if uint32(no) == number {
			t.debtors = append(t.debtors[:i], t.debtors[i+1:]...)
			break
		}
	}
	t.full.forget(number)
	t.active.forget(number)
}

// noteDuration records the duration of the last pass of the worker's loop, which had frames, and decides
// whether passes still count as cheap (cheapPassNS). The duration includes the time in which the thread was
// not on its core.
func (t *accounting) noteDuration(passNS, now uint64) {
	frames := max(t.frames, 1)
	t.frameNS = passNS / frames
	cheapNS := cheapPassNS + cheapFrameNS*frames
	if passNS <= cheapNS || now-t.changedNS >= measuredForNS {
		return
	}
	if now-t.windowNS >= extraWindowNS {
		t.windowNS, t.dearNS = now, 0
	}
	if t.dearNS += passNS - cheapNS; t.dearNS >= extraNS {
		t.costlyNS = now + measuredForNS
	}
}

// costly reports whether passes of the worker's loop did not count as cheap (cheapPassNS) at some time within
// the last measuredForNS. It also returns true if a port's debt exceeds sliceNS: passes may then be cheap
// only because this port waits.
func (t *accounting) costly(now uint64) bool {
	return now < t.costlyNS || slices.ContainsFunc(t.debtors, func(debtor uint16) bool { return t.accounts[debtor].debtNS > sliceNS })
}

// begin decides whether the worker measures its visits in this pass of its loop. A visit is one poll of a
// receive queue and the handling of the polled frames. If it measures them, begin reads the clock. commands
// is the number of commands that the pass has executed.
func (t *accounting) begin(commands int) {
	t.visited = t.visited[:0] // a memory fault may have ended the last pass
	t.frames, t.receivers.visitNS = 0, 0
	t.measured = (t.costly(t.now) || t.weighted > 0) && t.now-t.changedNS < measuredForNS
	if !t.measured {
		return
	}
	if t.now-t.sampledNS >= sampledEveryNS {
		t.sampledNS, t.thread = t.now, t.times()
	}
	t.readNS, t.mixed = t.now, true
	if commands > 0 || t.now < t.exactNS {
		t.readNS, t.mixed = t.clock(), false
	}
}

// add is called after a poll of queue q, when its n frames are handled. It adds the time of the poll and the
// handling to the account of the queue's port.
func (t *accounting) add(q *rxQueue, n int) {
	if n > 0 {
		t.frames += uint64(n)
		if q.port != t.last {
			t.last, t.changedNS = q.port, t.now
		}
	}
	if !t.measured {
		t.sh.SpentNS[q.port%port.MaxPorts] += uint64(n) * t.frameNS
		return
	}
	if n == 0 && t.now >= t.exactNS {
		t.mixed = true
		return
	}
	now := t.clock()
	spentNS := now - t.readNS
	t.readNS = now
	if spentNS >= sliceNS {
		spentNS = t.judge(now, spentNS)
	}
	if spentNS >= sliceNS {
		spentNS = t.receivers.senderPart(spentNS)
	}
	spentNS -= min(spentNS, t.receivers.visitNS)
	t.receivers.visitNS = 0
	t.mixed = false
	a := &t.accounts[q.port%port.MaxPorts]
	if a.turn != t.turn {
		// paidNS is the time at which the previous pass of the worker's loop began.
		a.repeats = a.frames && a.turn == t.turn-1 && t.now-t.paidNS <= briefPassNS
		a.turn, a.passNS, a.frames, a.full = t.turn, 0, false, false
		a.passes++
		t.visited = append(t.visited, uint16(q.port))
	}
	a.passNS += spentNS
	a.frames = a.frames || n > 0
	a.full = a.full || a.repeats && n > 0 || n == packet.BatchSize || q.limit > 0 && n >= int(q.limit) || q.slow > 0 && n >= int(q.slow)
	if q.slow = 0; n > 0 && spentNS > maxCutNS/4 {
		q.slow = mostOf(n, spentNS) % packet.BatchSize // a whole batch is no limit
	}
	t.sh.SpentNS[q.port%port.MaxPorts] += spentNS
}

// judge returns the part of a long measured time that counts for the port whose queue was polled. If the
// thread has not waited in the kernel, only its CPU time counts: in the rest, another thread or another
// virtual machine had the core. If the measured time includes other work (mixed) and is still long, judge
// returns 0. The worker then also measures polls of empty queues for exactForNS.
func (t *accounting) judge(now, spentNS uint64) uint64 {
	stalledNS, thread := t.stalledNS(now)
	spentNS -= min(spentNS, stalledNS)
	t.thread, t.sampledNS = thread, now
	if t.mixed && spentNS >= sliceNS {
		t.exactNS = now + exactForNS
		return 0
	}
	return spentNS
}

// stalledNS returns the time since the last reading of the thread's times in which the thread was not on a
// core. It returns 0 if the thread has waited in the kernel, for example for a page. accountNow is a new
// reading of the thread's times.
func (t *accounting) stalledNS(now uint64) (ns uint64, accountNow threadTimes) {
	accountNow = t.times()
	if accountNow.waits != t.thread.waits {
		return 0, accountNow
	}
	return now - t.sampledNS - min(now-t.sampledNS, accountNow.cpuNS-t.thread.cpuNS), accountNow
}

// waits reports whether this pass of the worker's loop skips queue q. It does so in two cases: the queue's
// port is in debt and other ports want the time (paysFirst), or the port has already used maxPassNS in this
// pass. It never skips a queue of an uplink. It skips no queue in a pass in which the worker does not measure
// times.
func (t *accounting) waits(q *rxQueue) bool {
	if !t.measured || q.tunnel {
		return false
	}
	a := &t.accounts[q.port%port.MaxPorts]
	return a.owes() && t.paysFirst(q.port, a) || t.waitsForNextPass(q, a)
}

// paysFirst reports whether a port in debt waits because other ports want the worker's time. It waits if
// another port without debt wanted more time in the last pass of the worker's loop (account.full), or if its
// debt exceeds sliceNS and another port without debt had frames lately.
func (t *accounting) paysFirst(number uint32, a *account) bool {
	return t.full.lastBeside(number) == t.turn-1 || a.debtNS > sliceNS && t.othersHaveFrames(number)
}

// waitsForNextPass reports whether queue q waits because other queues of its port have used maxPassNS in this
// pass of the worker's loop. In the port's next pass, the queues that have waited are polled first.
func (t *accounting) waitsForNextPass(q *rxQueue, a *account) bool {
	pass := a.passes
	if a.turn != t.turn {
		pass++
	}
	if a.turn == t.turn && a.passNS >= maxPassNS {
		q.lateIn, a.lateIn = pass, pass
		return true
	}
	return a.lateIn+1 == pass && q.lateIn+1 != pass
}

// othersHaveFrames reports whether a port without debt, other than the given one, had frames in the last pass
// of the worker's loop or within the last maxAwayNS.
func (t *accounting) othersHaveFrames(number uint32) bool {
	return t.recent(t.active.lastBeside(number), t.now)
}

// recent reports whether seenNS, a time at which a port had frames, is in the last pass of the worker's loop
// or within the last maxAwayNS. It returns false for seenNS 0, which stands for no time.
func (t *accounting) recent(seenNS, now uint64) bool {
	return seenNS > 0 && (seenNS >= t.paidNS || now-seenNS < maxAwayNS) // paidNS is the time of the last pass
}

// end is called once at the end of each pass of the worker's loop. For each port with polled queues, it adds
// the measured time to the port's debt. Then it reduces all debts.
func (t *accounting) end() {
	elapsedNS := t.now - t.paidNS
	t.paidNS = t.now
	t.receivers.payDebts(elapsedNS)
	if !t.measured {
		t.earn(elapsedNS)
		return
	}
	for _, no := range t.visited {
		if a := &t.accounts[no]; a.full && !a.owes() {
			t.full.note(uint32(no), t.turn)
		}
	}
	waiting := t.owing()
	for _, no := range t.visited {
		t.chargePort(uint32(no), waiting)
	}
	if t.full.seen[0] == t.turn {
		t.earn(t.leastWanting())
		return
	}
	t.earn(elapsedNS / uint64(t.owing()+1)) // + 1, because the ports without debt together get one share
	t.forgive(t.now)
}

// owing returns the number of ports in debt. Debts up to tinyDebtNS do not count.
func (t *accounting) owing() (n int) {
	for _, no := range t.debtors {
		if t.accounts[no].owes() {
			n++
		}
	}
	return n
}

// leastWanting returns the smallest debt in nanoseconds among the ports that want more time. These are the
// ports in debt, and the ports whose account.full is set in this pass of the worker's loop. An uplink has no
// debt, so its time in this pass counts instead.
func (t *accounting) leastWanting() uint64 {
	least := uint64(maxOwedNS)
	for _, no := range t.visited {
		switch a := &t.accounts[no]; {
		case a.full && a.exempt:
			least = min(least, a.passNS)
		case a.full:
			least = min(least, a.debtNS)
		}
	}
	for _, no := range t.debtors {
		if a := &t.accounts[no]; a.owes() {
			least = min(least, a.debtNS)
		}
	}
	return least
}

// chargePort adds a port's time in this pass of the worker's loop, divided by the port's weight, to the
// port's debt. The first sliceNS are free if no other port is in debt or wants more time (account.full).
// waiting is the number of ports that were in debt before the times of this pass were added.
func (t *accounting) chargePort(portNumber uint32, waiting int) {
	a := &t.accounts[portNumber]
	if a.frames && !a.owes() {
		t.active.note(portNumber, t.now)
	}
	chargeNS := a.passNS
	if a.owes() {
		waiting--
	}
	if waiting == 0 && t.full.lastBeside(portNumber) != t.turn {
		chargeNS -= min(chargeNS, sliceNS)
	}
	if weight := t.weights[portNumber]; weight > 1 {
		chargeNS /= uint64(weight)
	}
	if chargeNS == 0 || a.exempt {
		return
	}
	if a.debtNS == 0 {
		t.debtors = append(t.debtors, uint16(portNumber))
	}
	a.debtNS = min(a.debtNS+chargeNS, maxOwedNS)
}

// AppendWeight appends an encoded CmdWeight, which sets a port's share of the worker's time. number is the
// port; 0: all ports. weight is from 1 to MaxWeight.
func AppendWeight(buf []byte, number, weight uint32) []byte {
	return binary.LittleEndian.AppendUint32(appendHeader(buf, uint32(CmdWeight), number), weight)
}

// setWeight executes CmdWeight. It returns false for an invalid command.
func (t *accounting) setWeight(number uint32, body []byte) bool {
	if number >= port.MaxPorts || len(body) != 4 {
		return false
	}
	weight := binary.LittleEndian.Uint32(body)
	if weight < 1 || weight > MaxWeight {
		return false
	}
	if number != 0 {
		t.weights[number] = weight
	} else {
		for i := range t.weights {
			t.weights[i] = weight
		}
	}
	t.weighted = 0
	for _, has := range t.weights {
		if has > 1 {
			t.weighted++
		}
	}
	return true
}

// earn reduces the debt of each port by earnedNS, at most to 0.
func (t *accounting) earn(earnedNS uint64) {
	still := t.debtors[:0]
	for _, no := range t.debtors {
		a := &t.accounts[no]
		if a.debtNS -= min(a.debtNS, earnedNS); a.debtNS > 0 {
			still = append(still, no)
		}
	}
	t.debtors = still
}

// forgive reduces all debts by the smallest one if every port that had frames lately is in debt. Otherwise
// the worker would idle while all ports with frames wait.
func (t *accounting) forgive(now uint64) {
	if len(t.debtors) == 0 {
		return
	}
	for i, no := range t.active.ports {
		if t.accounts[no].debtNS == 0 && now-t.active.seen[i] < maxAwayNS {
			return
		}
	}
	least := uint64(maxOwedNS)
	for _, no := range t.debtors {
		least = min(least, t.accounts[no].debtNS)
	}
	t.earn(least)
}
