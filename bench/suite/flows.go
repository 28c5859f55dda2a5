// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"weft/e2e/lab"
)

// The functions below measure flow tables. All switches get the same flow tables and the same frames.

func flowsFamily() []*experiment {
	peers := []string{weftPeer, ovsPeer}
	var list []*experiment
	add := func(name, unit string, measure func(r *run, peer string) float64) *experiment {
		e := &experiment{name: "flows-" + name, unit: unit, peers: peers, measure: measure}
		list = append(list, e)
		return e
	}
	rate := func(name string, make func() *rules) {
		add(name, "frames/s", func(r *run, peer string) float64 { return measureRules(r, peer, make()) })
	}
	for _, n := range []int{1, 1_000, 10_000, 100_000} {
		rate("exact/"+strconv.Itoa(n), func() *rules { return exactRules(n) })
	}
	rate("pairs/1000000", pairRules)
	for _, n := range []int{10, 50} {
		rate("masks/"+strconv.Itoa(n), func() *rules { return maskRules(n) })
	}
	for _, n := range []int{1_000, 10_000} {
		rate("acl/"+strconv.Itoa(n), func() *rules { return aclRules(n) })
	}
	add("misses/100000", "misses/s", measureMisses)
	for _, bundle := range []bool{true, false} {
		name := map[bool]string{true: "bundle", false: "plain"}[bundle]
		add("install-"+name+"/100000", "s", func(r *run, peer string) float64 { return measureInstall(r, peer, bundle) }).smallerIsBetter = true
	}
	for _, perSecond := range []int{1_000, 20_000, 100_000} {
		add(fmt.Sprintf("attack/%d", perSecond), "part left", func(r *run, peer string) float64 { return measureAttack(r, peer, perSecond) })
	}
	return list
}

// runPair starts a switch, two guests, and as many more guests as "extra" says. It returns the guests'
// report.
func runPair(r *run, peer string, s *rules, spec guestsSpec, extra int) guestsReport {
	var result guestsReport
	for way, sent := range s.sent {
		spec.Flows[way] = filepath.Join(r.dir, fmt.Sprint("sent", way))
		writeTuples(spec.Flows[way], sent)
	}
	flows := func(guest func(int) string, _ string) []string { return s.flows(guest) }
	newSwitch(peer).up(r, setup{guests: 2 + extra, flows: flows})
	p := startLoad(r, guestsVerb, 2+extra, spec)
	p.waitForReport(spec.Warm*2+spec.Length+20*time.Second, &result)
	someCame(result.Frames + result.Sliced.aloneRate())
	return result
}

// warmTime is how long frames flow before they count. For each megaflow, warmPerFlow is added to it,
// because some switches do not install all megaflows in the first round.
const (
	warmTime      = 500 * time.Millisecond
	warmPerFlow   = 20 * time.Microsecond
	megaflowsMost = 100_000
)

func measureRules(r *run, peer string, s *rules) float64 {
	warm := warmTime + time.Duration(min(2*len(s.sent[0]), megaflowsMost))*warmPerFlow
	result := runPair(r, peer, s, guestsSpec{Warm: warm, Length: r.length}, 0)
	r.note("lost", "frames", float64(result.Lost))
	return result.Frames
}

// measureMisses returns the frames per second of a switch whose flow caches are empty. Each frame
// belongs to another of 100,000 flows.
func measureMisses(r *run, peer string) float64 {
	s := exactRules(100_000)
	return runPair(r, peer, s, guestsSpec{Until: 100_000, Length: 10 * time.Second}, 0).Frames
}

// measureInstall returns how many seconds it takes to add 100,000 flows from a file.
func measureInstall(r *run, peer string, bundle bool) float64 {
	sw := newSwitch(peer)
	sw.up(r, setup{guests: 2, flows: func(func(int) string, string) []string { return nil }})
	before := sw.(resident).resident()
	s := exactRules(100_000)
	name := guestName
	if _, ok := sw.(*ovs); ok {
		name = func(i int) string { return fmt.Sprint(ovsPort(i)) }
	}
	file := writeFlows(r, setup{flows: func(func(int) string, string) []string { return s.flows(name) }}, nil, "")
	var options []string
	if bundle {
		options = []string{"--bundle"}
	}
	began := time.Now()
	switch sw := sw.(type) {
	case *weft:
		sw.cli(append(options, "add-flows", file)...)
	case *ovs:
		lab.Must(command(sw.env, "ovs-ofctl", append(options, "add-flows", "br0", file)...))
	}
	took := time.Since(began)
	time.Sleep(2 * time.Second) // time for the allocator to return memory to the kernel
	after := sw.(resident).resident()
	r.note("resident", "B", after.resident)
	r.note("resident before", "B", before.resident)
	r.note("huge pages beside", "B", after.huge)
	return took.Seconds()
}

// measureAttack returns the fraction of two guests' frame rate that remains while a third guest makes
// the switch create masks (CVE-2019-25076).
func measureAttack(r *run, peer string, perSecond int) float64 {
	s := attackRules()
	spec := guestsSpec{Warm: 2 * time.Second, Length: attackLengths * r.length, Attack: filepath.Join(r.dir, "attack"), PerSecond: perSecond}
	writeTuples(spec.Attack, attackTuples())
	result := runPair(r, peer, s, spec, 1)
	r.noteAttack(&result.Sliced, "attacked", "attack taken", "frames/s")
	return result.Sliced.left()
}
