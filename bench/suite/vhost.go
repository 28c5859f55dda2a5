// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"weft/e2e/lab"
	"weft/vhost/vhosttest"
)

// In the experiments below, a switch forwards between pairs of guests. The guests are vhosttest's or
// testpmd's.
//
// In most of them, the guests return frames unchanged. In the experiments "flows/N", a guest first
// writes the UDP ports into each frame, so the frame's first cache line moves between cores. Results
// for several values of N are to be compared with flows/2, in which guests write the ports, too. In the
// experiments "touched/N", a guest reads and writes a word in each cache line of a frame. All cache
// lines then move between cores, as they do with applications. touched-flows/20000 has 10,000 flows in
// each direction.

func vhostFamily() []*experiment {
	var list []*experiment
	add := func(name, unit string, peers []string, measure func(r *run, peer string) float64) *experiment {
		e := &experiment{name: "vhost-" + name, unit: unit, peers: peers, measure: measure}
		list = append(list, e)
		return e
	}
	three, two := []string{weftPeer, ovsPeer, testpmdPeer}, []string{weftPeer, ovsPeer}
	for _, size := range []int{64, 1500} {
		add(fmt.Sprintf("pair/%d", size), "frames/s", three, func(r *run, peer string) float64 {
			return measurePairs(r, peer, pairSpec{Size: size, Flows: 1}, 1)
		})
	}
	for _, flows := range []int{2, 10_000, 20_000, 100_000, 200_000, 1_000_000} {
		add(fmt.Sprintf("flows/%d", flows), "frames/s", two, func(r *run, peer string) float64 {
			return measurePairs(r, peer, pairSpec{Size: 64, Flows: flows / 2, Write: true}, 1)
		})
	}
	for _, size := range []int{64, 1500} {
		add(fmt.Sprintf("touched/%d", size), "frames/s", three, func(r *run, peer string) float64 {
			return measurePairs(r, peer, pairSpec{Size: size, Flows: 1, Touch: true}, 1)
		})
	}
	add("touched-flows/20000", "frames/s", two, func(r *run, peer string) float64 {
		return measurePairs(r, peer, pairSpec{Size: 64, Flows: 10_000, Write: true, Touch: true}, 1)
	})
	add("kept/10000", "frames/s", two, func(r *run, peer string) float64 {
		return measurePairs(r, peer, pairSpec{Size: 64, Flows: 5000}, 1)
	})
	for _, guests := range []int{4, 32} {
		add(fmt.Sprintf("guests/%d", guests), "frames/s", two[:1], func(r *run, peer string) float64 {
			return measurePairs(r, peer, pairSpec{Size: 64, Flows: 1}, guests/2)
		})
	}
	add("testpmd/64", "frames/s", three, func(r *run, peer string) float64 { return measureGuests(r, peer, 64) })
	add("wake/64", "s", two, measureWake).smallerIsBetter = true
	return list
}

// pairWarmTime is how long frames flow before they count. With more than manyFlows flows, it is
// manyWarmTime.
const (
	pairWarmTime = 500 * time.Millisecond
	manyWarmTime = 4 * time.Second
	manyFlows    = 1000
)

// measurePairs returns the frames per second between pairs of guests. The switch has one flow for each
// 5-tuple and direction.
func measurePairs(r *run, peer string, spec pairSpec, pairs int) float64 {
	spec.Warm, spec.Length = pairWarmTime, r.length
	if spec.Flows > manyFlows {
		spec.Warm = manyWarmTime
	}
	var rate float64
	withPairs(r, peer, spec, pairs, func(sw vswitch, guests *process) {
		time.Sleep(spec.Warm)
		if peer != testpmdPeer {
			r.note("cost", "cycles/frame", costOf(sw, r.length)*tscHz())
		}
		var result pairReport
		guests.waitForReport(spec.Length+20*time.Second, &result)
		if result.Bad > 0 || result.Misused > 0 {
			lab.Check(fmt.Errorf("%d frames were changed, %d buffers were misused", result.Bad, result.Misused))
		}
		rate = result.Frames
		r.note("guests idle", "share", result.Idle)
		someCame(rate)
	})
	return rate
}

// withPairs starts a switch and pairs of guests. When the switch has attached all guests, it calls the
// function measure.
func withPairs(r *run, peer string, spec pairSpec, pairs int, measure func(sw vswitch, guests *process)) {
	sw := newSwitch(peer)
	flows := func(guest func(int) string, _ string) []string { return tupleFlows(guest, pairs, spec.Flows) }
	sw.up(r, setup{guests: 2 * pairs, flows: flows})
	p := startLoad(r, pairVerb, 2*pairs, spec)
	p.waitForWord(attachedWord, 20*time.Second)
	measure(sw, p)
}

// tupleFlows returns the flows between guests 2i and 2i+1: one for each 5-tuple and direction.
func tupleFlows(guest func(int) string, pairs, flows int) []string {
	var list []string
	for g := range 2 * pairs {
		for i := range flows {
			src, dst := vhosttest.FlowPorts(i)
			list = append(list, fmt.Sprintf("in_port=%s,udp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_src=%d,tp_dst=%d,actions=output:%s", guest(g), src, dst, guest(g^1)))
		}
	}
	return list
}

// depths are the numbers of bursts of 32 frames that are in flight. comparedDepth gives the result.
// The other depths give secondary results.
var depths = []int{2, 8, 16, 30}

const comparedDepth = 8

// measureGuests returns the frames per second between testpmd's guests.
func measureGuests(r *run, peer string, size int) float64 {
	g := r.upWithGuests(newSwitch(peer), setup{flows: pairFlows}, "io", size)
	rates := g.deepen(depths, r.length)
	var compared float64
	for i, depth := range depths {
		if depth == comparedDepth {
			compared = rates[i]
		} else {
			r.note(fmt.Sprintf("%d bursts", depth), "frames/s", rates[i])
		}
	}
	return compared
}

// deepen measures the rate for each number of bursts in flight. Frames stay in the rings between
// measurements, so depths must be in ascending order.
func (g *guests) deepen(depths []int, length time.Duration) []float64 {
	there := 0
	for _, depth := range depths {
		g.say(fmt.Sprint("start tx_first ", depth-there))
		there = depth
		time.Sleep(pairWarmTime)
		watch(g.process, length)
	}
	return receivedRates(g.process, 2, len(depths))
}

// pairFlows returns two flows that connect guests 0 and 1.
func pairFlows(guest func(int) string, _ string) []string {
	return []string{"in_port=" + guest(0) + ",actions=output:" + guest(1), "in_port=" + guest(1) + ",actions=output:" + guest(0)}
}
