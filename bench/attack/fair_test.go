// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"testing"
	"time"
)

// The part of greedy bystanders is 1 if they get all that they ask for, or their equal share of the
// time.
func TestFairShare(t *testing.T) {
	const second = time.Second
	baseline := &partSample{demand: demand{cpu: second, moved: 1000}}
	for _, v := range []struct {
		name   string
		cpu    time.Duration // CPU time of the loop, in two seconds
		moved  uint64
		ports  map[string]time.Duration
		number int
		part   float64
	}{
		{"all they ask for", 2 * second, 2000, map[string]time.Duration{"a": second / 10, "b": second / 10, "x": second}, 3, 1},
		{"half of it, and less time", 2 * second, 1000, map[string]time.Duration{"a": second / 10, "b": second / 10, "x": second}, 3, 0.5},
		{"half of it, and their loop had its core half of the time", second, 1000, map[string]time.Duration{"a": second / 10, "b": second / 10, "x": second}, 3, 1},
		{"a third each of three ports", 2 * second, 200, map[string]time.Duration{"a": second, "b": second, "x": second, "y": second / 100}, 3, 0.997},
		{"half of two fifths each of two of five ports", 2 * second, 200, map[string]time.Duration{"a": second, "b": second, "x": 3 * second, "y": 3 * second, "z": 2 * second}, 5, 0.5},
		{"a third of the time, which they wanted two thirds of the time", 4 * second / 3, 100, map[string]time.Duration{"a": second, "b": second, "x": 4 * second}, 3, 0.75},
		{"nothing", 2 * second, 0, map[string]time.Duration{"x": second}, 3, 0},
	} {
		s := fairShare(baseline, &partSample{demand: demand{cpu: v.cpu, moved: v.moved}, wall: 2 * second, ports: v.ports})
		if s.number != v.number || math.Abs(s.part()-v.part) > 1e-3 {
			t.Errorf("%s: %d ports, part %.3f; want %d, %.3f (%+v)", v.name, s.number, s.part(), v.number, v.part, s)
		}
	}
}

// In each round, a paced bystander asks for the same number of frames. For a greedy one, no number is
// counted.
func TestDemand(t *testing.T) {
	var paced, greedy demand
	for _, frames := range []int{2 * pacedRounds * pacedFrames, 0, 3} {
		paced.note(siteConfig{paced: true}.pace(), 2, frames, time.Now())
		greedy.note(siteConfig{greedy: true}.pace(), 2, frames, time.Now())
	}
	if want := uint64(2 * pacedRounds * pacedFrames); paced.wanted != 3*want || paced.moved != want+3 || greedy.wanted != 0 || greedy.cpu == 0 {
		t.Errorf("paced %+v, greedy %+v", paced, greedy)
	}
}
