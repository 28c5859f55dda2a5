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
	"weft/e2e/lab"
)

// The functions below measure the time of each stage of a worker's poll with a live trace.

// hopsTap matches the frames of the guest behind the tap port g.
const hopsTap = "udp,in_port=g"

// stagesOf traces frames while work runs. It returns how many seconds each stage takes for a frame.
func stagesOf(r *run, sw *weft, match string, work func()) map[string]float64 {
	trace := r.start("trace", filepath.Join(r.bin, "weft"), "--socket", sw.socket, "--json", "trace", "--live", match, "-c", "0")
	time.Sleep(300 * time.Millisecond)
	work()
	time.Sleep(300 * time.Millisecond)
	trace.stop()
	return addStages(trace.output())
}

// noteParts notes the times of the hops and returns their sum. If total is not 0, noteParts scales the
// times so that their sum is total.
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

// addStages reads the output of a trace, and returns how many seconds each stage takes for a frame. The
// stage upcall is the time in which a frame waits for the control process.
func addStages(trace string) map[string]float64 {
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
			continue // a message, or a frame that is recirculated and not sent yet
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
	if len(flows) > 0 { // the trace shows a frame again after its wait for the control process, so count flows
		frames = len(flows)
	}
	if frames == 0 {
		lab.Check(errors.New("the trace saw no frame that was sent: " + trace))
	}
	for stage := range sums {
		sums[stage] /= float64(frames)
	}
	return sums
}
