// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"weft/bench/traffic"
	"weft/e2e/lab"
)

// The experiments below count how many system calls Weft makes for each received frame under load.
// Frames flow between two guests, into a tunnel, or between two hosts, whose uplinks are veths.

func callExperiments() []*experiment {
	var list []*experiment
	for _, e := range []struct {
		variant string
		measure func(*run) float64
	}{
		{"between guests", callsBetweenGuests},
		{"guest to tunnel", callsToTunnel},
		{"guest to guest of another host", callsAcross},
	} {
		list = append(list, &experiment{name: "replica/system calls, " + e.variant, unit: "calls/frame", smallerIsBetter: true, peers: []string{weftPeer},
			measure: func(r *run, _ string) float64 { return e.measure(r) }})
	}
	return list
}

func callsBetweenGuests(r *run) float64 {
	sw := new(weft)
	r.upCirculating(sw)
	return callsOf(r, sw)
}

func callsToTunnel(r *run) float64 {
	sw := new(weft)
	w := fillTunnel(r, sw, 64)
	calls := callsOf(r, sw)
	// The veth is slower than the guest, so the switch drops most frames.
	r.note("arrived", "frames/s", w.rate(r.length))
	return calls
}

// callsOf returns how many system calls the control process and the engine of a loaded switch make for
// each received frame.
func callsOf(r *run, sw *weft) float64 {
	s := sw.show()
	frames := func() uint64 { return sw.worker().Frames }
	return callsDuring(r, map[string]int{"control": s.PID, "engine": s.EnginePID}, frames)
}

// callsDuring counts the system calls of the processes in pids, which maps names to process ids. It
// returns the number of calls for each frame. The function frames returns the number of frames so far.
func callsDuring(r *run, pids map[string]int, frames func() uint64) float64 {
	counting := startCounting(r, pids)
	before := frames()
	time.Sleep(r.length)
	after := frames()
	counts := counting.end()
	if after == before {
		lab.Check(errors.New("the engine took no frames in"))
	}
	all := map[string]uint64{}
	for _, calls := range counts {
		for kind, n := range calls {
			all[kind] += n
		}
	}
	r.noteCalls("", all, after-before)
	r.note("frames a call", "", float64(after-before)/float64(max(all[allCalls], 1)))
	r.note("frames taken in", "frames/s", float64(after-before)/r.length.Seconds())
	return float64(all[allCalls]) / float64(after-before)
}

// callsAcross returns the system calls for each frame that flows between two fully loaded hosts.
func callsAcross(r *run) float64 {
	c := &cluster{run: r, peer: weftPeer}
	c.lay()
	socket := filepath.Join(r.dir, "bench.sock")
	bin := filepath.Join(r.bin, "weft")
	r.start("bench-server", bin, "bench", "server", "--listen", "unix:"+socket, "--raw", c.socket(1))
	eventually(5*time.Second, func() { lab.Must(os.Stat(socket)) })
	client := r.start("bench-client", bin, "bench", "client", "unix:"+socket, "--raw", c.socket(0), "--json", "-i", "0",
		"-b", "0", "-t", fmt.Sprint((r.length + 2*time.Second).Seconds()), "-O", fmt.Sprint(warmUp.Seconds()))
	time.Sleep(2 * warmUp)
	calls := callsDuring(r, c.daemons(), c.frames)
	client.wait(20 * time.Second)
	result := new(traffic.Result)
	if err := json.Unmarshal([]byte(client.output()), result); err != nil || result.Received.Frames == 0 {
		lab.Check(fmt.Errorf("the load: %w, %d frames: %s", err, result.Received.Frames, client.tail()))
	}
	r.note("arrived", "frames/s", result.ReceivedFramesPerSecond)
	return calls
}
