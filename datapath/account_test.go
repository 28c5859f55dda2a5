// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"testing"

	"weft/packet"
	"weft/port"
	"weft/port/porttest"
)

// slowRx is a receive queue whose visits take as long as the test says, on the worker's
// clock, which stands still otherwise.
type slowRx struct {
	*porttest.Rx
	w      *Worker
	lastNS func(frames int) uint64
}

func (q slowRx) Recv(b *packet.Batch) int {
	n := q.Rx.Recv(b)
	q.w.fixed += q.lastNS(n)
	return n
}

// timedPort adds a port whose visits have the given duration. Its frames go to port 9.
func (r *rig) timedPort(number uint32, queues int, visitNS func(frames int) uint64) {
	r.t.Helper()
	r.timedPortTo(9, number, queues, visitNS)
}

func (r *rig) timedPortTo(to, number uint32, queues int, visitNS func(frames int) uint64) {
	r.t.Helper()
	d := porttest.New(queues, porttest.Options{})
	r.ports[number] = d
	add := PortQueues{Port: number, Tx: d.Tx()[0]}
	for _, rx := range d.RxQueues {
		add.Rx = append(add.Rx, slowRx{rx, r.w, visitNS})
	}
	if err := r.w.addPort(&add); err != nil {
		r.t.Fatal(err)
	}
	d.TxQueues[0].Discard.Store(true)
	for _, rx := range d.RxQueues {
		rx.Inject(ethernet(0x020000000000+uint64(number), 60, number))
	}
	r.install(number, number, 0x020000000000+uint64(number), output(to))
}

func always(ns uint64) func(int) uint64 {
	return func(frames int) uint64 {
		if frames == 0 {
			return 20
		}
		return ns
	}
}

// timedRig returns a rig whose port 9 discards all frames that it gets, and whose thread always has its
// core.
func timedRig(t testing.TB) *rig {
	r := newRig(t, testSizes)
	r.addPort(9, porttest.Options{}, false)
	r.tx(9).Discard.Store(true)
	r.w.accounting.times = func() threadTimes { return threadTimes{cpuNS: r.w.fixed} }
	return r
}

func (r *rig) replay(number uint32, frames int64) {
	for _, rx := range r.ports[number].RxQueues {
		rx.Replay(frames)
	}
}

// shares runs the worker for 60 ms of its clock and returns the part of the time that it spent
// on each port; index: port number.
func (r *rig) shares() (part [4]float64) {
	for range 64 {
		r.turn()
	}
	beganNS := r.w.fixed
	var was [4]uint64
	copy(was[:], r.sh.SpentNS)
	for r.w.fixed-beganNS < 60_000_000 {
		r.turn()
	}
	for number := range part {
		part[number] = float64(r.sh.SpentNS[number]-was[number]) / float64(r.w.fixed-beganNS)
	}
	return part
}

func between(t *testing.T, name string, got, lower, upper float64) {
	t.Helper()
	if got < lower || got > upper {
		t.Errorf("%s: %.3f, want %.2f to %.2f", name, got, lower, upper)
	}
}

// Ports that want as much time as they can get have equal parts of it, whatever a visit
// of their queues takes and however many queues they have.
func TestTimeIsDivided(t *testing.T) {
	for _, c := range []struct {
		name    string
		queues  int
		visitNS func() func(int) uint64
	}{
		{"the same", 1, func() func(int) uint64 { return always(4_000) }},
		{"slow", 1, func() func(int) uint64 { return always(100_000) }},
		{"very slow", 1, func() func(int) uint64 { return always(3_000_000) }},
		{"many queues", 16, func() func(int) uint64 { return always(140_000) }},
		{"fast", 1, func() func(int) uint64 { return always(1_000) }},
		{"sometimes slow", 1, func() func(int) uint64 {
			visits := 0
			return func(int) uint64 {
				if visits++; visits%17 == 0 {
					return 3_000_000
				}
				return 1_000
			}
		}},
	} {
		r := timedRig(t)
		r.timedPort(1, 1, always(4_000))
		r.timedPort(2, 1, always(6_000))
		r.timedPort(3, c.queues, c.visitNS())
		r.turn()
		for number := uint32(1); number <= 3; number++ {
			r.replay(number, 1<<50)
		}
		part := r.shares()
		for number := 1; number <= 3; number++ {
			between(t, fmt.Sprintf("%s: port %d", c.name, number), part[number], 0.8/3, 1.2/3)
		}
	}
}

// Ports that want as much time as they can get have parts of it in proportion to their weights,
// also if their frames are cheap. A weight stays when the port is attached again, and ends with 1.
func TestTimeIsDividedByWeight(t *testing.T) {
	for _, c := range []struct {
		name    string
		visitNS [3]uint64
	}{
		{"the same", [3]uint64{4_000, 4_000, 4_000}},
		{"cheap", [3]uint64{640, 640, 640}},
		{"the light one slow", [3]uint64{250_000, 4_000, 6_000}},
		{"the heavy one slow", [3]uint64{1_000, 4_000, 250_000}},
	} {
		r := timedRig(t)
		r.command(AppendWeight(nil, 2, 2))
		r.command(AppendWeight(nil, 3, 5))
		for i, ns := range c.visitNS {
			r.timedPort(uint32(i+1), 1, always(ns))
		}
		r.turn()
		for number := uint32(1); number <= 3; number++ {
			r.replay(number, 1<<50)
		}
		part := r.shares()
		for number, weight := range []float64{1: 1, 2: 2, 3: 5} {
			if number > 0 {
				between(t, fmt.Sprintf("%s: port %d", c.name, number), part[number], 0.8*weight/8, 1.2*weight/8)
			}
		}
		r.command(AppendWeight(nil, 0, 1))
		part = r.shares()
		for number := 1; number <= 3; number++ {
			between(t, fmt.Sprintf("%s: port %d without a weight", c.name, number), part[number], 0.8/3, 1.2/3)
		}
	}
}

// Weights outside of their range are refused. Without weights, the worker measures no cheap passes.
func TestWeightsAreChecked(t *testing.T) {
	r := timedRig(t)
	for _, bad := range [][]byte{AppendWeight(nil, port.MaxPorts, 1), AppendWeight(nil, 1, 0), AppendWeight(nil, 1, MaxWeight+1), AppendWeight(nil, 1, 1)[:10]} {
		refused := r.sh.Counters.CommandsRefused
		r.command(bad)
		if r.turn(); r.sh.Counters.CommandsRefused != refused+1 {
			t.Errorf("command %v is not refused", bad)
		}
	}
	for i, want := range []int{1, 2, 1, 0} {
		r.command([][]byte{AppendWeight(nil, 1, 2), AppendWeight(nil, 2, MaxWeight), AppendWeight(nil, 1, 1), AppendWeight(nil, 0, 1)}[i])
		r.turn()
		if got := r.w.accounting.weighted; got != want {
			t.Errorf("step %d: %d ports with weights, want %d", i, got, want)
		}
	}
}

// A port whose visits are slow pays for them, whatever it does between them: empty queues, or silence.
func TestPausesDoNotHideSlowVisits(t *testing.T) {
	for name, pauseNS := range map[string]uint64{"every pass": 0, "pauses": 4_000_000, "long pauses": 30_000_000} {
		r := timedRig(t)
		r.timedPort(1, 1, always(4_000))
		r.timedPort(3, 1, always(3_000_000))
		r.turn()
		r.replay(1, 1<<50)
		var nextNS uint64
		visits := 0
		began := r.w.fixed
		for r.w.fixed-began < 200_000_000 {
			if r.w.fixed >= nextNS {
				r.replay(3, 1)
			}
			was := r.sh.Ports[3].RxPackets
			if r.turn(); r.sh.Ports[3].RxPackets > was {
				visits++
				nextNS = r.w.fixed + pauseNS
			}
		}
		if time := uint64(visits) * 3_000_000; time > 115_000_000 || visits == 0 {
			t.Errorf("%s: the port had %d visits, %d ms of 200", name, visits, time/1_000_000)
		}
	}
}

// Slow visits of an empty queue are charged to its port, not to the next one.
func TestSlowEmptyQueuesPay(t *testing.T) {
	r := timedRig(t)
	r.timedPort(3, 1, func(int) uint64 { return 3_000_000 })
	r.timedPort(1, 1, always(1_000))
	r.timedPort(2, 1, always(1_000))
	r.turn()
	r.replay(1, 1<<50)
	r.replay(2, 1<<50)
	between(t, "time of a port with frames", r.shares()[1], 0.8/3, 0.4)
	if a := r.w.accounting.accounts[1]; a.owes() {
		t.Errorf("the port with frames owes %d ns", a.debtNS)
	}
}

// A port that is alone, or beside a port with few frames, is visited in each pass.
func TestCheapAndLonelyPortsAreNotThrottled(t *testing.T) {
	for name, others := range map[string]int{"alone": 0, "beside single frames": 1} {
		r := timedRig(t)
		r.timedPort(1, 1, always(1_000))
		r.timedPort(3, 2, always(90_000))
		r.turn()
		r.replay(3, 1<<50)
		for range 20 {
			r.turn()
		}
		for i := range 3000 {
			if i%20 == 0 && others > 0 {
				r.replay(1, 1)
			}
			was := r.sh.Ports[3].RxPackets
			if r.turn(); r.sh.Ports[3].RxPackets != was+2*packet.BatchSize {
				t.Fatalf("%s: pass %d took %d frames", name, i, r.sh.Ports[3].RxPackets-was)
			}
		}
	}
}

// No port waits while each port is in debt or has no frames.
func TestTheWorkerIsNeverIdle(t *testing.T) {
	r := timedRig(t)
	r.timedPort(1, 1, always(3_000_000))
	r.timedPort(3, 1, always(2_000_000))
	r.turn()
	r.replay(1, 1<<50)
	r.replay(3, 1<<50)
	empty := 0
	for range 1000 {
		was := r.sh.Counters.Frames
		if r.turn(); r.sh.Counters.Frames == was {
			empty++
		}
	}
	if empty > 0 {
		t.Errorf("%d of 1000 passes visited no port", empty)
	}
}

// Time in which another thread had the core is charged to no port. Time in which the
// worker waits for a page of a guest is charged to the guest.
func TestPreemptionCostsNothing(t *testing.T) {
	if charged := chargedForStalls(t, 0); charged > 3_000_000 {
		t.Errorf("%d ns charged for stalls of the core", charged)
	}
	if charged := chargedForStalls(t, 1); charged < 4_000_000 {
		t.Errorf("%d ns charged although the worker waited for a page", charged)
	}
}

// chargedForStalls returns the time charged to a port for 2,000 passes, of which each hundredth
// visit stalls for 4 ms with the given number of waits in the kernel.
func chargedForStalls(t *testing.T, waits int) uint64 {
	r := timedRig(t)
	visits := 0
	r.timedPort(1, 1, func(int) uint64 {
		if visits++; visits%100 == 0 {
			return 4_000_000
		}
		return 1_000
	})
	r.timedPort(3, 1, always(1_000))
	r.w.accounting.times = func() threadTimes {
		return threadTimes{cpuNS: r.w.fixed - uint64(visits/100)*4_000_000, waits: int64(waits * (visits / 100))}
	}
	r.turn()
	r.replay(1, 1<<50)
	r.replay(3, 1<<50)
	for range 2000 {
		r.turn()
	}
	if waits == 0 && visits < 1900 {
		t.Errorf("%d visits of 2000", visits)
	}
	return r.sh.SpentNS[1]
}

// A port that gets the number of a detached port begins without debt.
func TestNewPortsOweNothing(t *testing.T) {
	r := timedRig(t)
	r.timedPort(1, 1, always(1_000))
	r.timedPort(3, 1, always(50_000_000))
	r.turn()
	r.replay(1, 1<<50)
	r.replay(3, 1<<50)
	for range 8 {
		r.turn()
	}
	if !r.w.accounting.accounts[3].owes() {
		t.Fatal("the slow port owes nothing")
	}
	r.w.detach(3)
	r.ports[3].Close()
	r.timedPort(3, 1, always(1_000))
	r.turn()
	before := r.sh.Ports[3].RxPackets
	r.replay(3, 1<<50)
	r.turn()
	if a := r.w.accounting.accounts[3]; a.owes() || len(r.w.accounting.debtors) > 2 || r.sh.Ports[3].RxPackets == before {
		t.Errorf("the new port owes %d ns", a.debtNS)
	}
}

// Measured passes allocate nothing.
func TestAccountsDoNotAllocate(t *testing.T) {
	r := timedRig(t)
	r.timedPort(1, 1, always(1_000))
	r.timedPort(3, 1, always(300_000))
	r.w.accounting.times = readThreadTimes
	r.turn()
	r.replay(1, 1<<50)
	r.replay(3, 1<<50)
	r.turn()
	if n := testing.AllocsPerRun(500, func() { r.w.pass() }); n != 0 {
		t.Errorf("a pass makes %v allocations, want 0", n)
	}
}

var _ port.Rx = slowRx{}

// The worker does not measure passes of cheap frames, but estimates their time for Shared.SpentNS.
func TestCheapPassesAreNotMeasured(t *testing.T) {
	r := timedRig(t)
	r.timedPort(1, 1, always(1_000))
	r.timedPort(3, 1, always(1_000))
	r.turn()
	r.replay(1, 1<<50)
	r.replay(3, 1<<50)
	r.turn() // estimates the time of each frame by that of the first frames
	r.turn()
	before := r.sh.SpentNS[1]
	for range 100 {
		if r.turn(); r.w.accounting.measured {
			t.Fatal("a pass of cheap frames is measured")
		}
	}
	if n := r.sh.SpentNS[1] - before; n < 80_000 || n > 120_000 {
		t.Errorf("%d ns counted for port 1, want about 100,000", n)
	}
}

// Passes that an interrupt lengthens now and then do not make the worker measure its passes, because a
// measured pass costs more. Passes that are long again and again do.
func TestInterruptsDoNotMakePassesDear(t *testing.T) {
	const tickNS, everyNS = 60_000, 1_000_000
	r := timedRig(t)
	ticks, dear := uint64(0), uint64(0)
	r.timedPort(1, 1, func(int) uint64 {
		if r.w.fixed/everyNS != ticks {
			ticks = r.w.fixed / everyNS
			return 1_000 + tickNS
		}
		return 1_000 + dear
	})
	r.timedPort(3, 1, always(1_000))
	r.turn()
	r.replay(1, 1<<50)
	r.replay(3, 1<<50)
	for r.w.fixed < 50*everyNS {
		if r.turn(); r.w.accounting.measured {
			t.Fatalf("interrupts make the worker measure after %d ns", r.w.fixed)
		}
	}
	dear = tickNS
	for range 2 * extraNS / tickNS {
		r.turn()
	}
	if !r.w.accounting.measured {
		t.Error("passes that are dear again and again are not measured")
	}
}

// While a port with a large debt waits, the passes are cheap. The worker still goes on measuring, so
// the port waits until its debt is paid.
func TestDebtsOutliveCheapPasses(t *testing.T) {
	r := timedRig(t)
	r.timedPort(1, 1, always(1_000))
	r.timedPort(2, 1, always(1_000))
	r.timedPort(3, 1, always(1_000))
	r.turn()
	for number := uint32(1); number <= 3; number++ {
		r.replay(number, 1<<50)
	}
	const owedNS, passNS = 1_000_000, 1_000
	accounts := &r.w.accounting
	accounts.accounts[3].debtNS = owedNS
	accounts.debtors = append(accounts.debtors, 3)
	r.turn() // the worker learns that the others have frames
	was := r.sh.Ports[3].RxPackets
	for range (owedNS - sliceNS) / passNS * 9 / 10 {
		r.turn()
	}
	if n := r.sh.Ports[3].RxPackets - was; n > 0 {
		t.Errorf("a port in debt got %d frames into the switch", n)
	}
	for range 2 * owedNS / passNS {
		r.turn()
	}
	if n := r.sh.Ports[3].RxPackets - was; n == 0 {
		t.Error("a port that has paid gets no frame into the switch")
	}
}

// One pass spends little more than maxPassNS on the queues of a port beside others, and each
// queue has its turn.
func TestAPortsPassIsBounded(t *testing.T) {
	r := timedRig(t)
	r.timedPort(1, 1, always(4_000))
	r.timedPort(3, 16, always(140_000))
	r.turn()
	r.replay(1, 1<<50)
	r.replay(3, 1<<50)
	for range 4 {
		r.turn()
	}
	visits := func() (counts [16]uint64) {
		for i, rx := range r.ports[3].RxQueues {
			counts[i] = rx.Recvs.Load()
		}
		return counts
	}
	before, longestNS := visits(), uint64(0)
	for range 20_000 {
		began := r.w.fixed
		r.turn()
		longestNS = max(longestNS, r.w.fixed-began)
	}
	if longestNS > maxPassNS+150_000 {
		t.Errorf("a pass took %d ns", longestNS)
	}
	after := visits()
	lowest, highest := after[0]-before[0], after[0]-before[0]
	for i := range after {
		lowest, highest = min(lowest, after[i]-before[i]), max(highest, after[i]-before[i])
	}
	if lowest == 0 || highest-lowest > 2 {
		t.Errorf("the queues were visited %d to %d times", lowest, highest)
	}
}

// Passes stay short between the frames of a port that sends one in 20 ms.
func TestRareFramesFindShortPasses(t *testing.T) {
	r := timedRig(t)
	r.timedPort(1, 1, always(4_000))
	const frameNS = 330_000
	r.timedPort(3, 16, func(frames int) uint64 { return 20 + frameNS*uint64(frames) })
	r.turn()
	r.replay(3, 1<<50)
	longestNS, sentNS := uint64(0), uint64(0)
	for pass := range 2000 {
		began := r.w.fixed
		if began-sentNS >= 20_000_000 {
			r.replay(1, 1)
			sentNS = began
		}
		if r.turn(); pass >= 100 {
			longestNS = max(longestNS, r.w.fixed-began)
		}
	}
	if longestNS > maxPassNS+frameNS+50_000 {
		t.Errorf("a pass took %d ns", longestNS)
	}
}

// Beside another port, a visit takes only as many frames as take about maxCutNS.
func TestSlowBatchesAreTakenInPart(t *testing.T) {
	r := timedRig(t)
	r.timedPort(1, 1, always(4_000))
	r.timedPort(3, 1, func(frames int) uint64 { return 20 + 10_000*uint64(frames) })
	r.turn()
	r.replay(1, 1<<50)
	r.replay(3, 1<<50)
	for range 200 {
		r.turn()
	}
	largest := uint64(0)
	for range 2000 {
		before := r.sh.Ports[3].RxPackets
		r.turn()
		largest = max(largest, r.sh.Ports[3].RxPackets-before)
	}
	if largest == 0 || largest > 10 {
		t.Errorf("a visit took up to %d frames, want 1 to 10", largest)
	}
	r.replay(1, 0)
	for range 3 {
		r.turn()
	}
	r.w.fixed += measuredForNS
	for range 3 {
		r.turn()
	}
	before := r.sh.Ports[3].RxPackets
	if r.turn(); r.sh.Ports[3].RxPackets != before+packet.BatchSize {
		t.Errorf("alone, a visit took %d frames", r.sh.Ports[3].RxPackets-before)
	}
}
