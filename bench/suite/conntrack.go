// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The functions below measure connection tracking. All switches get the same flows, the same frames
// and one core. The flows of the rows "established" and "without" differ only in the action ct.

func conntrackFamily() []*experiment {
	peers := []string{weftPeer, ovsPeer}
	var list []*experiment
	add := func(name, unit string, measure func(r *run, peer string) float64) *experiment {
		e := &experiment{name: "conntrack-" + name, unit: unit, peers: peers, measure: measure}
		list = append(list, e)
		return e
	}
	for _, n := range []int{1, 1_000, 10_000, 1_000_000} {
		for _, how := range []trackHow{untracked, tracked, translated} {
			e := add(fmt.Sprintf("%s/%d", how, n), "frames/s", func(r *run, peer string) float64 { return measureTracked(r, peer, how, n) })
			if how != translated && n <= bridgedMost {
				e.peers = append(slices.Clone(peers), linuxPeer)
			}
		}
	}
	for _, how := range []trackHow{tracked, translated} {
		add(fmt.Sprintf("new-%s/1200000", how), "connections/s", func(r *run, peer string) float64 { return measureBegun(r, peer, how) })
	}
	add("memory/1000000", "B", func(r *run, peer string) float64 { return measureConnectionMemory(r, peer, "ip") }).smallerIsBetter = true
	add("memory-ipv6/1000000", "B", func(r *run, peer string) float64 { return measureConnectionMemory(r, peer, "ipv6") }).smallerIsBetter = true
	add("flood/500000", "part left", measureFlood)
	return list
}

// trackHow says whether flows track connections, and whether they also translate addresses (NAT).
type trackHow string

const (
	untracked  trackHow = "without"
	tracked    trackHow = "established"
	translated trackHow = "snat"
)

// trackFlows returns a function that returns the flows for connections from guest 0 to guest 1. If
// fresh is set, the flows do not track the answers.
func trackFlows(mode trackHow, fresh bool) func(guest func(int) string, _ string) []string {
	return func(guest func(int) string, _ string) []string {
		a, b := guest(0), guest(1)
		if mode == untracked {
			return []string{"ip,in_port=" + a + ",actions=output:" + b, "ip,in_port=" + b + ",actions=output:" + a}
		}
		nat, source := "", ""
		if mode == translated {
			nat, source = ",nat", ",nat(src=192.0.2.1-192.0.2.254)"
		}
		flows := []string{
			"table=0,ip,in_port=" + a + ",actions=ct(zone=1,table=1" + nat + ")",
			"table=1,ip,in_port=" + a + ",ct_state=+trk+new,actions=ct(commit,zone=1" + source + "),output:" + b,
			"table=1,ip,in_port=" + a + ",ct_state=+trk+est,actions=output:" + b,
			"table=1,ip,in_port=" + b + ",ct_state=+trk+est,actions=output:" + a,
		}
		if fresh {
			return append(flows, "table=0,ip,in_port="+b+",actions=output:"+a)
		}
		return append(flows, "table=0,ip,in_port="+b+",actions=ct(zone=1,table=1"+nat+")")
	}
}

// trackGuestsDo starts a switch and the guests, and returns the guests' report. If meanwhile is not
// nil, trackGuestsDo calls it when all connections have been used and still have traffic. empty is the
// switch's memory before the guests started.
func trackGuestsDo(r *run, peer string, guests int, flows func(func(int) string, string) []string, spec trackSpec, meanwhile func(sw vswitch, empty memory)) trackReport {
	var result trackReport
	sw := newSwitch(peer)
	sw.up(r, setup{guests: guests, flows: flows})
	before := sw.(resident).resident()
	p := startLoad(r, trackVerb, guests, spec)
	if meanwhile != nil {
		p.waitForWord(warmWord, spec.Warm*16+10*time.Second)
		meanwhile(sw, before)
	}
	limit := spec.Warm*8 + spec.Length + 20*time.Second
	if spec.Fill > 0 {
		limit += time.Minute // in which the table becomes full
	}
	p.waitForReport(limit, &result)
	someCame(result.Frames + result.Full.aloneRate())
	return result
}

// measureTracked returns the frames per second that n established connections carry, in both
// directions together.
func measureTracked(r *run, peer string, mode trackHow, n int) float64 {
	if peer == linuxPeer {
		return measureBridged(r, mode, n)
	}
	spec := trackSpec{Connections: n, Warm: warmTime, Length: r.length + warmTime}
	result := trackGuestsDo(r, peer, 2, trackFlows(mode, false), spec, func(sw vswitch, _ memory) {
		r.note("cost", "s/frame", costOf(sw, r.length))
	})
	return result.Frames
}

// measureBegun returns the number of new connections per second. It opens 1,200,000 connections, or as
// many as possible within ten seconds.
func measureBegun(r *run, peer string, mode trackHow) float64 {
	result := trackGuestsDo(r, peer, 2, trackFlows(mode, true), trackSpec{Connections: 1_200_000, Fresh: true, Length: 10 * time.Second}, nil)
	r.note("begun", "connections", result.Count)
	r.note("longest stall", "s", result.Stall)
	return result.Begun
}

// measureConnectionMemory returns the bytes that 1,000,000 connections take together. protocol is "ip"
// or "ipv6".
func measureConnectionMemory(r *run, peer, protocol string) float64 {
	var grown float64
	spec := trackSpec{Connections: 1_000_000, IPv6: protocol == "ipv6", Warm: warmTime, Length: 2 * time.Second}
	flows := func(guest func(int) string, tunnel string) (list []string) {
		for _, f := range trackFlows(tracked, false)(guest, tunnel) {
			list = append(list, strings.Replace(f, ",ip,", ","+protocol+",", 1))
		}
		return list
	}
	trackGuestsDo(r, peer, 2, flows, spec, func(sw vswitch, empty memory) {
		after := sw.(resident).resident()
		grown = after.resident - empty.resident + after.huge - empty.huge
	})
	return grown
}

// floodFill is the number of connections that guest 2 opens until Weft's connection table is full. It
// is above the table's default limit.
const floodFill = 1<<20 + 10_000

// measureFlood measures a flood: a third guest opens 500,000 connections per second in another zone.
// It returns the fraction of the frame rate that remains when the table is full. It notes the fraction
// while the table grows as a secondary result.
func measureFlood(r *run, peer string) float64 {
	flows := func(guest func(int) string, tunnel string) []string {
		return append(trackFlows(tracked, false)(guest, tunnel),
			"table=0,tcp,in_port="+guest(2)+",actions=ct(zone=2,table=2)",
			"table=2,tcp,ct_state=+trk+new,actions=ct(commit,zone=2)")
	}
	spec := trackSpec{Connections: 1_000, Warm: warmTime, Length: attackLengths * r.length, PerSecond: 500_000, Fill: floodFill}
	result := trackGuestsDo(r, peer, 3, flows, spec, nil)
	r.noteAttack(&result.Full, "flooded", "flood taken", "connections/s")
	r.note("left while the table grows", "", result.Growing.left())
	return result.Full.left()
}
