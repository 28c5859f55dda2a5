// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A rehearsal starts workers while another engine serves, and does not disturb that engine.
func TestRehearse(t *testing.T) {
	dir := t.TempDir()
	c := spawnEngine(t, dir)
	s, _ := startEngine(t, c, 1)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := Rehearse(exe, dir, s); err != nil {
		t.Error(err)
	}
	again, err := Connect(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if kept, err := again.Recall(); err != nil || len(kept) != 1 || again.PID() != c.PID() {
		t.Errorf("engine %d, was %d: %+v, %v", again.PID(), c.PID(), kept, err)
	}
	if sockets, _ := filepath.Glob(filepath.Join(dir, "*.sock")); len(sockets) != 1 {
		t.Errorf("sockets %v, want the serving engine's", sockets)
	}
}

// The error of a rehearsal says why the program cannot start.
func TestRehearseFails(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	before := spawnTimeout
	defer func() { spawnTimeout = before }()
	for _, c := range []struct {
		name, program string // a script; "": this test's program
		core          int
		timeout       time.Duration
		want          string
	}{
		{"missing", "missing", 0, before, "no such file or directory"},
		{"no program", "another format\n", 0, before, "exec format error"},
		{"ends at its start", "#!/bin/sh\necho first >&2\necho the reason >&2\nexit 3\n", 0, before, "exit status 3: the reason"},
		{"hangs at its start", "#!/bin/sh\nexec sleep 1000\n", 0, 100 * time.Millisecond, "did not answer within 100ms"},
		{"refused settings", "", 1023, before, "start of the workers: engine: start: worker 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			exe, dir := own, t.TempDir()
			if c.program != "" {
				exe = filepath.Join(dir, "program")
			}
			if c.program != "" && c.program != "missing" {
				if err := os.WriteFile(exe, []byte(c.program), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			spawnTimeout = c.timeout
			s := Start{Sizes: testSizes, Cores: []int{c.core}}
			if c.core == 0 {
				s.Cores = allowedCores(t)
			}
			if err := Rehearse(exe, dir, s); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
		})
	}
}

// A spare engine reports when it waits, and can take over afterwards.
func TestSpareReportsThatItWaits(t *testing.T) {
	c, s := waitingSpare(t, t.TempDir())
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	if next, err := s.Engage(); err != nil || next.PID() == c.PID() {
		t.Errorf("after the wait: %v", err)
	}
}

// lastLine keeps the last line that was written, up to maxLine bytes of it.
func TestLastLine(t *testing.T) {
	var l lastLine
	for _, text := range []string{"first\nsec", "ond\n", ""} {
		_, _ = l.Write([]byte(text))
	}
	if string(l.line) != "second" {
		t.Errorf("%q", l.line)
	}
	_, _ = l.Write([]byte(strings.Repeat("x", 2*maxLine)))
	if len(l.line) != maxLine {
		t.Errorf("%d bytes", len(l.line))
	}
}
