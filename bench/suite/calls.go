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
)

// The experiments below count how many system calls Weft makes for each received frame under load.
// Frames flow between two guests, into a tunnel, or between two hosts, whose uplinks are veths.

func callExperiments() []*experiment {
	var list []*experiment
	for _, e := range []struct {
		variant string
		measure func(*run) (float64, error)
	}{
		{"between guests", callsBetweenGuests},
		{"guest to tunnel", callsToTunnel},
		{"guest to guest of another host", callsAcross},
	} {
		list = append(list, &experiment{name: "replica/system calls, " + e.variant, unit: "calls/frame", smallerIsBetter: true, peers: []string{weftPeer},
			measure: func(r *run, _ string) (float64, error) { return e.measure(r) }})
	}
	return list
}

func callsBetweenGuests(r *run) (float64, error) {
	sw := new(weft)
	if err := r.upCirculating(sw); err != nil {
		return 0, err
	}
	return callsOf(r, sw)
}

func callsToTunnel(r *run) (float64, error) {
	sw := new(weft)
	w, err := fillTunnel(r, sw, 64)
	if err != nil {
		return 0, err
	}
	calls, err := callsOf(r, sw)
	if err != nil {
		return 0, err
	}
	// The veth is slower than the guest, so the switch drops most frames.
	arrived, err := w.rate(r.length)
	r.note("arrived", "frames/s", arrived)
	return calls, err
}

// callsOf returns the system calls that control and engine of a loaded switch make for each received
// frame.
func callsOf(r *run, sw *weft) (float64, error) {
	s, err := sw.show()
	if err != nil {
		return 0, err
	}
	frames := func() (uint64, error) {
		s, err := sw.show()
		if err != nil {
			return 0, err
		}
		return s.Workers[0].Frames, nil
	}
	return callsDuring(r, map[string]int{"control": s.PID, "engine": s.EnginePID}, frames)
}

// callsDuring counts the system calls of the processes in pids, which maps names to process ids. It
// returns the number of calls for each frame. The function frames returns the number of frames so far.
func callsDuring(r *run, pids map[string]int, frames func() (uint64, error)) (float64, error) {
	counting, err := startCounting(r, pids)
	if err != nil {
		return 0, err
	}
	before, err := frames()
	if err != nil {
		return 0, err
	}
	time.Sleep(r.length)
	after, err := frames()
	counts, endErr := counting.end()
	if err := errors.Join(err, endErr); err != nil {
		return 0, err
	}
	if after == before {
		return 0, errors.New("the engine took no frames in")
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
	return float64(all[allCalls]) / float64(after-before), nil
}

// callsAcross returns the system calls for each frame that flows between two fully loaded hosts.
func callsAcross(r *run) (float64, error) {
	c := &cluster{run: r, peer: weftPeer}
	if err := c.lay(); err != nil {
		return 0, err
	}
	socket := filepath.Join(r.dir, "bench.sock")
	bin := filepath.Join(r.bin, "weft")
	_, err := r.start("bench-server", bin, "bench", "server", "--listen", "unix:"+socket, "--raw", c.socket(1))
	if err != nil {
		return 0, err
	}
	if err := eventually(5*time.Second, func() error { _, err := os.Stat(socket); return err }); err != nil {
		return 0, err
	}
	client, err := r.start("bench-client", bin, "bench", "client", "unix:"+socket, "--raw", c.socket(0), "--json", "-i", "0",
		"-b", "0", "-t", fmt.Sprint((r.length + 2*time.Second).Seconds()), "-O", fmt.Sprint(warmUp.Seconds()))
	if err != nil {
		return 0, err
	}
	time.Sleep(2 * warmUp)
	calls, err := callsDuring(r, c.daemons(), c.frames)
	if err != nil {
		return 0, err
	}
	client.wait(20 * time.Second)
	result := new(traffic.Result)
	if err := json.Unmarshal([]byte(client.output()), result); err != nil || result.Received.Frames == 0 {
		return 0, fmt.Errorf("the load: %w, %d frames: %s", err, result.Received.Frames, client.tail())
	}
	r.note("arrived", "frames/s", result.ReceivedFramesPerSecond)
	return calls, nil
}
