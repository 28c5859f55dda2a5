// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"time"
)

// The functions below measure flow tables. All peers get the same flow tables and the same frames.

func flowsFamily() []*experiment {
	peers := []string{weftPeer, ovsPeer}
	var list []*experiment
	add := func(name, unit string, measure func(r *run, peer string) (float64, error)) *experiment {
		e := &experiment{name: "flows-" + name, unit: unit, peers: peers, measure: measure}
		list = append(list, e)
		return e
	}
	rate := func(name string, make func() *rules) {
		add(name, "frames/s", func(r *run, peer string) (float64, error) { return measureRules(r, peer, make()) })
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
		add("install-"+name+"/100000", "s", func(r *run, peer string) (float64, error) { return measureInstall(r, peer, bundle) }).smallerIsBetter = true
	}
	for _, perSecond := range []int{1_000, 20_000, 100_000} {
		add(fmt.Sprintf("attack/%d", perSecond), "part left", func(r *run, peer string) (float64, error) { return measureAttack(r, peer, perSecond) })
	}
	return list
}

// runPair starts a switch, two guests and extra more guests. It returns the guests' report.
func runPair(r *run, peer string, s *rules, spec guestsSpec, extra int) (guestsReport, error) {
	var result guestsReport
	for way, sent := range s.sent {
		spec.Flows[way] = filepath.Join(r.dir, fmt.Sprint("sent", way))
		if err := writeTuples(spec.Flows[way], sent); err != nil {
			return result, err
		}
	}
	flows := func(guest func(int) string, _ string) []string { return s.flows(guest) }
	if err := newSwitch(peer).up(r, setup{guests: 2 + extra, flows: flows}); err != nil {
		return result, err
	}
	p, err := startLoad(r, guestsVerb, 2+extra, spec)
	if err != nil {
		return result, err
	}
	if err := p.waitForReport(spec.Warm*2+spec.Length+20*time.Second, &result); err != nil {
		return result, err
	}
	return result, someCame(result.Frames + result.Sliced.aloneRate())
}

// warmTime is how long frames flow before they count. For each megaflow, warmPerFlow is added to it,
// because some switches do not install all megaflows in the first round.
const (
	warmTime      = 500 * time.Millisecond
	warmPerFlow   = 20 * time.Microsecond
	megaflowsMost = 100_000
)

func measureRules(r *run, peer string, s *rules) (float64, error) {
	warm := warmTime + time.Duration(min(2*len(s.sent[0]), megaflowsMost))*warmPerFlow
	result, err := runPair(r, peer, s, guestsSpec{Warm: warm, Length: r.length}, 0)
	if err != nil {
		return 0, err
	}
	r.note("lost", "frames", float64(result.Lost))
	return result.Frames, nil
}

// measureMisses returns the frames per second of a switch whose flow caches are empty. Each frame
// belongs to another of 100,000 flows.
func measureMisses(r *run, peer string) (float64, error) {
	s := exactRules(100_000)
	result, err := runPair(r, peer, s, guestsSpec{Until: 100_000, Length: 10 * time.Second}, 0)
	return result.Frames, err
}

// measureInstall returns how many seconds it takes to add 100,000 flows from a file.
func measureInstall(r *run, peer string, bundle bool) (float64, error) {
	sw := newSwitch(peer)
	if err := sw.up(r, setup{guests: 2, flows: func(func(int) string, string) []string { return nil }}); err != nil {
		return 0, err
	}
	before, err := sw.(resident).resident()
	if err != nil {
		return 0, err
	}
	s := exactRules(100_000)
	var file string
	var add func() error
	switch sw := sw.(type) {
	case *weft:
		file, err = writeFlows(r, setup{flows: func(func(int) string, string) []string { return s.flows(guestName) }}, nil, "")
		verb := []string{"add-flows", file}
		if bundle {
			verb = []string{"--bundle", "add-flows", file}
		}
		add = func() error { _, err := sw.cli(verb...); return err }
	case *ovs:
		file, err = writeFlows(r, setup{flows: func(func(int) string, string) []string {
			return s.flows(func(i int) string { return fmt.Sprint(ovsPort(i)) })
		}}, nil, "")
		verb := []string{"add-flows", "br0", file}
		if bundle {
			verb = append([]string{"--bundle"}, verb...)
		}
		add = func() error { _, err := command(sw.env, "ovs-ofctl", verb...); return err }
	}
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := add(); err != nil {
		return 0, err
	}
	took := time.Since(began)
	time.Sleep(2 * time.Second) // time for the allocator to return memory to the kernel
	after, err := sw.(resident).resident()
	if err != nil {
		return 0, err
	}
	r.note("resident", "B", after.resident)
	r.note("resident before", "B", before.resident)
	r.note("huge pages beside", "B", after.huge)
	return took.Seconds(), nil
}

// measureAttack returns the fraction of two guests' frame rate that remains while a third guest makes
// the switch create masks (CVE-2019-25076).
func measureAttack(r *run, peer string, perSecond int) (float64, error) {
	s := attackRules()
	spec := guestsSpec{Warm: 2 * time.Second, Length: attackLengths * r.length, Attack: filepath.Join(r.dir, "attack"), PerSecond: perSecond}
	if err := writeTuples(spec.Attack, attackTuples()); err != nil {
		return 0, err
	}
	result, err := runPair(r, peer, s, spec, 1)
	if err != nil {
		return 0, err
	}
	r.noteAttack(&result.Sliced, "attacked", "attack taken", "frames/s")
	return result.Sliced.left(), nil
}
