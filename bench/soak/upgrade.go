// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weft/bench/stream"
)

// This file upgrades the switch repeatedly between two builds, as the package's upgrade
// does: SIGTERM ends control, control of the other build takes over the engine, and then
// replaces it by an engine of its own build.

// builds are the commits that the two builds report, or the names of their folders with
// -between.
var builds = [2]string{"soak-first", "soak-second"}

// upgrade is the effect of one upgrade.
type upgrade struct {
	pause    time.Duration // longest gap between frames, from SIGTERM to the next upgrade
	replaced time.Duration // time from the halt of the old workers until the new engine had all ports, from the log
	net      time.Duration // longest gap, less the time in which the load generator did not run
	own      time.Duration // longest time in which the load generator itself did not run
	duration time.Duration // time from SIGTERM until the new control answered and named its engine
	lost     int64         // number of lost frames, including dropped ones
	repeated uint64        // number of frames that arrived twice
}

func (u *upgrade) String() string {
	return fmt.Sprintf("pause %6.2f ms, engine replaced in %.0f; took %.0f; the load did not run for up to %.2f; %d frames lost, %d again",
		ms(u.pause), ms(u.replaced), ms(u.duration), ms(u.own), u.lost, u.repeated)
}

// buildBoth builds weftd twice, and weft, in folders of dir.
func buildBoth(ctx context.Context, dir string) (folders [2]string, err error) {
	for i, commit := range builds {
		folders[i] = filepath.Join(dir, commit)
		cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags", "-X weft/internal/buildinfo.commit="+commit,
			"-o", folders[i]+"/", "./cmd/weftd", "./cmd/weft")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return folders, fmt.Errorf("go build, from the root of the module: %w: %s", err, out)
		}
	}
	return folders, nil
}

// chooseBuilds returns the folders of the two builds.
func chooseBuilds(ctx context.Context, dir string) (folders [2]string, err error) {
	if *between == "" {
		return buildBoth(ctx, dir)
	}
	first, second, ok := strings.Cut(*between, ",")
	if !ok {
		return folders, fmt.Errorf("-between %s: expected two folders, separated by a comma", *between)
	}
	builds = [2]string{filepath.Base(first), filepath.Base(second)}
	return [2]string{first, second}, nil
}

// runUpgrades measures -upgrades upgrades.
func runUpgrades(ctx context.Context) (ok bool, err error) {
	dir, err := os.MkdirTemp("", "weft-soak")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	folders, err := chooseBuilds(ctx, dir)
	if err != nil {
		return false, err
	}
	return onSwitch(ctx, dir, folders[0], func(s *weft, c *connection) (bool, error) {
		probes, err := newProbes(s)
		if err != nil {
			return false, err
		}
		defer probes.close()
		u := &upgrades{switched: s, folders: folders, connection: c, probes: probes, begun: time.Now()}
		return u.run(ctx)
	})
}

// upgrades has the state of a series of upgrades.
type upgrades struct {
	switched   *weft
	folders    [2]string // with the programs of the two builds
	connection *connection
	probes     *probes
	stream     *stream.Stream
	begun      time.Time
	results    []upgrade
}

func (u *upgrades) run(ctx context.Context) (ok bool, err error) {
	s := u.switched
	pin, err := u.connection.begin(s)
	if err != nil {
		return false, err
	}
	u.stream = stream.Start(u.connection.load, stream.Config{Core: pin})
	err = flows(s, u.stream)
	if err == nil {
		err = u.probes.start()
	}
	if err == nil {
		time.Sleep(time.Second) // time for the new switch to start a spare engine
		u.stream.Begin()
		if err = s.refresh(); err == nil {
			clear(s.drops)
			err = u.measure(ctx)
		}
	}
	time.Sleep(300 * time.Millisecond)
	counted, probed := u.stream.End(), u.probes.end()
	if err == nil {
		err = s.refresh()
	}
	if err != nil {
		return false, fmt.Errorf("%w\n%v\n%s", err, probed, s.output())
	}
	if *verbose {
		fmt.Fprintln(os.Stderr, s.output())
	}
	r := upgradeReport(u.results, counted, probed, s.drops)
	r.Took, r.Load = time.Since(u.begun).Seconds(), loadAverage()
	return r.print(*asJSON)
}

func (u *upgrades) measure(ctx context.Context) error {
	for n := range *upgradeCount {
		if ctx.Err() != nil {
			break
		}
		next := (n + 1) % len(builds)
		one, err := u.measureOne(next)
		if err != nil {
			return fmt.Errorf("upgrade %d, to %s: %w", n+1, builds[next], err)
		}
		if *verbose {
			fmt.Fprintf(os.Stderr, "%5d to %-12s %v\n", n+1, builds[next], &one)
		}
		u.results = append(u.results, one)
	}
	return nil
}

// measureOne upgrades to the build with number next.
func (u *upgrades) measureOne(next int) (upgrade, error) {
	s, g := u.switched, u.stream
	if err := s.refresh(); err != nil {
		return upgrade{}, err
	}
	old := s.engine
	base := g.Now()
	g.Watch()
	begun := time.Now()
	if err := s.handOver(u.folders[next]); err != nil {
		return upgrade{}, err
	}
	one := upgrade{duration: time.Since(begun)}
	if *between != "" && s.engine != old {
		s.commit, s.engineCommit = builds[next], builds[next] // versions before 0.2 report none
	}
	if s.engine == old || s.commit != builds[next] || s.engineCommit != builds[next] {
		return one, fmt.Errorf("engine %d of build %s, control of %s; want another engine than %d, all of %s",
			s.engine, s.engineCommit, s.commit, old, builds[next])
	}
	time.Sleep(*minimum + rand.N(*spread))
	if err := s.refresh(); err != nil {
		return one, err
	}
	one.pause, _, one.own, _ = g.Pause(time.Now())
	one.replaced = s.startedIn()
	one.net = g.Longest()
	t := g.Now()
	one.repeated = t.Repeated - base.Repeated
	one.lost = t.Lost - base.Lost + int64(one.repeated)
	return one, nil
}

// handOver ends control as systemd does, and starts control of the build in folder bin.
func (s *weft) handOver(bin string) error {
	if err := s.control.Process.Signal(unix.SIGTERM); err != nil {
		return err
	}
	if err := s.control.Wait(); err != nil {
		return fmt.Errorf("SIGTERM: %w", err)
	}
	s.bin = bin
	return s.start()
}

// startedIn returns the time that the last replacement of the engine took, from control's
// log.
func (s *weft) startedIn() time.Duration {
	text := s.output()
	line, _, _ := strings.Cut(text[max(strings.LastIndex(text, `msg="engine started"`), 0):], "\n")
	_, word, _ := strings.Cut(line, " ms=")
	n, _ := strconv.Atoi(word) // 0 for a version that does not log it
	return time.Duration(n) * time.Millisecond
}

// quantiles are the columns of a row.
var quantiles = []float64{0.5, 0.9, 0.99, 1}

func quantilesOf(results []upgrade, value func(*upgrade) time.Duration) []float64 {
	sorted := make([]float64, len(results))
	for i := range results {
		sorted[i] = ms(value(&results[i]))
	}
	slices.Sort(sorted)
	row := make([]float64, len(quantiles))
	for i, q := range quantiles {
		if len(sorted) > 0 {
			row[i] = sorted[index(len(sorted), q)]
		}
	}
	return row
}
