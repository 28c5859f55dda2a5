// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"weft/e2e/lab"
)

// A series kills a process of the switch again and again (-kills), or upgrades the switch again and
// again (-upgrades), without attacks. An upgrade ends the control process and starts that of another
// build, as the Debian package does. Two guests, the bystanders, exchange frames without rest, so that
// all cores are busy. The checks are those of storm.go: every lost frame is counted, no contents change,
// no buffer is lost or used twice, and no process leaks.

// quantiles has the pauses in ms in which the switch forwarded no frame of the two guests. The time in
// which this program's load did not run is subtracted.
type quantiles struct {
	Number  int     `json:"number"`
	Median  float64 `json:"median_ms"`
	Most90  float64 `json:"p90_ms"`
	Most99  float64 `json:"p99_ms"`
	Longest float64 `json:"longest_ms"`
}

func quantilesOf(pauses []time.Duration) *quantiles {
	sorted := slices.Sorted(slices.Values(pauses))
	part := func(share float64) float64 { return ms(sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]) }
	return &quantiles{len(sorted), part(0.5), part(0.9), part(0.99), part(1)}
}

// youngEngine is an age of the engine process. If a younger engine dies, the control process does not
// replace it at once.
const youngEngine = 220 * time.Millisecond

// runSeries performs the kills of the option -kills, or the upgrades of the option -upgrades.
func runSeries(seed uint64) (ok bool, err error) {
	defer lab.Caught(&err)
	if !slices.Contains([]string{"engine", "control", "both"}, *victim) {
		return false, fmt.Errorf("-victim %s: expected engine, control or both", *victim)
	}
	l := lab.New(lab.Program{})
	defer l.Close()
	count, one := *kills, func(w *storming, _ int) error { return w.kill(*victim) }
	if *upgrades > 0 {
		folders, err := twoBuilds(l.Dir)
		if err != nil {
			return false, err
		}
		lab.Binaries = folders[0]
		count, one = *upgrades, func(w *storming, n int) error { return w.upgrade(folders[(n+1)%2]) }
	}
	w := newStorm(l, seed, siteConfig{workers: *workers, packed: *packed, busy: true})
	defer w.close()
	if err := w.begin(); err != nil {
		return false, err
	}
	if err := w.series(count, one); err != nil {
		w.fault("%v\n%s", err, w.log())
	}
	w.end()
	return w.r.print()
}

func (w *storming) series(count int, event func(w *storming, n int) error) error {
	begin, bare := time.Now(), watchMachine()
	var pauses []time.Duration
	for n := range count {
		time.Sleep(youngEngine + rand.N(100*time.Millisecond))
		w.r.PauseMS = max(w.r.PauseMS, ms(w.stream.longest()))
		w.stream.watch()
		if err := event(w, n); err != nil {
			return fmt.Errorf("number %d: %w", n+1, err)
		}
		if err := w.refresh(); err != nil {
			return err
		}
		pauses = append(pauses, w.pause)
		w.r.Pauses = quantilesOf(pauses)
	}
	w.r.Seconds, w.r.MachineMS = time.Since(begin).Seconds(), ms(bare.end())
	return nil
}

// upgrade ends the control process with SIGTERM, and starts the weftd in "folder". It waits until the
// new control process has replaced the engine by one of its own build.
func (w *storming) upgrade(folder string) error {
	old := w.daemon.EnginePID()
	w.daemon.Terminate()
	w.daemon.Programs = folder
	w.daemon.Start()
	w.last = 0
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		show, err := w.client.Show()
		if err == nil && show.EnginePID != 0 && show.EnginePID != old && show.EngineCommit == show.Commit {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("upgrade to %s: no engine of its build after %v (%v)", folder, patience, err)
		}
	}
	err := w.circulates()
	w.notePause("upgrade", 0)
	return err
}

// twoBuilds returns two directories with programs, between which a series of upgrades alternates. The
// option -between names them. Without it, twoBuilds builds this source tree twice, with different
// commit names.
func twoBuilds(dir string) (folders [2]string, err error) {
	if *between != "" {
		first, second, ok := strings.Cut(*between, ",")
		if !ok {
			return folders, fmt.Errorf("-between %s: expected two folders, separated by a comma", *between)
		}
		return [2]string{first, second}, nil
	}
	for i, commit := range []string{"first", "second"} {
		folders[i] = filepath.Join(dir, commit)
		if err := lab.GoBuild(folders[i], "-buildvcs=false", "-ldflags", "-X weft/internal/buildinfo.commit="+commit, "./cmd/weftd", "./cmd/weft"); err != nil {
			return folders, err
		}
	}
	return folders, nil
}
