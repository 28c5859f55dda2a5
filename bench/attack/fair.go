// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"weft/api"
	"weft/vhost/vhosttest"
)

// This file measures the part of a worker that an attack leaves the bystanders (row.Part): what they got,
// divided by the smaller of what they asked for and their fair share; at most 1.
//
// In most rows, the bystanders ask for a rate far below their fair share: in each round, each takes up to
// pacedRounds*pacedFrames frames from its ring and sends them on. The part is the number of frames that
// they found there, divided by the number for which they looked. A round in which this program had no core
// asks for nothing. With pacedInFlight frames on their way, a delay of eight rounds (1.3 ms) costs nothing.
//
// In the rows of fairAttacks, the bystanders are greedy: they always have frames.
//
//   - They ask for as many frames as they moved before the attack, for each second in which this program's
//     loop had its core.
//   - Their fair share is two n-ths of the worker's time (worker_ns of the API) without the uplink's, if n
//     ports, the attacker's and theirs, wanted time. While the loop has no core, they want nothing, and the
//     others may use all of the time. So only the part of the time counts in which the loop had its core.

const (
	pacedInFlight  = 64  // frames in flight of each paced bystander
	pacedFrames    = 2   // frames that a paced bystander asks for in one step
	pacedRounds    = 4   // steps between two rests
	greedyInFlight = 128 // frames in flight of each greedy bystander
	// wantingPart is the smallest part of the worker's time with which a port counts as one that
	// wants time: one in this number.
	wantingPart = 50
)

func fairAttacks() []*attack {
	return []*attack{
		{name: "greedy-frame-flood", greedy: true, exclusive: true, attacker: "guest", summary: "sends as much as it can, beside bystanders who do the same",
			setup: sender(echoes, vhosttest.Options{Num: 1024}), play: flood(func(p *play, f []byte) []byte { return f[:64] })},
		{name: "greedy-long-chains", greedy: true, exclusive: true, attacker: "front end", summary: "frames of 1,000 descriptors of a byte each, beside bystanders who send as much as they can",
			setup: echoPort(), play: attached(vhosttest.Options{Num: 32768, BufLen: 64}, longChains)},
		{name: "greedy-small-segments", greedy: true, exclusive: true, attacker: "guest",
			summary: "frames of 64 KiB that are cut into segments of 33 bytes, from 16 queues, beside bystanders who send as much as they can",
			setup:   smallSegments, play: cutSmall},
	}
}

// demand counts what the bystanders ask for.
type demand struct {
	wanted, moved uint64        // frames for which they looked, and those that they found
	cpu           time.Duration // time in which the loop had its core
	ended         time.Time     // time of the end of the last round
}

// note counts a round that ended now, and in which the guests found frames.
func (d *demand) note(c streamConfig, guests, frames int, now time.Time) {
	if c.paced {
		d.wanted += uint64(guests * c.rounds * pacedFrames)
	}
	d.moved += uint64(frames)
	d.ended = now
	var ts unix.Timespec
	if c.rest == 0 && unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) == nil {
		d.cpu = time.Duration(ts.Nano())
	}
}

func (s *stream) demandSoFar() demand {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.demand
}

// partMeter measures a row's part.
type partMeter struct {
	site     *site
	greedy   bool
	baseline partSample // increase before the attack
	from     partSample
	failed   error
}

// partSample has what bystanders and ports have used so far.
type partSample struct {
	demand
	wall  time.Duration            // length of the time of the increase
	ports map[string]time.Duration // worker's time by port, without uplinks
}

// beginPart measures what greedy bystanders get alone. length is the length of the attack.
func (s *site) beginPart(a *attack, length time.Duration) *partMeter {
	m := &partMeter{site: s, greedy: a.greedy}
	if a.greedy {
		m.begin()
		time.Sleep(min(length, time.Second))
		m.baseline = m.increase()
	}
	return m
}

func (m *partMeter) begin() { m.from = m.sample() }

func (m *partMeter) sample() (p partSample) {
	p.demand = m.site.stream.demandSoFar()
	if !m.greedy {
		return p
	}
	show, err := m.site.client.Show()
	if err != nil {
		m.failed = err
		return p
	}
	p.ports = workerTimes(&show)
	return p
}

// increase returns what was used since begin.
func (m *partMeter) increase() partSample {
	p := m.sample()
	p.wanted -= m.from.wanted
	p.moved -= m.from.moved
	p.cpu -= m.from.cpu
	p.wall = p.ended.Sub(m.from.ended)
	for name := range p.ports {
		p.ports[name] -= m.from.ports[name]
	}
	return p
}

// workerTimes returns the worker's time by port, without uplinks.
func workerTimes(show *api.Show) map[string]time.Duration {
	times := map[string]time.Duration{}
	for _, p := range show.Ports {
		if p.Type == "vhost-user" {
			times[p.Name] = time.Duration(p.Stats.WorkerNS)
		}
	}
	return times
}

// end writes the part to the row.
func (m *partMeter) end(r *row) {
	p := m.increase()
	if !m.greedy {
		r.Wanted = p.wanted
		r.Part = float64(p.moved) / float64(max(p.wanted, 1))
		return
	}
	if m.failed != nil {
		r.fault("part: %v", m.failed)
		return
	}
	s := fairShare(&m.baseline, &p)
	r.Part = s.part()
	r.Notes = fmt.Sprintf("the bystanders got %.2f of the frames that they asked for, and %.2f of the time of %d ports;", s.frames, s.time, s.number)
}

// share has what greedy bystanders got during an attack.
type share struct {
	frames float64 // part of the frames that they asked for
	time   float64 // part of the time of all ports while they wanted some
	number int     // number of ports that wanted time
}

// part returns what the bystanders got of the smaller of what they asked for and their fair share.
func (s *share) part() float64 { return min(max(s.frames, s.time*float64(s.number)/2), 1) }

// fairShare compares what the bystanders moved alone with what they got during an attack.
func fairShare(baseline, during *partSample) share {
	wanted := float64(baseline.moved) / max(baseline.cpu.Seconds(), 1e-9) * during.cpu.Seconds()
	s := share{frames: float64(during.moved) / max(wanted, 1), number: 2}
	sum := time.Duration(1)
	for _, t := range during.ports {
		sum += t
	}
	for name, t := range during.ports {
		if name != "a" && name != "b" && t > sum/wantingPart {
			s.number++
		}
	}
	present := during.cpu.Seconds() / max(during.wall.Seconds(), 1e-9)
	s.time = float64(during.ports["a"]+during.ports["b"]) / max(float64(sum)*present, 1)
	return s
}
