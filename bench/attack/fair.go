// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"weft/api"
	"weft/vhost/vhosttest"
)

// This file measures how well the switch serves two guests, the bystanders, while others attack it. The
// bystanders exchange frames all the time. The result is row.Part, from 0 to 1. It is 1 if the
// bystanders got all that they asked for, or their fair share of the worker's time.
//
// In most attacks, the bystanders ask for much less than their fair share. In each round of the loop
// that moves their frames, each takes up to pacedRounds*pacedFrames frames from its ring and sends them
// on. Part is the number of frames that they took, divided by the number that they were ready to take.
// While the loop has no core, they ask for nothing. Each bystander has pacedInFlight frames in flight,
// so a delay of up to eight rounds (1.3 ms) does not lower Part.
//
// In the attacks of fairAttacks, the bystanders are greedy: they always have frames to send. Part is
// then the larger of two quotients, but at most 1:
//
//   - The frames that they got, divided by the frames that they asked for. They ask for the rate that
//     they had before the attack, in frames per second of the loop's CPU time.
//   - The worker's time that they got, divided by their fair share. If n ports compete for the worker,
//     the share is 2/n of the time that the worker spends on vhost-user ports (worker_ns of the API).
//     While the loop has no core, the other ports may use all of this time, so only the time in which
//     the loop had its core counts.

const (
	pacedInFlight  = 64  // frames in flight of each paced bystander
	pacedFrames    = 2   // most frames that a paced bystander takes in one step
	pacedRounds    = 4   // steps of the loop between two sleeps
	greedyInFlight = 128 // frames in flight of each greedy bystander
	// wantingPart decides which ports compete for the worker with the two guests that do not attack:
	// those that take more than 1/wantingPart of the time that the worker spends on vhost-user ports.
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

// demand counts the frames that the two guests which do not attack asked for, and the frames that they
// got.
type demand struct {
	wanted, moved uint64        // frames that they were ready to take, and frames that they took
	cpu           time.Duration // CPU time of the loop, for greedy bystanders
	ended         time.Time     // end of the last round
}

// note counts one round of the loop that moves the guests' frames. "frames" is the number of frames
// that the guests took in the round, and "now" is the end of the round.
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

// partMeter measures row.Part during one attack: how well the switch serves the guests that do not
// attack.
type partMeter struct {
	site     *site
	greedy   bool
	baseline partSample // what the bystanders got alone, before the attack
	from     partSample
	failed   error
}

// partSample says how many frames the two guests which do not attack got, and how long the worker
// served each port. The numbers count from the start or from another sample.
type partSample struct {
	demand
	wall  time.Duration            // length of the measured time
	ports map[string]time.Duration // worker's time for each port, without uplinks
}

// beginPart begins the measurement of row.Part. For greedy bystanders, it first measures for at most a
// second how many frames they get without an attack. "length" is the length of the attack.
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

// increase returns how much the numbers of a sample have grown since the last call of begin.
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

// workerTimes returns the worker's time for each vhost-user port.
func workerTimes(show *api.Show) map[string]time.Duration {
	times := map[string]time.Duration{}
	for _, p := range show.Ports {
		if p.Type == "vhost-user" {
			times[p.Name] = time.Duration(p.Stats.WorkerNS)
		}
	}
	return times
}

// end computes row.Part and stores it in the row.
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

// share has the fractions of frames and of time that greedy bystanders got during an attack.
type share struct {
	frames float64 // part of the frames that they asked for
	time   float64 // part of the ports' time, while the loop had its core
	number int     // number of ports that wanted time
}

// part returns row.Part of greedy bystanders: the fraction of the frames that they asked for or of
// their fair share of the time, whichever is larger, but at most 1.
func (s *share) part() float64 { return min(max(s.frames, s.time*float64(s.number)/2), 1) }

// fairShare computes the fractions from two samples: "baseline" without the attack, and "during" with
// it.
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
