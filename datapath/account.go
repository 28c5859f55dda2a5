// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"weft/packet"
	"weft/port"
)

// This file divides a worker's time among its ports. fair.go limits frames whose cost is known
// in advance. What a visit of a receive queue really takes also depends on the guest: on the
// pages that its memory lacks, on the pieces of its chains, on caches. So the worker measures its visits
// (docs/decisions/0055-ports-pay-with-time.md).
//
// The worker reads the clock once after each visit that found frames, and only if frames of
// several ports came within the last measuredForNS and passes were not cheap in this time. All
// queues of a port have one account.
//
//   - While another port has full batches, or frames again and again in brief passes, a port is charged for
//     all of its time. All debts fall by the smallest debt of a port that wants more time. A port in debt
//     waits. This is deficit round robin; a round lasts as long as the others use their time.
//   - Otherwise a port is charged only for the time beyond sliceNS in one pass, and its debt falls by a
//     part of the elapsed time. It waits if it owes more than sliceNS and another
//     port had frames within the last maxAwayNS.
//
// Uplinks are never in debt, because many senders share their queues.
//
// A port of weight n is charged for an n-th of its time. So debts are in time of a port of weight 1, and
// ports that want as much time as they can get have parts of it in proportion to their weights.
// Beside ports with weights, the worker measures the visits of cheap passes too.

// MaxWeight is the largest weight of a port.
const MaxWeight = 100

const (
	// measuredForNS is the time for which the worker measures visits after frames of
	// another port. The worker does not measure the visits of a port that is alone for longer.
	measuredForNS = 1_000_000_000
	// Passes of at most cheapPassNS, and cheapFrameNS for each frame, are cheap. A worker whose passes
	// are cheap does not measure visits: ports then share its time by frames, which a clock reading
	// for each visit would make 4 % dearer (BenchmarkGuests). Passes are not cheap once they took extraNS
	// more within extraWindowNS. Interrupts and a virtual machine's short pauses take about 0.12 ms of it.
	cheapFrameNS  = 80
	cheapPassNS   = 2_000
	extraNS       = 1_000_000
	extraWindowNS = 10_000_000
	// sliceNS is the time of one pass that a port may use without a charge if no other port
	// has full batches.
	sliceNS = 200_000
	// maxPassNS is the time of one pass after which the other queues of a port wait for the next
	// pass, if frames of another port came within the last measuredForNS. One visit more may
	// exceed it.
	maxPassNS = 500_000
	// briefPassNS is the longest duration of a brief pass. A port that has frames again after a brief pass
	// wants as much time as it can get, like a port with full batches. Two guests that answer each other
	// seldom have full batches.
	briefPassNS = 50_000
	// tinyDebtNS is the debt up to which a port is still served. It is a few batches of
	// frames of known flows.
	tinyDebtNS = 10_000
	// maxOwedNS is the largest debt of a port. The watchdog replaces an engine that
	// stands still for this time (control/watchdog, WorkerLimit).
	maxOwedNS = 100_000_000
	// exactForNS is the time for which a worker that measures visits measures also visits of empty
	// queues, after a long measurement that included several activities. What was not measured is not
	// charged, once in this time.
	exactForNS = 10_000_000_000
	// sampledEveryNS is the interval at which a worker that measures visits reads the kernel's
	// account of its thread.
	sampledEveryNS = 500_000
)

// account is a port's account in one worker.
type account struct {
	turn    uint64 // pass in which the port was visited last
	passNS  uint64 // time of the visits in that pass
	debtNS  uint64
	frames  bool   // one of these visits found frames
	repeats bool   // the pass before was brief, and its visits found frames
	full    bool   // one of these visits found a full batch, or frames although repeats is set
	exempt  bool   // an uplink
	passes  uint64 // number of passes with visits
	lateIn  uint64 // such a pass in which queues had to wait because of maxPassNS
}

func (a *account) owes() bool { return a.debtNS > tinyDebtNS }

// accounting has the accounts of all ports of a worker.
type accounting struct {
	accounts  [port.MaxPorts]account
	last      uint32 // port whose frames were received last
	changedNS uint64 // time when last was set to another port
	frames    uint64 // number of frames received in this pass
	frameNS   uint64 // time of a frame in the last pass with frames
	dearNS    uint64 // time of passes beyond that of cheap ones, since windowNS
	windowNS  uint64 // beginning of the window of dearNS
	costlyNS  uint64 // time until which visits are measured
	measured  bool   // this pass measures its visits
	readNS    uint64 // last reading of the clock in this pass
	mixed     bool   // the time since readNS is not only the time of the next visit
	exactNS   uint64 // time until which each visit is measured

	visited  []uint16              // ports visited in this pass
	debtors  []uint16              // ports with debtNS
	paidNS   uint64                // time of the last reduction of debts
	weights  [port.MaxPorts]uint32 // 0 and 1: none
	weighted int                   // number of weights above 1

	full   rivals // ports without debt for which account.full was set, with the pass
	active rivals // ports without debt that had frames, with the time

	sampledNS uint64
	thread    threadTimes
	times     func() threadTimes // reads the kernel's account of the thread
}

// rivals are the three ports of a group that were seen last. seen is a time, or the number of a pass.
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

// lastBeside returns when a port other than the given one was seen last; 0: never.
func (r *rivals) lastBeside(number uint32) uint64 {
	if r.ports[0] != number {
		return r.seen[0]
	}
	return r.seen[1]
}

// lastBesideTwo returns when a port other than the two given ones was seen last; 0: never.
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

// threadTimes is the kernel's account of a worker's thread.
type threadTimes struct {
	cpuNS      uint64 // time on a core, without stolen time if the host reports it
	waits      int64  // number of times at which the thread waited in the kernel, for example for a page
	pageFaults int64  // minor and major ones
}

// readThreadTimes reads the CPU time, the waits and the page faults of the calling thread. The CPU time
// comes from the thread's clock, because getrusage's is only as exact as the kernel's timer tick.
func readThreadTimes() (t threadTimes) {
	var ts unix.Timespec
	var r unix.Rusage
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) == nil && unix.Getrusage(unix.RUSAGE_THREAD, &r) == nil {
		t = threadTimes{uint64(ts.Nano()), r.Nvcsw, r.Minflt + r.Majflt}
	}
	return t
}

func (t *accounting) init() {
	t.visited = make([]uint16, 0, port.MaxPorts)
	t.debtors = make([]uint16, 0, port.MaxPorts)
	t.times = readThreadTimes
}

// reset gives a port number a new account.
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

// noteDuration takes the duration of the last pass, if it had frames. It includes the pauses of a thread
// that has lost its core.
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

// costly reports whether passes were not cheap within the last measuredForNS, or a port owes so much that the
// worker may have cheap passes only because this port waits.
func (t *accounting) costly(now uint64) bool {
	return now < t.costlyNS || slices.ContainsFunc(t.debtors, func(debtor uint16) bool { return t.accounts[debtor].debtNS > sliceNS })
}

// beginAccounts begins a pass. commands is the number of commands that the pass has executed.
func (w *Worker) beginAccounts(commands int) {
	t := &w.accounting
	t.visited = t.visited[:0] // a memory fault may have ended the last pass
	t.frames, w.receivers.visitNS = 0, 0
	t.measured = (t.costly(w.now) || t.weighted > 0) && w.now-t.changedNS < measuredForNS
	if !t.measured {
		return
	}
	if w.now-t.sampledNS >= sampledEveryNS {
		t.sampledNS, t.thread = w.now, t.times()
	}
	t.readNS, t.mixed = w.now, true
	if commands > 0 || w.now < t.exactNS {
		t.readNS, t.mixed = w.clock(), false
	}
}

// account charges the visit of queue q, which found n frames, to its port.
func (w *Worker) account(q *rxQueue, n int) {
	t := &w.accounting
	if n > 0 {
		t.frames += uint64(n)
		if q.port != t.last {
			t.last, t.changedNS = q.port, w.now
		}
	}
	if !t.measured {
		w.sh.SpentNS[q.port%port.MaxPorts] += uint64(n) * t.frameNS
		return
	}
	if n == 0 && w.now >= t.exactNS {
		t.mixed = true
		return
	}
	now := w.clock()
	spentNS := now - t.readNS
	t.readNS = now
	if spentNS >= sliceNS {
		spentNS = w.judge(now, spentNS)
	}
	if spentNS >= sliceNS {
		spentNS = w.senderPart(spentNS)
	}
	spentNS -= min(spentNS, w.receivers.visitNS)
	w.receivers.visitNS = 0
	t.mixed = false
	a := &t.accounts[q.port%port.MaxPorts]
	if a.turn != w.turn {
		a.repeats = a.frames && a.turn == w.turn-1 && w.now-t.paidNS <= briefPassNS // paidNS: the last pass began
		a.turn, a.passNS, a.frames, a.full = w.turn, 0, false, false
		a.passes++
		t.visited = append(t.visited, uint16(q.port))
	}
	a.passNS += spentNS
	a.frames = a.frames || n > 0
	a.full = a.full || a.repeats && n > 0 || n == packet.BatchSize || q.limit > 0 && n >= int(q.limit) || q.slow > 0 && n >= int(q.slow)
	if q.slow = 0; n > 0 && spentNS > maxCutNS/4 {
		q.slow = mostOf(n, spentNS) % packet.BatchSize // a whole batch is no limit
	}
	w.sh.SpentNS[q.port%port.MaxPorts] += spentNS
}

// judge returns the part of a long measurement that is the port's. If the thread has not
// waited in the kernel, only time on the core is: another thread or another virtual machine had the
// core in the rest. If the time may have passed elsewhere, the result is 0, and the
// worker measures exactly for a while.
func (w *Worker) judge(now, spentNS uint64) uint64 {
	t := &w.accounting
	stalledNS, thread := t.stalledNS(now)
	spentNS -= min(spentNS, stalledNS)
	t.thread, t.sampledNS = thread, now
	if t.mixed && spentNS >= sliceNS {
		t.exactNS = now + exactForNS
		return 0
	}
	return spentNS
}

// stalledNS returns the time since the last reading of the thread's account in which the thread was not on a
// core, or 0 if it has waited in the kernel. accountNow is the account now.
func (t *accounting) stalledNS(now uint64) (ns uint64, accountNow threadTimes) {
	accountNow = t.times()
	if accountNow.waits != t.thread.waits {
		return 0, accountNow
	}
	return now - t.sampledNS - min(now-t.sampledNS, accountNow.cpuNS-t.thread.cpuNS), accountNow
}

// waitsForOthers reports whether this pass skips queue q. It does so if the queue's port is in debt because
// it has used more than its part of the worker's time, or if the port has used maxPassNS in this pass.
func (w *Worker) waitsForOthers(q *rxQueue) bool {
	t := &w.accounting
	if !t.measured || q.tunnel {
		return false
	}
	a := &t.accounts[q.port%port.MaxPorts]
	return a.owes() && w.paysFirst(q.port, a) || w.waitsForNextPass(q, a)
}

// paysFirst reports whether a port in debt waits, because other ports want the time (see the top of this
// file).
func (w *Worker) paysFirst(number uint32, a *account) bool {
	t := &w.accounting
	return t.full.lastBeside(number) == w.turn-1 || a.debtNS > sliceNS && w.othersHaveFrames(number)
}

// waitsForNextPass reports whether queue q waits because other queues of its port have used maxPassNS.
// In the port's next pass, the queues that waited come first.
func (w *Worker) waitsForNextPass(q *rxQueue, a *account) bool {
	pass := a.passes
	if a.turn != w.turn {
		pass++
	}
	if a.turn == w.turn && a.passNS >= maxPassNS {
		q.lateIn, a.lateIn = pass, pass
		return true
	}
	return a.lateIn+1 == pass && q.lateIn+1 != pass
}

// othersHaveFrames reports whether a port without debt, other than the given one, had frames in the last pass
// or within the last maxAwayNS.
func (w *Worker) othersHaveFrames(number uint32) bool {
	t := &w.accounting
	return t.recent(t.active.lastBeside(number), w.now)
}

// recent reports whether a time of t.active is that of the last pass, or is within the last maxAwayNS.
// 0 is no time.
func (t *accounting) recent(seenNS, now uint64) bool {
	return seenNS > 0 && (seenNS >= t.paidNS || now-seenNS < maxAwayNS) // paidNS is the time of the last pass
}

// endAccounts ends a pass: it charges the ports that the pass has visited, and reduces debts.
func (w *Worker) endAccounts() {
	t := &w.accounting
	elapsedNS := w.now - t.paidNS
	t.paidNS = w.now
	w.payReceiverDebts(elapsedNS)
	if !t.measured {
		t.earn(elapsedNS)
		return
	}
	for _, no := range t.visited {
		if a := &t.accounts[no]; a.full && !a.owes() {
			t.full.note(uint32(no), w.turn)
		}
	}
	waiting := t.owing()
	for _, no := range t.visited {
		w.chargePort(uint32(no), waiting)
	}
	if t.full.seen[0] == w.turn {
		t.earn(t.leastWanting())
		return
	}
	t.earn(elapsedNS / uint64(t.owing()+1)) // one part is for all ports that are not in debt
	t.forgive(w.now)
}

// owing returns the number of ports in debt.
func (t *accounting) owing() (n int) {
	for _, no := range t.debtors {
		if t.accounts[no].owes() {
			n++
		}
	}
	return n
}

// leastWanting returns the smallest debt of the ports whose account.full is set in this pass, or that are
// in debt. An uplink counts with its time of this pass, because it has no debt.
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

// chargePort charges the port portNumber for its time in this pass. waiting is the number of ports that
// were in debt before.
func (w *Worker) chargePort(portNumber uint32, waiting int) {
	t := &w.accounting
	a := &t.accounts[portNumber]
	if a.frames && !a.owes() {
		t.active.note(portNumber, w.now)
	}
	chargeNS := a.passNS
	if a.owes() {
		waiting--
	}
	if waiting == 0 && t.full.lastBeside(portNumber) != w.turn {
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

// AppendWeight encodes CmdWeight.
func AppendWeight(buf []byte, number, weight uint32) []byte {
	return binary.LittleEndian.AppendUint32(appendHeader(buf, uint32(CmdWeight), number), weight)
}

// setWeight executes CmdWeight.
func (w *Worker) setWeight(number uint32, body []byte) bool {
	if number >= port.MaxPorts || len(body) != 4 {
		return false
	}
	weight := binary.LittleEndian.Uint32(body)
	if weight < 1 || weight > MaxWeight {
		return false
	}
	t := &w.accounting
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

// earn reduces the debt of each port.
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

// forgive reduces all debts by the smallest one if all ports with frames are in debt, so that the
// worker always visits one of them.
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
