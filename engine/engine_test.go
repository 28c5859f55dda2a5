// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/datapath"
	"weft/flowtable"
	"weft/internal/buildinfo"
	"weft/internal/shm"
	"weft/port"
	"weft/port/porttest"
)

// The test binary also runs as the engine, with the arguments `engine --state DIR`.
func TestMain(m *testing.M) {
	if len(os.Args) >= 4 && os.Args[1] == "engine" {
		var o Options
		if slices.Contains(os.Args, "--spare=2") {
			o.Spare = 2
		}
		if slices.Contains(os.Args, controlFlag) {
			o.Control = 3
		}
		o.Rehearsal = slices.Contains(os.Args, "--rehearsal")
		err := Serve(os.Args[3], o, map[string]Opener{
			"socket": porttest.OpenSocket,
			"replay": openReplay,
			"broken": func([]byte, []int) (port.Device, error) { return nil, errors.New("broken by the test") },
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var testSizes = datapath.Sizes{
	Cache: flowtable.Sizes{Megaflows: 256, Exact: 256, Masks: 16, Actions: 1024},
	Held:  64, CommandRing: 1 << 18, UpcallRing: 1 << 18, Templates: 16,
}

func allowedCores(t *testing.T) []int {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	for c := range 1024 {
		if set.IsSet(c) {
			return []int{c}
		}
	}
	t.Fatal("no core")
	return nil
}

func spawnEngine(t *testing.T, dir string) *Client {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Spawn(exe, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Kill()
		c.Close()
	})
	return c
}

func startEngine(t *testing.T, c *Client, workers int) (Start, *Memory) {
	t.Helper()
	s := Start{Sizes: testSizes, SpinUS: 50}
	for range workers {
		s.Cores = append(s.Cores, allowedCores(t)[0])
	}
	m, err := NewMemory(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	if err := c.Start(s, m); err != nil {
		t.Fatal(err)
	}
	return s, m
}

// socketPair returns the test's end and the engine's end of a socket pair.
func socketPair(t *testing.T) (ours, theirs int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.SetsockoptTimeval(fds[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30})
	t.Cleanup(func() { unix.Close(fds[0]) })
	return fds[0], fds[1]
}

func attachSocket(t *testing.T, c *Client, number uint32, spec string) (ours int) {
	t.Helper()
	ours, theirs := socketPair(t)
	defer unix.Close(theirs)
	if err := c.Attach(Attach{Port: number, Name: fmt.Sprint("s", number), Kind: "socket", Spec: json.RawMessage(spec)}, []int{theirs}); err != nil {
		t.Fatal(err)
	}
	return ours
}

func install(t *testing.T, m *Memory, slot, from, to uint32) {
	t.Helper()
	for i := range m.Shared {
		p := shm.NewProducer(m.Shared[i].Commands, m.CommandEvents[i])
		key := flowtable.Key{flowtable.WPort: uint64(from) << 32}
		mask := flowtable.Key{flowtable.WPort: 0xffffffff << 32}
		if !p.Push(datapath.AppendInstall(nil, slot, &key, &mask, []flowtable.Action{{Op: flowtable.OpOutput, U32: to}})) {
			t.Fatal("command ring full")
		}
		want := p.Publish()
		await(t, "the command", func() bool { return p.Done() == want })
	}
}

func await(t *testing.T, condition string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", condition)
		}
	}
}

func ethernet(n int) []byte {
	f := make([]byte, n)
	copy(f, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5})
	for i := 14; i < n; i++ {
		f[i] = byte(i)
	}
	return f
}

func passes(t *testing.T, from, to int, frame []byte) {
	t.Helper()
	if _, err := unix.Write(from, frame); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := unix.Read(to, buf)
	if err != nil || !bytes.Equal(buf[:n], frame) {
		t.Fatalf("received %d bytes (%v) of %d", n, err, len(frame))
	}
}

func openFDs(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// The engine forwards frames. A port that is detached returns its state. The client notices when the
// engine dies.
func TestLife(t *testing.T) {
	dir := t.TempDir()
	c := spawnEngine(t, dir)
	_, m := startEngine(t, c, 2)
	a := attachSocket(t, c, 1, `{"ring":7}`)
	b := attachSocket(t, c, 2, `null`)
	install(t, m, 0, 1, 2)
	for n := 60; n < 1500; n += 97 {
		passes(t, a, b, ethernet(n))
	}
	state, err := c.Detach(1)
	if err != nil || string(state) != `{"ring":7}` {
		t.Fatalf("state %s, %v", state, err)
	}
	if n, err := unix.Read(a, make([]byte, 1)); n != 0 {
		t.Fatalf("the engine still has the detached port's socket: %d, %v", n, err)
	}
	if _, err := c.Detach(1); err == nil || !strings.Contains(err.Error(), "port 1 is not attached") {
		t.Fatalf("second detach: %v", err)
	}
	if err := unix.Kill(c.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Gone():
	case <-time.After(30 * time.Second):
		t.Fatal("the client did not notice that the engine died")
	}
	if err := c.Forget("x"); !errors.Is(err, ErrGone) {
		t.Fatalf("request to a dead engine: %v", err)
	}
	if err := c.Kill(); err != nil {
		t.Fatalf("kill of a dead engine: %v, want nil", err)
	}
	// Another engine can start at once in a dead engine's directory.
	spawnEngine(t, dir)
}

// After control has died, frames still pass. The next control process receives everything that the
// engine kept.
func TestRecall(t *testing.T) {
	dir := t.TempDir()
	first := spawnEngine(t, dir)
	start, m := startEngine(t, first, 1)
	a, b := attachSocket(t, first, 1, `{"ring":7}`), attachSocket(t, first, 2, `null`)
	install(t, m, 0, 1, 2)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"z", "y", "gone"} {
		if err := first.Keep(key, json.RawMessage(`"`+key+`"`), pipe[1:]); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Keep("y", json.RawMessage(`"new"`), nil); err != nil {
		t.Fatal(err)
	}
	if err := first.Forget("gone"); err != nil {
		t.Fatal(err)
	}
	unix.Close(pipe[1])
	first.conn.Close() // for the engine, control has died
	passes(t, a, b, ethernet(100))

	second, err := Connect(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	kept, err := second.Recall()
	if err != nil {
		t.Fatal(err)
	}
	if first.Build() != buildinfo.Own() || second.Build() != buildinfo.Own() {
		t.Errorf("builds %+v of the start, %+v recalled, want %+v", first.Build(), second.Build(), buildinfo.Own())
	}
	var got []string
	for _, k := range kept {
		switch r := k.Request; r.Op {
		case OpStart:
			got = append(got, fmt.Sprint("start ", r.Start.SpinUS, len(k.FDs)))
		case OpAttach:
			got = append(got, fmt.Sprint("attach ", r.Attach.Port, string(r.Attach.Spec), len(k.FDs)))
		default:
			got = append(got, fmt.Sprint(r.Op, " ", r.Key, string(r.Blob), len(k.FDs)))
		}
	}
	want := []string{"start 50 4", `attach 1{"ring":7}0`, "attach 2null0", `keep z"z"1`, `keep y"new"0`}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("recalled %q, want %q", got, want)
	}
	// The recalled memory region and pipe are those that the engine uses.
	m2, err := OpenMemory(start, kept[0].FDs)
	if err != nil {
		t.Fatal(err)
	}
	defer m2.Close()
	if n := m2.Shared[0].Counters.Frames; n != 1 || m.Shared[0].Counters.Frames != 1 {
		t.Fatalf("%d frames counted in the recalled region", n)
	}
	unix.Write(kept[3].FDs[0], []byte("x"))
	if n, _ := unix.Read(pipe[0], make([]byte, 1)); n != 1 {
		t.Fatal("the recalled descriptor differs from the kept descriptor")
	}
	unix.Close(pipe[0])
	for i := range kept[1:] {
		kept[1+i].CloseFDs()
	}
	passes(t, a, b, ethernet(200))
}

// A newer control process replaces an older one. The older one's connection ends.
func TestReplaced(t *testing.T) {
	dir := t.TempDir()
	first := spawnEngine(t, dir)
	second, err := Connect(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := second.Keep("k", nil, nil); err != nil {
		t.Fatal(err)
	}
	select {
	case <-first.Gone():
	case <-time.After(30 * time.Second):
		t.Fatal("the older control process is still connected")
	}
}

// The engine refuses invalid requests and says why. It goes on answering requests.
func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	c := spawnEngine(t, dir)
	refused := func(err error, word string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), word) || errors.Is(err, ErrGone) {
			t.Fatalf("error %v, want one with %q", err, word)
		}
	}
	_, theirs := socketPair(t)
	fds := []int{theirs}
	refused(c.Attach(Attach{Port: 1, Name: "p", Kind: "socket"}, fds), "not been started")
	_, err := c.call(&Request{Op: "dance"}, fds)
	refused(err, `"dance"`)
	_, err = c.call(&Request{Op: OpStart}, fds)
	refused(err, "no start field")
	_, err = c.call(&Request{Op: OpStart, Start: &Start{Sizes: testSizes}}, fds)
	refused(err, "0 workers")
	_, err = c.call(&Request{Op: OpStart, Start: &Start{Sizes: testSizes, Cores: []int{0}}}, fds)
	refused(err, "expected 4")
	_, err = c.call(&Request{Op: OpStart, Start: &Start{Sizes: testSizes, Cores: []int{0}}}, []int{theirs, theirs, theirs, theirs})
	refused(err, "connection table")
	small, err := NewMemory(Start{Cores: []int{0}, Sizes: testSizes}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	big := testSizes
	big.Held *= 2
	refused(c.Start(Start{Cores: []int{0}, Sizes: big}, small), "expected at least")
	_, err = c.call(&Request{Op: OpStart, Start: &Start{Sizes: testSizes, Cores: []int{1023}}}, small.FDs())
	refused(err, "pin to core 1023")

	s, m := startEngine(t, c, 1)
	refused(c.Start(s, m), "already running")
	refused(c.Attach(Attach{Port: 0, Kind: "socket"}, fds), "invalid port")
	refused(c.Attach(Attach{Port: port.MaxPorts, Kind: "socket"}, fds), "invalid port")
	refused(c.Attach(Attach{Port: 1, Name: "p", Kind: "pigeon"}, fds), `"pigeon"`)
	refused(c.Attach(Attach{Port: 1, Name: "p", Kind: "broken"}, nil), "broken by the test")
	refused(c.Attach(Attach{Port: 1, Name: "p", Kind: "socket"}, nil), "expected 1")
	refused(c.Keep("", nil, fds), "expected a key")
	refused(c.Keep("k", json.RawMessage(`{`), nil), "unexpected end")
	if _, err := c.conn.Write([]byte("no JSON")); err != nil {
		t.Fatal(err)
	}
	if r, err := c.await(); err != nil || !strings.Contains(r.reply.Error, "invalid character") {
		t.Fatalf("reply %+v, %v", r.reply, err)
	}
	large := json.RawMessage(`"` + strings.Repeat("x", maxRequest) + `"`)
	if err := c.Keep("k", large, nil); err == nil || !strings.Contains(err.Error(), "message of") {
		t.Fatalf("large message: %v", err)
	}
	unix.Close(theirs)
	if err := c.Keep("k", nil, nil); err != nil {
		t.Fatalf("the engine did not survive: %v", err)
	}
}

// No request leaves a descriptor open in the engine or in control.
func TestNoLeaks(t *testing.T) {
	dir := t.TempDir()
	c := spawnEngine(t, dir)
	startEngine(t, c, 1)
	round := func() {
		ours, theirs := socketPair(t)

		a := Attach{Port: 1, Name: "p", Kind: "socket"}
		for range 2 { // the second request replaces the first
			if err := c.Attach(a, []int{theirs}); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Keep("k", nil, []int{theirs, theirs}); err != nil {
			t.Fatal(err)
		}
		if err := c.Keep("k", nil, []int{theirs}); err != nil {
			t.Fatal(err)
		}
		c.Attach(Attach{Port: 2, Kind: "pigeon"}, []int{theirs})
		c.Attach(Attach{Port: 2, Kind: "socket"}, []int{theirs, theirs})
		c.call(&Request{Op: OpStart}, []int{theirs})
		c.call(&Request{Op: OpForget, Key: "none"}, []int{theirs})
		kept, err := c.Recall()
		if err != nil || len(kept) != 3 {
			t.Fatalf("recalled %d requests, %v", len(kept), err)
		}
		for i := range kept {
			kept[i].CloseFDs()
		}
		if err := c.Forget("k"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Detach(1); err != nil {
			t.Fatal(err)
		}
		unix.Close(theirs)
		unix.Shutdown(ours, unix.SHUT_RDWR)
	}
	round()
	engine := openFDs(t, c.PID())
	self := openFDs(t, os.Getpid())
	const rounds = 5
	for range rounds {
		round()
	}
	// The engine may close received descriptors with a delay.
	await(t, "the engine's descriptors to be closed", func() bool { return openFDs(t, c.PID()) <= engine })
	// Cleanup closes this test's ends.
	await(t, "this process's descriptors to be closed", func() bool { return openFDs(t, os.Getpid()) <= self+rounds })
}

// Only one engine serves a state directory. Stop ends it in an orderly way, and signals from a
// terminal do not end it.
func TestOneEngineAndStop(t *testing.T) {
	// The path is too long for the address of a socket.
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Connect(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("connected to no engine: %v", err)
	}
	c := spawnEngine(t, dir)
	st, err := os.Stat(filepath.Join(dir, socketName(c.PID())))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("socket mode %v, %v", st.Mode(), err)
	}
	exe, _ := os.Executable()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, exe, "engine", "--state", dir).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another engine serves") {
		t.Fatalf("a second engine: %s %v", out, err)
	}
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP} {
		unix.Kill(c.PID(), sig)
	}
	startEngine(t, c, 2)
	attachSocket(t, c, 3, `null`)
	if group, err := unix.Getpgid(c.PID()); err != nil || group != c.PID() {
		t.Fatalf("process group %d of process %d, %v", group, c.PID(), err)
	}
	own, _ := unix.Getsid(0)
	if session, err := unix.Getsid(c.PID()); err != nil || session != own {
		t.Fatalf("session %d, its starter's is %d, %v", session, own, err)
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := Connect(dir); !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatalf("connected to a stopped engine: %v", err)
	}
}

// TestManyDescriptors: a request may have more descriptors than one message carries. A request with
// too many is refused, and none of them stays open.
func TestManyDescriptors(t *testing.T) {
	c := spawnEngine(t, t.TempDir())
	startEngine(t, c, 1)
	_, theirs := socketPair(t)
	defer unix.Close(theirs)
	most := slices.Repeat([]int{theirs}, maxRequestDescriptors)
	before := filesOf(t, c.PID())
	for range 2 {
		// The test's device needs one descriptor. Its error says how many it got.
		err := c.Attach(Attach{Port: 1, Name: "most", Kind: "socket"}, most)
		if err == nil || !strings.Contains(err.Error(), "1024 descriptors") {
			t.Fatalf("most descriptors: %v", err)
		}
		err = c.Attach(Attach{Port: 1, Name: "many", Kind: "socket"}, append(most, most...))
		if err == nil || !strings.Contains(err.Error(), "more than 1024 descriptors") {
			t.Fatalf("too many descriptors: %v", err)
		}
	}
	if n := filesOf(t, c.PID()); n != before {
		t.Errorf("%d descriptors open in the engine, %d before", n, before)
	}
	attachSocket(t, c, 1, "null") // works only if no descriptors of earlier requests are left
}

func filesOf(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
