// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weft/api"
	"weft/datapath"
)

// weft is a running weftd and its API client.
type weft struct {
	ctx                  context.Context
	bin                  string
	dir                  string
	control              *exec.Cmd
	log                  *os.File
	client               *api.Client
	engine               int               // process id of the engine
	worker               int               // core of the first worker
	gaps                 []uint64          // histogram of the times between two polls of the first worker
	drops                map[string]uint64 // number of dropped frames by reason
	commit, engineCommit string            // of the builds of control and engine
	seen                 map[string]uint64 // drop counters at the last refresh, by port and reason
}

func newSwitch(ctx context.Context, dir, bin string) (*weft, error) {
	s := &weft{ctx: ctx, bin: bin, dir: dir, drops: map[string]uint64{}, seen: map[string]uint64{}}
	if bin == "" {
		s.bin = dir
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", dir, "./cmd/weftd", "./cmd/weft").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build, from the root of the module: %w: %s", err, out)
		}
	}
	var err error
	if s.client, err = api.NewClient(filepath.Join(dir, "socket")); err != nil {
		return nil, err
	}
	if s.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	return s, s.start()
}

func (s *weft) start() error {
	s.control = exec.Command(filepath.Join(s.bin, "weftd"), "--socket", s.dir+"/socket", "--state", s.dir+"/state")
	s.control.Stdout, s.control.Stderr = s.log, s.log
	if err := s.control.Start(); err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := s.refresh()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

func (s *weft) run(args ...string) ([]byte, error) {
	cmd := exec.CommandContext(s.ctx, filepath.Join(s.bin, "weft"), append([]string{"--socket", s.dir + "/socket"}, args...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("weft %v: %w: %s", args, err, bytes.TrimSpace(errs.Bytes()))
	}
	return out, nil
}

func (s *weft) command(args ...string) error {
	_, err := s.run(args...)
	return err
}

func (s *weft) refresh() error {
	about, err := s.client.Show()
	if err != nil {
		return err
	}
	if about.EnginePID == 0 || len(about.Workers) == 0 {
		return errors.New("the switch names no engine")
	}
	s.engine, s.worker, s.gaps = about.EnginePID, about.Workers[0].Core, about.Workers[0].PassGaps
	s.commit, s.engineCommit = about.Commit, about.EngineCommit
	for _, p := range about.Ports {
		for reason, n := range p.Stats.RxDrops {
			key := p.Name + " " + reason
			if n > s.seen[key] {
				s.drops[reason] += n - s.seen[key]
			}
			s.seen[key] = n
		}
	}
	return nil
}

func (s *weft) kill(processes string) error {
	if processes != "control" {
		if err := unix.Kill(s.engine, unix.SIGKILL); err != nil {
			return fmt.Errorf("kill the engine, %d: %w", s.engine, err)
		}
	}
	if processes == "engine" {
		return nil
	}
	if err := s.control.Process.Kill(); err != nil {
		return err
	}
	_ = s.control.Wait()
	if processes == "both" { // when both processes are killed, the drop counters are lost
		clear(s.seen)
	}
	return s.start()
}

// stall returns an upper bound of the longest time between two polls of the worker. old
// and new are histograms of these times. For a new engine, old is empty.
func stall(old, new []uint64) time.Duration {
	for i := len(new) - 1; i >= 0; i-- {
		if i >= len(old) && new[i] > 0 || i < len(old) && new[i] != old[i] {
			return time.Duration(datapath.GapLimit(i))
		}
	}
	return 0
}

func (s *weft) stop() {
	if s.control.Process.Signal(unix.SIGINT) != nil && s.engine != 0 { // control has ended, and has left the engine
		_ = unix.Kill(s.engine, unix.SIGKILL)
	}
	_ = s.control.Wait()
	s.log.Close()
}

func (s *weft) replaced() (duration, workers time.Duration) {
	text := s.output()
	at := strings.LastIndex(text, `msg="engine replaced"`)
	if at < 0 {
		return 0, 0
	}
	var pid, ms, workersMS int
	_, _ = fmt.Sscanf(text[at:], `msg="engine replaced" pid=%d ms=%d workers_ms=%d`, &pid, &ms, &workersMS)
	return time.Duration(ms) * time.Millisecond, time.Duration(workersMS) * time.Millisecond
}

func (s *weft) output() string {
	text, _ := os.ReadFile(s.log.Name())
	return string(text[max(0, len(text)-4000):])
}
