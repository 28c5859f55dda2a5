// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
)

// attacked returns a worker with known flows on port 1. Each frame of port 3 misses after the search
// has tried as many masks as "masks" says.
func attacked(t testing.TB, masks int) *rig {
	sizes := testSizes
	sizes.Cache.Masks = 128
	sizes.Held = 1024
	r := newRig(t, sizes)
	for no := uint32(1); no <= 3; no++ {
		r.addPort(no, porttest.Options{}, false)
	}
	r.tx(2).Discard.Store(true)
	for i := range 100 {
		r.inject(1, ethernet(0x020000000000+uint64(i), 60, uint32(i)))
		r.install(uint32(i), 1, 0x020000000000+uint64(i), output(2))
	}
	for i := range masks - 1 {
		key := flowtable.Key{flowtable.WPort: 3 << 32, flowtable.WEthSrc: 1 << 63}
		mask := flowtable.Key{flowtable.WPort: 0xffffffff << 32, flowtable.WEthSrc: 1<<63 | uint64(i)<<20}
		r.command(AppendInstall(nil, uint32(200+i), &key, &mask, []flowtable.Action{output(2)}))
		r.turn()
	}
	for range 4 {
		r.turn() // fills the exact-match cache
	}
	return r
}

// The method answer acts as the control process: it drops every frame that has missed.
func (r *rig) answer() {
	for up, ok := r.upcall(); ok; up, ok = r.upcall() {
		r.command(AppendDropHeld(nil, up.Arg, packet.DropFlow))
	}
}

// A queue whose frames all miss is polled rarely while another queue has frames, and
// in every pass otherwise.
func TestCostlyQueuesAreSkipped(t *testing.T) {
	r := attacked(t, 128)
	for i := range 200 {
		r.inject(3, ethernet(0x0a0000000000+uint64(i), 60, uint32(i)))
	}
	r.rx(1).Replay(1 << 50)
	r.rx(3).Replay(1 << 50)
	r.w.fixed = r.w.now
	slow := r.visits(3, 3000, nil)
	if q := r.w.queues.queue(2); q.port != 3 || q.debtNS == 0 {
		t.Errorf("port %d has a debt of %d ns", q.port, q.debtNS)
	}
	// 3000 passes of 20 µs reduce the debt (extra cost) of the queue by 3.75 ms in
	// total. Each poll adds about 150 µs of debt.
	if slow < 15 || slow > 60 {
		t.Errorf("the queue that misses was visited in %d of 3000 passes", slow)
	}
	if n := r.sh.Ports[1].RxPackets; n < 3000*packet.BatchSize/2 {
		t.Errorf("%d frames of the other queue", n)
	}
	r.rx(1).Replay(0)
	before := r.sh.Ports[3].RxPackets
	for range maxAwayNS/20_000 - 10 {
		r.w.fixed += 20_000
		r.turn()
		r.answer()
	}
	// The other queues still count as busy, and the queue's debt (extra cost) is still
	// too high.
	if n := r.sh.Ports[3].RxPackets - before; n > packet.BatchSize {
		t.Errorf("%d frames of the queue that misses while the others are away", n)
	}
	for range 20 {
		r.w.fixed += 20_000
		r.turn()
		r.answer()
	}
	alone := r.visits(3, 100, nil)
	if alone != 100 {
		t.Errorf("the queue that misses, alone, was visited in %d of 100 passes", alone)
	}
}

// visits runs passes of 20 µs. It returns the number of passes in which frames of the
// port were received. It calls prepare at the beginning of each pass.
func (r *rig) visits(port uint32, passes int, prepare func(i int)) (times int) {
	for i := range passes {
		if prepare != nil {
			prepare(i)
		}
		was := r.sh.Ports[port].RxPackets
		r.w.fixed += 20_000
		r.turn()
		if r.sh.Ports[port].RxPackets > was {
			times++
		}
		r.answer()
	}
	return times
}

// Single frames of another port do not delay a queue whose frames all miss.
func TestWaitsAsLongAsOthersWereThere(t *testing.T) {
	r := attacked(t, 128)
	for i := range 200 {
		r.inject(3, ethernet(0x0a0000000000+uint64(i), 60, uint32(i)))
	}
	r.rx(3).Replay(1 << 50)
	r.w.fixed = r.w.now + maxAwayNS // the worker no longer counts as busy
	for range 20 {
		r.w.fixed += maxAwayNS
		r.turn()
		r.answer()
	}
	visited := r.visits(3, 1000, func(i int) {
		if i%50 == 0 {
			r.rx(1).Replay(1)
		}
	})
	if visited < 900 || visited > 990 {
		t.Errorf("visited in %d of 1000 passes with a frame of another queue in every 50th, want 900 to 990", visited)
	}
}

// A queue is skipped for large frames of very small segments, but not for ordinary
// large frames.
func TestSmallSegmentsAreCharged(t *testing.T) {
	for size, most := range map[int]int{40: 20, 536: 100, 1448: 200} {
		r := newRig(t, testSizes)
		for no := uint32(1); no <= 3; no++ {
			r.addPort(no, porttest.Options{Slots: 64, SlotBytes: packet.MaxFrameLen, MTU: 1514}, false)
		}
		r.install(0, 1, 0xa, output(2))
		r.install(1, 3, 0xb, output(2))
		r.tx(2).Discard.Store(true)
		undone, o := undo(large(0xa, 60000), size)
		r.rx(1).InjectUndone(undone, o)
		r.inject(3, ethernet(0xb, 60, 1))
		r.turn()
		r.rx(1).Replay(1 << 50)
		r.rx(3).Replay(1 << 50)
		visits, times := r.sh.Ports[1].RxPackets, 0
		r.w.fixed = r.w.now
		for range 200 {
			r.w.fixed += 100_000
			r.turn()
			if n := r.sh.Ports[1].RxPackets; n > visits {
				visits = n
				times++
			}
		}
		if times > most || size > smallSegment && times != most {
			t.Errorf("segments of %d bytes: visited %d times in 200 passes", size, times)
		}
	}
}

// Beside another busy queue, a poll takes only as many large frames as cost maxCutNS to cut. When the
// other queue has been empty for measuredForNS, a poll takes a full batch again.
func TestLargeFramesAreTakenInPart(t *testing.T) {
	r := newRig(t, testSizes)
	for no := uint32(1); no <= 3; no++ {
		r.addPort(no, porttest.Options{Slots: 64, SlotBytes: packet.MaxFrameLen, MTU: 1514}, false)
	}
	r.install(0, 1, 0xa, output(2))
	r.install(1, 3, 0xb, output(2))
	r.tx(2).Discard.Store(true)
	undone, o := undo(large(0xa, 60000), 1448)
	r.rx(1).InjectUndone(undone, o)
	r.inject(3, ethernet(0xb, 60, 1))
	r.turn()
	r.w.fixed = r.w.now
	r.rx(1).Replay(1 << 50)
	for _, others := range []bool{true, false} {
		if others {
			r.rx(3).Replay(1 << 50)
		} else {
			r.rx(3).Replay(0)
			for range 3 { // frames of port 1 follow those of port 3 once more
				r.turn()
			}
			r.w.fixed += measuredForNS
		}
		largest := uint64(0)
		for i := range 40 {
			r.w.fixed += 100_000
			before := r.sh.Ports[1].RxPackets
			r.turn()
			if n := r.sh.Ports[1].RxPackets - before; i >= 20 { // the first polls still have the old limit
				largest = max(largest, n)
			}
		}
		if others && (largest < 1 || largest > 8) || !others && largest != packet.BatchSize {
			t.Errorf("others wait: %v; a visit took up to %d large frames", others, largest)
		}
	}
}

// Frames of known flows and a few new connections never make the worker skip their
// queue.
func TestOrdinaryQueuesOweNothing(t *testing.T) {
	r := attacked(t, 8)
	r.rx(1).Replay(1 << 50)
	for i := range 64 {
		r.inject(3, ethernet(0x0a0000000000+uint64(i), 60, uint32(i)))
		r.turn()
		r.answer()
	}
	for range 2 {
		r.w.fixed = r.w.now + gatherNS
		r.turn()
		r.answer()
	}
	if q := r.w.queues.queue(0); q.debtNS != 0 {
		t.Errorf("a queue of known flows has a debt of %d ns, want 0", q.debtNS)
	}
	if n := r.sh.Ports[3].RxPackets; n != 64 {
		t.Errorf("%d frames received, want 64", n)
	}
}

// BenchmarkUnderAttack measures a frame of a known flow in three cases: without an
// attack, during an attack from another port, and during the attack with debts (extra
// costs of queues) turned off.
func BenchmarkUnderAttack(b *testing.B) {
	for _, masks := range []int{1, 16, 128} {
		for _, attack := range []string{"none", "bounded", "unbounded"} {
			b.Run(fmt.Sprintf("masks=%d/attack=%s", masks, attack), func(b *testing.B) { benchmarkUnderAttack(b, masks, attack) })
		}
	}
}

func benchmarkUnderAttack(b *testing.B, masks int, attack string) {
	r := attacked(b, masks)
	r.w.config.SpinUS = forever
	for i := range 200 {
		r.inject(3, ethernet(0x0a0000000000+uint64(i), 60, uint32(i)))
	}
	r.rx(1).Replay(1 << 50)
	if attack != "none" {
		r.rx(3).Replay(1 << 50)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	spent := int64(0)
	start := r.sh.Ports[1].RxPackets
	other := r.sh.Ports[3].RxPackets
	for r.sh.Ports[1].RxPackets-start < uint64(b.N) {
		before := threadNS(b)
		for range 8 {
			if attack == "unbounded" {
				r.w.queues.queue(2).debtNS = 0
			}
			r.turn()
		}
		spent += threadNS(b) - before
		r.answer() // the time of control is not measured, because control would run on another core
	}
	b.ReportMetric(float64(spent)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(r.sh.Ports[3].RxPackets-other)/float64(b.N), "attack/op")
}

// BenchmarkLargeFrames measures one poll of a queue whose large frames are cut into
// segments, alone and beside another queue. It reports the median.
func BenchmarkLargeFrames(b *testing.B) {
	for _, size := range []int{536, 1448} {
		for _, beside := range []bool{false, true} {
			b.Run(fmt.Sprintf("mss=%d/beside=%v", size, beside), func(b *testing.B) {
				r := newRig(b, testSizes)
				for no := uint32(1); no <= 3; no++ {
					r.addPort(no, porttest.Options{Slots: 1024, SlotBytes: packet.MaxFrameLen, MTU: 1514}, false)
				}
				r.install(0, 1, 0xa, output(2))
				r.install(1, 3, 0xb, output(2))
				r.tx(2).Discard.Store(true)
				undone, o := undo(large(0xa, 65000), size)
				r.rx(1).InjectUndone(undone, o)
				r.inject(3, ethernet(0xb, 60, 1))
				r.turn()
				r.rx(1).Replay(1 << 50)
				if beside {
					r.rx(3).Replay(1 << 50)
				}
				r.w.fixed = r.w.now
				var took []time.Duration
				before := uint64(0)
				for i := range b.N + 100 {
					if i == 100 { // the limit of a poll is computed from the poll before
						before = r.sh.Ports[1].RxPackets
					}
					r.w.fixed += 20_000_000 // all debts are paid off
					begin := time.Now()
					r.turn()
					if i >= 100 {
						took = append(took, time.Since(begin))
					}
				}
				slices.Sort(took)
				b.ReportMetric(float64(r.sh.Ports[1].RxPackets-before)/float64(b.N), "frames/visit")
				b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "µs/visit")
			})
		}
	}
}
