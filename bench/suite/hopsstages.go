// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"weft/api"
)

// This file measures the time of each stage of a worker's poll with a live trace.

// hopsTap matches the frames of the guest behind the tap port g.
const hopsTap = "udp,in_port=g"

// stagesOf traces frames while work runs. It returns the seconds of each stage per
// frame.
func stagesOf(r *run, sw *weft, match string, work func() error) (map[string]float64, error) {
	trace, err := r.start("trace", filepath.Join(r.bin, "weft"), "--socket", sw.socket, "--json", "trace", "--live", match, "-c", "0")
	if err != nil {
		return nil, err
	}
	time.Sleep(300 * time.Millisecond)
	if err := work(); err != nil {
		return nil, err
	}
	time.Sleep(300 * time.Millisecond)
	trace.stop()
	return addStages(trace.output())
}

// noteParts records the times of the hops and returns their sum. If total is not 0, it
// scales the times so that their sum is total.
func (r *run) noteParts(parts map[string]float64, total float64) float64 {
	sum := 0.0
	for _, part := range parts {
		sum += part
	}
	if total == 0 {
		total = sum
	}
	for hop, part := range parts {
		r.note(hop, "s", part/sum*total)
	}
	return total
}

// addStages returns the time of each stage in seconds per frame, from the output of a
// trace. The stage upcall is the wait for control.
func addStages(trace string) (map[string]float64, error) {
	type batch struct {
		worker int
		time   time.Time
	}
	seen, sums, flows, frames := map[batch]bool{}, map[string]float64{}, map[string]bool{}, 0
	scan := bufio.NewScanner(strings.NewReader(trace))
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		var c api.Captured
		if json.Unmarshal(scan.Bytes(), &c) != nil || c.Trace == nil || c.Verdict != api.VerdictSent {
			continue // skips messages and recirculated frames
		}
		flow := c.Flow[strings.Index(c.Flow, "tp_dst="):]
		if c.HeldUS > 0 {
			sums["upcall"] += c.HeldUS / 1e6
			flows[flow] = true
		}
		if b := (batch{c.Worker, c.Time}); !seen[b] {
			seen[b] = true
			frames += c.Trace.Frames
			for _, s := range c.Trace.Stages {
				sums[s.Name] += float64(s.NS) / 1e9
			}
		}
	}
	if len(flows) > 0 { // a frame that waits for control counts once
		frames = len(flows)
	}
	if frames == 0 {
		return nil, errors.New("the trace saw no frame that was sent: " + trace)
	}
	for stage := range sums {
		sums[stage] /= float64(frames)
	}
	return sums, nil
}
