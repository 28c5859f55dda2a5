// SPDX-License-Identifier: Apache-2.0

package watchdog

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/datapath"
	"weft/engine"
	"weft/flowtable"
	"weft/internal/cpu"
	"weft/internal/procstat"
	"weft/internal/testnet"
	"weft/packet"
	"weft/port"
	"weft/port/porttest"
)

// TestMain also runs as the engine. The test binary starts itself, with devices that hang on command.
func TestMain(m *testing.M) {
	if len(os.Args) < 4 || os.Args[1] != "engine" {
		os.Exit(m.Run())
	}
	o := engine.Options{}
	if slices.Contains(os.Args, "--control=3") {
		o.Control = 3
	}
	if err := engine.Serve(os.Args[3], o, map[string]engine.Opener{"hanging": openHanging, "stuck": openStuck}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// hangingRx is a receive queue that hangs the worker when a byte arrives in its pipe. At b, it blocks
// in a system call. At l, it loops.
type hangingRx struct {
	port.Rx
	fd int
}

func (q *hangingRx) Recv(b *packet.Batch) int {
	var how [1]byte
	n, _ := unix.Read(q.fd, how[:])
	switch {
	case n != 1:
	case how[0] == 'b':
		fd, _ := unix.Eventfd(0, 0)
		_, _ = unix.Read(fd, make([]byte, 8)) // blocks: nobody writes to the eventfd
	case how[0] == 'l':
		for n := uint64(1); n != 0; n += 2 {
		}
	}
	return q.Rx.Recv(b)
}

type hangingDevice struct {
	*porttest.Device
	fd int
}

func (d *hangingDevice) Rx() []port.Rx { return []port.Rx{&hangingRx{d.Device.Rx()[0], d.fd}} }

func openHanging(_ []byte, fds []int) (port.Device, error) {
	return &hangingDevice{porttest.New(1, porttest.Options{Polled: true}), fds[0]}, nil
}

// openStuck opens a port and never returns, so the engine's server hangs.
func openStuck([]byte, []int) (port.Device, error) { select {} }

var testSizes = datapath.Sizes{
	Cache: flowtable.Sizes{Megaflows: 256, Exact: 256, Masks: 16, Actions: 1024},
	Held:  64, CommandRing: 1 << 18, UpcallRing: 1 << 18, Templates: 16,
}

// hanging is an engine with a port that hangs the worker on command.
type hanging struct {
	t      *testing.T
	client *engine.Client
	engine Engine
	hang   int // write end of hangingRx's pipe
	core   int
}

// newHanging starts an engine. The engine gets duplicates of the descriptors in open, which stay open
// in it.
func newHanging(t *testing.T, spinUS int, open ...int) *hanging {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, err := engine.Spawn(exe, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Condemn()
		if err := c.Kill(); err != nil && !errors.Is(err, engine.ErrStuck) {
			t.Error(err)
		}
		c.Close()
	})
	allowed, err := cpu.Allowed()
	if err != nil {
		t.Fatal(err)
	}
	core := allowed[len(allowed)-1]
	s := engine.Start{Cores: []int{core}, SpinUS: spinUS, Sizes: testSizes}
	m, err := engine.NewMemory(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(s, m); err != nil {
		t.Fatal(err)
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
	if err := c.Attach(engine.Attach{Port: 5, Name: "five", Kind: "hanging", Spec: json.RawMessage("null")}, append(p[:1:1], open...)); err != nil {
		t.Fatal(err)
	}
	return &hanging{t, c, Engine{PID: c.PID(), Workers: m.Shared, Pending: c.Pending, Gone: c.Gone()}, p[1], core}
}

func (h *hanging) watch() (found Hang, ok bool) {
	h.t.Helper()
	type result struct {
		Hang
		ok bool
	}
	c := make(chan result, 1)
	go func() {
		f, ok := Watch(h.engine)
		c <- result{f, ok}
	}()
	for range 600 { // count only time in which this process runs: the machine may stand still
		select {
		case r := <-c:
			return r.Hang, r.ok
		case <-time.After(100 * time.Millisecond):
		}
	}
	h.t.Fatal("the watchdog does not detect the hang")
	return found, false
}

func (h *hanging) tell(mode string) {
	h.t.Helper()
	if _, err := unix.Write(h.hang, []byte(mode)); err != nil {
		h.t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		left, err := unix.IoctlGetInt(h.hang, unix.TIOCINQ)
		if err == nil && left == 0 {
			return
		}
		if err != nil || time.Now().After(end) {
			h.t.Fatalf("the worker does not read: %v", err)
		}
	}
}

func (h *hanging) want(found Hang, states string) {
	h.t.Helper()
	text := found.Text(func(uint32) string { return "five" })
	if found.Worker != 0 || found.Standing < WorkerLimit || !slices.Contains([]byte(states), found.State) {
		h.t.Errorf("found %+v (%s), want worker 0 in a state of %s", found, text, states)
	}
	if len(found.Suspects) != 1 || found.Suspects[0] != (Suspect{Port: 5}) {
		h.t.Errorf("suspects %+v (%s), want queue 0 of port 5", found.Suspects, text)
	}
}

// The watchdog detects a worker that is blocked, and the queue that the worker was handling.
func TestBlockedWorker(t *testing.T) {
	h := newHanging(t, 50)
	h.tell("b")
	found, _ := h.watch()
	h.want(found, "SD")
}

// The watchdog detects a worker that loops, by its CPU time. This takes longer if the worker shares
// its core.
func TestLoopingWorker(t *testing.T) {
	h := newHanging(t, 50)
	h.tell("l")
	found, _ := h.watch()
	h.want(found, "R")
}

// An engine whose worker hangs can be ended during a request.
func TestRequestOfHungEngineEnds(t *testing.T) {
	h := newHanging(t, 50)
	h.tell("b")
	detached := make(chan error, 1)
	go func() {
		_, err := h.client.Detach(5)
		detached <- err
	}()
	for end := time.Now().Add(time.Minute); h.client.Pending().Number == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the request is not sent")
		}
	}
	if _, ok := h.watch(); !ok {
		t.Fatal("the hang is not found")
	}
	h.client.Condemn()
	select {
	case err := <-detached:
		if !errors.Is(err, engine.ErrGone) {
			t.Errorf("detach of the hung port: %v, want ErrGone", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the request waits for the dead engine")
	}
	for end := time.Now().Add(time.Minute); ; {
		err := h.client.Kill()
		if err == nil {
			break
		}
		// A killed process may need more time to end than Kill waits.
		if !errors.Is(err, engine.ErrStuck) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// A worker that a debugger has stopped counts as hung.
func TestStoppedThread(t *testing.T) {
	h := newHanging(t, 50)
	tid := int(h.engine.Workers[0].InHand.Thread)
	stopped, done := make(chan error), make(chan struct{})
	defer close(done)
	go func() {
		runtime.LockOSThread() // this thread is the tracer, and ends with the goroutine
		err := unix.PtraceSeize(tid)
		if err == nil {
			err = unix.PtraceInterrupt(tid)
		}
		stopped <- err
		<-done
	}()
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	found, _ := h.watch()
	if found.Worker != 0 || found.State != 't' || found.Suspects != nil {
		t.Errorf("found %+v, want worker 0 stopped, without suspects", found)
	}
}

// The watchdog detects a server that does not answer, and the port of the request that it does not
// answer.
func TestHungServer(t *testing.T) {
	var found Hang
	// On a busy machine, control may give up the request before the watchdog is sure.
	for hung, end := false, time.Now().Add(5*time.Minute); !hung && time.Now().Before(end); {
		h := newHanging(t, 50)
		go func() {
			_ = h.client.Attach(engine.Attach{Port: 6, Name: "six", Kind: "stuck", Spec: json.RawMessage("null")}, nil)
		}()
		found, hung = h.watch()
	}
	if found.Worker != NoWorker || found.Request != engine.OpAttach || len(found.Suspects) != 1 || found.Suspects[0].Port != 6 {
		t.Errorf("found %+v, want the attachment of port 6", found)
	}
}

// An engine hangs when control tells it to start its workers. The watchdog detects it. After Condemn,
// the request returns.
func TestEngineHangsInStart(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, err := engine.Spawn(exe, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Kill()
		c.Close()
	})
	s := engine.Start{Cores: []int{0}, Sizes: testSizes}
	m, err := engine.NewMemory(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(c.PID(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	started := make(chan error, 1)
	go func() { started <- c.Start(s, m) }()
	found, hung := Watch(Engine{PID: c.PID(), Pending: c.Pending, Gone: c.Gone()})
	if !hung || found.Worker != NoWorker || found.Request != engine.OpStart || len(found.Suspects) != 0 {
		t.Errorf("found %+v, hung %v; want the request %q, without suspects", found, hung, engine.OpStart)
	}
	c.Condemn()
	if err := <-started; !errors.Is(err, engine.ErrGone) {
		t.Errorf("start of the workers: %v, want ErrGone", err)
	}
}

// A worker that sleeps, polls, or waits for a core does not count as hung.
func TestSoundWorkers(t *testing.T) {
	testnet.NeedsRoot(t, "takes a core away with SCHED_FIFO")
	h := newHanging(t, 600_000) // a worker that sleeps at times
	w := newWatch(h.engine)
	look := func(while time.Duration) {
		t.Helper()
		// If a hypervisor takes the core away, the thread looks like an endless loop. Therefore only
		// the second wrong detection fails the test.
		stolen := false
		for end := time.Now().Add(while); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			found, hung, _ := w.look(uint64(time.Since(w.began)))
			if hung && stolen {
				t.Fatalf("found %+v", found)
			}
			if hung {
				t.Logf("found %+v", found)
				stolen, w = true, newWatch(h.engine)
			}
		}
	}
	look(3 * datapath.MaxSleepNS)
	release := hog(t, h.core)
	look(3 * time.Second)
	release()
	look(200 * time.Millisecond)
	h.tell("b") // a later hang is still found
	found, _ := h.watch()
	h.want(found, "SD")
}

// An engine was killed. Its last thread is a worker that exits slowly, because the kernel closes each
// packet socket only after an RCU grace period. The engine's ports have not made it hang.
func TestKilledEngineIsNoHangOfItsPorts(t *testing.T) {
	testnet.NeedsRoot(t, "opens packet sockets, and takes a core away with SCHED_FIFO")
	var sockets []int
	for range 20 {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		sockets = append(sockets, fd)
	}
	h := newHanging(t, 600_000, sockets...)
	for _, fd := range sockets {
		unix.Close(fd)
	}
	release := hog(t, h.core)
	if err := unix.Kill(h.engine.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for h.otherThreads() > 0 { // without a core, the worker is the last thread that exits
		time.Sleep(time.Millisecond)
	}
	time.AfterFunc(50*time.Millisecond, release)
	if found, hung := h.watch(); hung && (!found.Exiting || found.Suspects != nil) {
		t.Errorf("found %+v, want the end of the engine", found)
	}
}

// otherThreads returns how many of the engine's threads, apart from the worker, have not exited.
func (h *hanging) otherThreads() (n int) {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", h.engine.PID))
	for _, e := range entries {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", h.engine.PID, e.Name()))
		if err != nil || e.Name() == fmt.Sprint(h.engine.Workers[0].InHand.Thread) {
			continue
		}
		if t, err := procstat.Parse(text); err == nil && !t.Ended() {
			n++
		}
	}
	return n
}

func hog(t *testing.T, core int) (release func()) {
	t.Helper()
	began, stopped := make(chan error), make(chan struct{})
	var stop atomic.Bool
	go func() {
		defer close(stopped)
		runtime.LockOSThread() // the thread is never unlocked, so Go ends it with the goroutine
		err := cpu.Pin(core)
		if err == nil {
			err = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
		}
		began <- err
		if err != nil {
			return
		}
		for !stop.Load() { // the loop spins on purpose
		}
	}()
	if err := <-began; err != nil {
		t.Fatal(err)
	}
	return func() {
		stop.Store(true)
		<-stopped
	}
}
