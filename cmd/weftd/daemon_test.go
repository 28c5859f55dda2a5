// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/api"
	"weft/internal/buildinfo"
	"weft/internal/testnet"
)

// These tests run the built daemon with two taps, each in its own network namespace.
// Package e2e tests larger set-ups.

// patience is the time after which a waiting test fails.
const patience = 60 * time.Second

type running struct {
	t      *testing.T
	dir    string
	binary string
	socket string
	client *api.Client
	cmd    *exec.Cmd
	log    string // log file of the daemon and the engine
}

// TestMain removes the program that the tests have built.
func TestMain(m *testing.M) {
	code := m.Run()
	if builtDir != "" {
		os.RemoveAll(builtDir)
	}
	os.Exit(code)
}

// builtDir has the program that built builds once for all tests; "": not built.
var builtDir string

var built = sync.OnceValues(func() (binary string, err error) {
	if builtDir, err = os.MkdirTemp("", "weftd-test"); err != nil {
		return "", err
	}
	binary = filepath.Join(builtDir, "weftd")
	return binary, goBuild(binary, "")
})

// goBuild builds a weftd that reports the given commit.
func goBuild(binary, commit string) error {
	cmd := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-X weft/internal/buildinfo.commit="+commit, "-o", binary, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// build returns the path of a weftd that the test may rename.
func build(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes taps and network namespaces")
	}
	shared, err := built()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "weftd")
	if err := os.Link(shared, binary); err != nil {
		t.Fatal(err)
	}
	return binary
}

// buildCommit builds a weftd that reports the given commit.
func buildCommit(t *testing.T, commit string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "weftd")
	if err := goBuild(binary, commit); err != nil {
		t.Fatal(err)
	}
	return binary
}

func startDaemon(t *testing.T) *running {
	t.Helper()
	r := &running{t: t, binary: build(t), dir: t.TempDir()}
	r.socket = filepath.Join(r.dir, "s")
	var err error
	if r.client, err = api.NewClient(r.socket); err != nil {
		t.Fatal(err)
	}
	r.start()
	t.Cleanup(r.stop)
	return r
}

func (r *running) start() {
	r.t.Helper()
	r.log = filepath.Join(r.dir, "log")
	log, err := os.Create(r.log)
	if err != nil {
		r.t.Fatal(err)
	}
	defer log.Close()
	r.cmd = exec.Command(r.binary, "--socket", r.socket, "--state", filepath.Join(r.dir, "state"), "--name", "sw0")
	r.cmd.Stderr = log
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.eventually("the daemon answers", func() bool { _, err := r.client.Show(); return err == nil })
}

func (r *running) eventually(name string, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("does not come: %s\n%s", name, r.output())
		}
	}
}

func (r *running) output() string {
	text, _ := os.ReadFile(r.log)
	return string(text)
}

// stop ends the daemon and its engine.
func (r *running) stop() {
	show, err := r.client.Show()
	_ = r.cmd.Process.Signal(unix.SIGINT)
	r.ended()
	if err == nil && unix.Kill(show.EnginePID, 0) == nil {
		r.t.Errorf("the engine %d still runs", show.EnginePID)
	}
}

// ended waits for the end of the daemon.
func (r *running) ended() {
	r.t.Helper()
	late := time.AfterFunc(patience, func() { _ = r.cmd.Process.Signal(unix.SIGQUIT) }) // SIGQUIT prints all stacks
	defer late.Stop()
	if werr := r.cmd.Wait(); werr != nil {
		r.t.Errorf("the daemon ended badly: %v\n%s", werr, r.output())
	}
	if _, serr := os.Stat(r.socket); serr == nil {
		r.t.Error("the socket is still there")
	}
}

func (r *running) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("%v\n%s", err, r.output())
	}
}

func (r *running) show() api.Show {
	r.t.Helper()
	s, err := r.client.Show()
	r.check(err)
	return s
}

// killEngine kills the engine and waits for another one, the daemon's replacement number n. Control refuses
// requests meanwhile if the replacement takes more than a second.
func (r *running) killEngine(pid int, n uint64) {
	r.t.Helper()
	r.check(unix.Kill(pid, unix.SIGKILL))
	r.eventually("another engine", func() bool {
		s, err := r.client.Show()
		return err == nil && s.EnginePID != 0 && s.EnginePID != pid && s.Restarts == n
	})
}

func (r *running) addFlow(text string) {
	r.t.Helper()
	_, err := r.client.ChangeFlows(api.ChangeFlows{Op: "add", Text: text})
	r.check(err)
}

func (r *running) count(match string) uint64 {
	r.t.Helper()
	flows, err := r.client.Flows(match)
	r.check(err)
	if len(flows) != 1 {
		r.t.Fatalf("%d flows of %s", len(flows), match)
	}
	return flows[0].Packets
}

// guest is the other end of a tap.
type guest struct {
	ns   *testnet.Namespace
	sock int
}

func (r *running) guests() (a, b *guest) {
	r.t.Helper()
	make := func(name string, n int) *guest {
		g := &guest{ns: testnet.New(r.t)}
		_, err := r.client.AddPort(name, []string{"type=tap", "netns=" + g.ns.Name, fmt.Sprint("mac=02:00:00:00:00:0", n)})
		r.check(err)
		g.ns.Exec("ip", "addr", "add", fmt.Sprintf("10.0.0.%d/24", n), "dev", name)
		g.ns.Do(func() {
			dev, err := net.InterfaceByName(name)
			r.check(err)
			g.sock, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			r.check(err)
			r.check(unix.Bind(g.sock, &unix.SockaddrLinklayer{Ifindex: dev.Index}))
		})
		r.t.Cleanup(func() { unix.Close(g.sock) })
		return g
	}
	return make("a", 1), make("b", 2)
}

func (g *guest) send(t *testing.T, n int) {
	t.Helper()
	frame := append([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5}, make([]byte, 86)...)
	for i := range n {
		if _, err := unix.Write(g.sock, frame); err != nil {
			t.Fatal(err)
		}
		if i%64 == 63 {
			time.Sleep(time.Millisecond) // the tap's queue holds 1000 frames
		}
	}
}

// ping returns a command that sends count pings, and its output. While answers are late,
// it sends further ones, for at most 30 s.
func ping(g *guest, count int) (*exec.Cmd, *bytes.Buffer) {
	out := &bytes.Buffer{}
	cmd := g.ns.Command("ping", "-n", "-i", "0.05", "-w", "30", "-c", fmt.Sprint(count), "10.0.0.2")
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// answered returns how many of the first count pings were answered.
func answered(out *bytes.Buffer, count int) (n int) {
	for i := 1; i <= count; i++ {
		if bytes.Contains(out.Bytes(), fmt.Appendf(nil, " icmp_seq=%d ttl=", i)) {
			n++
		}
	}
	return n
}

// passes waits until a ping is answered.
func (r *running) passes(g *guest) {
	r.t.Helper()
	r.eventually("a ping passes", func() bool {
		return g.ns.Command("ping", "-n", "-q", "-W", "1", "-c", "1", "10.0.0.2").Run() == nil
	})
}

// Counters stay exact after control or the engine is killed. Known flows keep
// forwarding while control is dead.
func TestTapsThroughKills(t *testing.T) {
	r := startDaemon(t)
	a, _ := r.guests()
	r.addFlow("priority=10,actions=normal")
	r.addFlow("priority=20,dl_type=0x88b5,actions=normal")
	r.passes(a)

	a.send(t, 500)
	r.eventually("500 frames are counted", func() bool { return r.count("dl_type=0x88b5") == 500 })

	before := r.show()
	steady, out := ping(a, 40)
	r.check(steady.Start())
	r.check(r.cmd.Process.Kill())
	_ = r.cmd.Wait()
	a.send(t, 250) // control is dead
	r.start()
	after := r.show()
	if after.EnginePID != before.EnginePID || after.PID == before.PID {
		t.Errorf("processes %d, engine %d, were %d, engine %d", after.PID, after.EnginePID, before.PID, before.EnginePID)
	}
	if n := r.count("dl_type=0x88b5"); n != 750 {
		r.eventually("750 frames are counted", func() bool { return r.count("dl_type=0x88b5") == 750 })
	}
	_ = steady.Wait() // its output says what it misses
	if answered(out, 40) != 40 {
		t.Errorf("ping over the death of control:\n%s", out)
	}

	r.killEngine(after.EnginePID, 1)
	a.send(t, 250)
	r.eventually("1000 frames are counted", func() bool { return r.count("dl_type=0x88b5") == 1000 })
	r.passes(a)
	r.inSandbox(r.show().EnginePID)
	for _, p := range r.show().Ports {
		if p.State != "up" {
			t.Errorf("port %s: %s %s", p.Name, p.State, p.Detail)
		}
	}
}

// inSandbox checks that no thread of the engine has a capability, and that a seccomp filter limits the
// system calls of each. Package engine tests the rest of the sandbox.
func (r *running) inSandbox(pid int) {
	r.t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		r.t.Fatalf("threads of the engine %d: %v, %v", pid, threads, err)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err == nil && (!strings.Contains(string(text), "\nSeccomp:\t2\n") || !strings.Contains(string(text), "\nCapEff:\t0000000000000000\n")) {
			r.t.Errorf("%s:\n%s", path, text)
		}
	}
}

// Frames pass while SIGTERM ends the daemon and until the next daemon takes over.
// Devices keep their addresses, and counters stay exact. A shutdown ends the engine and
// removes the devices.
func TestStopIsNoOutage(t *testing.T) {
	r := startDaemon(t)
	a, b := r.guests()
	r.addFlow("priority=10,actions=normal")
	r.addFlow("priority=20,dl_type=0x88b5,actions=normal")
	r.passes(a)
	a.send(t, 100)
	r.eventually("100 frames are counted", func() bool { return r.count("dl_type=0x88b5") == 100 })

	before := r.show()
	own := buildinfo.Own()
	if before.Version != own.Version || before.EngineVersion != own.Version || before.Commit == "" || before.EngineCommit != before.Commit {
		t.Errorf("builds of control and engine: %+v", before)
	}
	steady, out := ping(a, 60)
	r.check(steady.Start())
	for n := uint64(200); n <= 300; n += 100 {
		r.check(r.cmd.Process.Signal(unix.SIGTERM))
		r.ended()
		a.send(t, 100) // no control process runs
		r.start()
		after := r.show()
		if after.EnginePID != before.EnginePID || after.PID == before.PID {
			t.Errorf("processes %d, engine %d, were %d, engine %d", after.PID, after.EnginePID, before.PID, before.EnginePID)
		}
		r.eventually("the frames are counted", func() bool { return r.count("dl_type=0x88b5") == n })
	}
	_ = steady.Wait() // its output says what it misses
	if answered(out, 60) != 60 {
		t.Errorf("ping over two restarts:\n%s", out)
	}

	engine := r.show().EnginePID
	ending, err := r.client.ShutDown()
	r.check(err)
	if ending.PID != r.cmd.Process.Pid || ending.EnginePID != engine {
		t.Errorf("shutdown of %+v, want %d and the engine %d", ending, r.cmd.Process.Pid, engine)
	}
	r.ended()
	// This daemon did not start the engine, so process 1 collects the engine's exit
	// status, at any time.
	r.eventually("the engine's end", func() bool { return unix.Kill(engine, 0) != nil })
	if out, err := b.ns.Command("ip", "link", "show", "b").CombinedOutput(); err == nil {
		t.Errorf("the tap is still there: %s", out)
	}
	r.start() // the test's clean-up stops a running daemon
	if s := r.show(); s.Flows != 2 || len(s.Ports) != 2 || s.EnginePID == engine {
		t.Errorf("after the shutdown: %+v", s)
	}
}

// An upgrade replaces the program's file. Until weftd restarts, its new engines still
// run the old build, because weftd shares a memory layout with them.
func TestReplacedFile(t *testing.T) {
	r := startDaemon(t)
	a, _ := r.guests()
	r.addFlow("actions=normal")
	next := r.binary + ".new"
	r.check(os.WriteFile(next, []byte("#!/bin/false\n"), 0o755))
	kept := r.binary + ".kept"
	r.check(os.Link(r.binary, kept))
	r.check(os.Rename(next, r.binary))
	for n := uint64(1); n <= 3; n++ { // the first engine that takes over was started before the upgrade
		r.killEngine(r.show().EnginePID, n)
	}
	r.passes(a)
	if strings.Contains(r.output(), "spare") {
		t.Errorf("log:\n%s", r.output())
	}
	r.check(os.Rename(kept, r.binary))
}

// Ports and flows survive an orderly restart of the daemon. The devices of deleted
// ports disappear.
func TestRestartAndDelete(t *testing.T) {
	r := startDaemon(t)
	a, b := r.guests()
	r.addFlow("actions=normal")
	r.stop()
	r.start()
	s := r.show()
	if s.Flows != 1 || len(s.Ports) != 2 || s.Ports[0].Name != "a" || s.Ports[1].Number != 2 || s.Ports[0].State != "up" {
		text, _ := json.Marshal(s)
		t.Fatalf("after a restart: %s", text)
	}
	a.ns.Exec("ip", "addr", "add", "10.0.0.1/24", "dev", "a")
	b.ns.Exec("ip", "addr", "add", "10.0.0.2/24", "dev", "b")
	r.passes(a)
	changed, err := r.client.ModPort("a", []string{"mtu=9000", "vni=7"})
	r.check(err)
	if out := a.ns.Exec("ip", "link", "show", "a"); changed.Options["vni"] != "7" || !strings.Contains(out, "mtu 9000") {
		t.Errorf("%+v: %s", changed, out)
	}
	if _, err := r.client.ModPort("a", []string{"queues=2"}); err == nil || !strings.Contains(err.Error(), "queues=: cannot change while the port exists") {
		t.Errorf("mod-port queues=2: %v", err)
	}
	_, err = r.client.ModPort("a", []string{"vni="})
	r.check(err)
	_, err = r.client.ModPort("b", []string{"mtu=9000"})
	r.check(err)
	r.eventually("a ping of 8000 bytes passes", func() bool {
		return a.ns.Command("ping", "-n", "-c", "1", "-W", "1", "-s", "8000", "10.0.0.2").Run() == nil
	})
	r.check(r.client.DelPort("a"))
	r.check(r.client.DelPortIfExists("a"))
	if out, err := a.ns.Command("ip", "link", "show", "a").CombinedOutput(); err == nil {
		t.Errorf("the tap of a deleted port is still there: %s", out)
	}
}

// A second weftd that cannot start says why in one line and does not disturb the
// running daemon.
func TestRefusesToStart(t *testing.T) {
	r := startDaemon(t)
	if out, err := exec.Command(r.binary, "--version").CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "weftd version "+buildinfo.Own().Version+" (commit ") {
		t.Errorf("weftd --version: %v: %s", err, out)
	}
	other := filepath.Join(r.dir, "other")
	for _, c := range []struct {
		args []string
		code int
		word string
	}{
		{[]string{"--socket", other + ".sock", "--state", filepath.Join(r.dir, "state")}, 1, fmt.Sprint("pid ", r.show().PID)},
		{[]string{"--socket", r.socket, "--state", other}, 1, r.socket},
		{[]string{"--socket", other + ".sock", "--state", "/dev/null/x"}, 1, "/dev/null/x"},
		{[]string{"--socket", "/dev/null/s", "--state", other}, 1, "/dev/null/s"},
		{[]string{"--frob"}, 2, "--frob"},
		{[]string{"frob"}, 2, "frob"},
		{[]string{"--workers", "1000", "--socket", other + ".sock", "--state", other}, 2, "workers: 1000"},
		{[]string{"--cores", "0-", "--socket", other + ".sock", "--state", other}, 2, "cores 0-"},
		{[]string{"--socket-group", "nosuchgroup", "--socket", other + ".sock", "--state", other}, 2, "nosuchgroup"},
		{[]string{"--metrics", "256.0.0.1:x", "--socket", other + ".sock", "--state", other}, 1, "256.0.0.1:x"},
		{[]string{"--config", filepath.Join(r.dir, "nosuchfile")}, 2, "nosuchfile"},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		cmd := exec.CommandContext(ctx, r.binary, c.args...)
		out, _ := cmd.CombinedOutput()
		cancel()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.word) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("weftd %v: exit code %d, want %d, naming %q:\n%s", c.args, code, c.code, c.word, out)
		}
	}
	r.show()
}
