// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// startInPlaceOf starts the weftd in the file "image", as if it had been started from path before an
// upgrade. weftd starts its engines from path, where this function puts the program in the file "engine".
// The function does not wait until weftd answers.
func (r *running) startInPlaceOf(image, path, engine string) {
	r.t.Helper()
	own := path + ".own" // weftd finds its path by the name of its file
	r.check(exec.Command("cp", image, own).Run())
	program, err := os.Open(own)
	r.check(err)
	defer program.Close()
	r.check(os.Rename(own, path))
	r.check(os.Remove(path))
	r.check(exec.Command("cp", "--preserve=mode", engine, path).Run())
	r.cmd = exec.Command("/proc/self/fd/3", "--socket", r.socket, "--state", filepath.Join(r.dir, "state"))
	r.cmd.ExtraFiles = []*os.File{program}
	log, err := os.Create(r.log)
	r.check(err)
	defer log.Close()
	r.cmd.Stderr = log
	r.check(r.cmd.Start())
}

// The old engine continues to forward if an upgrade fails: if the next control process
// refuses its settings, or if its engines do not start. weftd reports the reason, and
// replaces the engine as soon as the program is repaired. No ping is lost.
func TestFailedUpgrade(t *testing.T) {
	r := startDaemon(t)
	a, b := r.guests()
	r.addFlow("actions=normal")
	next, path := buildCommit(t, "next"), filepath.Join(r.dir, "weftd")
	old := r.show()
	for n, g := range []*guest{a, b} { // fixed neighbours, because the frames of ARP would be misses
		g.ns.Exec("ip", "neigh", "replace", fmt.Sprint("10.0.0.", 2-n), "lladdr", fmt.Sprint("02:00:00:00:00:0", 2-n), "dev", []string{"a", "b"}[n])
	}
	steady, out := ping(a, 100)
	r.check(steady.Start())

	// The flows are known before control ends.
	r.passes(a)
	r.check(r.cmd.Process.Signal(unix.SIGTERM))
	r.ended()
	if out, err := exec.Command(next, "--cores", "4095", "--socket", r.socket, "--state", filepath.Join(r.dir, "state")).CombinedOutput(); err == nil || !strings.Contains(string(out), "4095") {
		t.Errorf("weftd with a core that is not there: %v: %s", err, out)
	}
	broken := filepath.Join(r.dir, "broken")
	r.check(os.WriteFile(broken, []byte("#!/bin/sh\necho no such luck >&2\nexit 3\n"), 0o755))
	for i, c := range []struct{ program, want string }{
		{broken, "exit status 3: no such luck"},
		{r.binary, "install both from one build"},
	} {
		if i > 0 {
			r.check(r.cmd.Process.Signal(unix.SIGTERM))
			r.ended()
		}
		r.startInPlaceOf(next, path, c.program)
		r.eventually("show says why", func() bool {
			_, err := r.client.Show()
			return err != nil && strings.Contains(err.Error(), "the next engine cannot start") && strings.Contains(err.Error(), c.want)
		})
		if err := unix.Kill(old.EnginePID, 0); err != nil {
			t.Fatalf("%s: the old engine: %v", c.program, err)
		}
	}
	r.check(exec.Command("cp", next, path+".mended").Run())
	r.check(os.Rename(path+".mended", path))
	r.eventually("the engine is replaced", func() bool {
		s, err := r.client.Show()
		return err == nil && s.EnginePID != old.EnginePID && s.Commit == "next" && s.EngineCommit == "next"
	})
	_ = steady.Wait() // its output says what it misses
	if answered(out, 100) != 100 {
		t.Errorf("ping over the upgrades:\n%s", out)
	}
}
