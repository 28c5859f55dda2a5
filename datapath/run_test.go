// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"runtime"
	"testing"
	"time"

	"weft/flowtable"
	"weft/internal/shm"
	"weft/packet"
	"weft/port"
	"weft/port/porttest"
)

func (r *rig) run(spinUS int) {
	r.t.Helper()
	r.w.config.SpinUS, r.w.fixed = spinUS, 0 // the clock runs: a worker sleeps after a time without frames
	go r.w.Run()
	if !r.w.Settle() {
		r.t.Fatal("the worker has ended")
	}
	r.t.Cleanup(r.w.Stop)
}

func await(t testing.TB, condition string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", condition)
		}
	}
}

func (r *rig) awaitSleep() {
	r.t.Helper()
	was := r.sh.Counters.HeartbeatNS
	await(r.t, "the worker to sleep", func() bool {
		time.Sleep(2 * time.Millisecond)
		now := r.sh.Counters.HeartbeatNS
		asleep := now == was && r.sh.Counters.Sleeps > 0
		was = now
		return asleep
	})
}

const forever = 1 << 40 // time in µs to poll before a sleep, so long that the worker never sleeps

// An idle worker sleeps. A frame, a tap's frame, a command, a new port, and Stop wake
// it.
func TestSleepAndWake(t *testing.T) {
	r := newRig(t, testSizes)
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{Polled: true}, false)
	r.install(0, 1, 0xa, output(2))
	r.install(1, 2, 0xa, output(1))
	r.run(50)
	for i := range uint32(20) {
		r.awaitSleep()
		from, to := 1+i%2, 2-i%2
		r.inject(from, ethernet(0xa, 100, i))
		await(t, "a frame", func() bool {
			f := r.tx(to).Take()
			return f != nil && number(f) == i
		})
	}
	r.awaitSleep()
	r.install(2, 1, 0xb, output(1))
	want := r.commands.Publish()
	await(t, "a command", func() bool { return r.commands.Done() == want })
	r.awaitSleep()
	d := porttest.New(1, porttest.Options{})
	r.ports[3] = d
	if err := r.w.AddPort(PortQueues{Port: 3, Rx: d.Rx(), Tx: d.Tx()[0]}); err != nil {
		t.Fatal(err)
	}
	r.awaitSleep()
}

// A sleeping worker makes only a few passes a second.
func TestIdleIsIdle(t *testing.T) {
	r := newRig(t, testSizes)
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{Polled: true}, false)
	r.run(50)
	r.awaitSleep()
	c := r.sh.Counters
	before := *c
	time.Sleep(2 * maxSleepMS * time.Millisecond)
	// The test uses the worker's own clock, because the test's goroutine may wake up late.
	now := *c
	turns := (now.HeartbeatNS-before.HeartbeatNS)/(maxSleepMS*1_000_000) + 3
	if passes, sleeps := now.IdlePasses-before.IdlePasses, now.Sleeps-before.Sleeps; sleeps > turns || passes > 500*turns {
		t.Fatalf("%d passes, %d sleeps while idle, expected about %d", passes, sleeps, turns)
	}
	await(t, "a heartbeat", func() bool { return c.HeartbeatNS > before.HeartbeatNS })
}

// A worker with a held frame polls for longer before it sleeps, because control will answer soon.
func TestHeldFramePostponesSleep(t *testing.T) {
	r := newRig(t, testSizes)
	r.addPort(1, porttest.Options{}, false)
	r.w.config.SpinUS = 50
	r.w.fixed = r.w.clock()
	r.inject(1, ethernet(0xa, 60, 0))
	r.turn()
	r.mustUpcall(UpMiss)
	shm.SignalOwn(r.w.config.CommandEvent) // ends a sleep at once
	r.w.fixed += 60_000
	r.turn()
	r.equal("sleeps while a frame is held", r.sh.Counters.Sleeps, 0)
	r.w.fixed += answerSpinNS
	r.turn()
	r.equal("sleeps", r.sh.Counters.Sleeps, 1)
}

// slowArm is a receive queue whose Arm advances the worker's clock, as if the following sleep took this
// time.
type slowArm struct {
	port.Rx
	clock  *uint64
	stepNS uint64
}

func (q *slowArm) Arm() bool {
	*q.clock += q.stepNS
	return q.Rx.Arm()
}

// After a short sleep the worker polls for longer before the next one. This ends with a long sleep, or
// with a batch of more than bulkBytes.
func TestShortSleepPostponesTheNext(t *testing.T) {
	r := newRig(t, testSizes)
	r.addPort(1, porttest.Options{}, false)
	r.w.config.SpinUS = 50
	r.w.fixed = r.w.clock()
	r.install(0, 1, 0xa, output(1))
	r.turn() // busy with the command
	q := &slowArm{Rx: r.rx(1), clock: &r.w.fixed}
	r.w.queues.queue(0).rx = q
	sleeps := uint64(0)
	idle := func(us, stepUS, want uint64) {
		t.Helper()
		shm.SignalOwn(r.w.config.CommandEvent) // ends a sleep at once
		r.w.fixed += us * 1000
		q.stepNS = stepUS * 1000
		r.turn()
		sleeps += want
		r.equal("sleeps", r.sh.Counters.Sleeps, sleeps)
	}
	idle(60, 100, 1)
	idle(60, 0, 0)
	idle(150, 1000, 1)
	idle(60, 100, 1)
	idle(60, 0, 0)
	for i := range uint32(packet.BatchSize) {
		r.inject(1, ethernet(0xa, 2*bulkBytes/packet.BatchSize, i))
	}
	r.turn() // receives a batch of more than bulkBytes
	idle(210, 100, 1)
	idle(60, 0, 1)
}

// A frame that arrives just before the worker sleeps keeps the worker awake.
func TestArmSeesFrames(t *testing.T) {
	r := newRig(t, testSizes)
	r.addPort(1, porttest.Options{}, false)
	r.inject(1, ethernet(0xa, 60, 0))
	if r.w.armAll() {
		t.Fatal("Arm did not see the waiting frame")
	}
	r.w.sleep() // no sleep, because a frame waits; a sleep would increment the counter
	r.equal("sleeps", r.sh.Counters.Sleeps, 0)
	if r.rx(1).Arm(); r.rx(1).Lent() != 1 {
		t.Fatal("the frame is gone")
	}
}

// A worker with few polled queues reads them without calling epoll. An idle worker reads them in every
// pass. A busy worker reads them every readyEveryNS, and after it has sent a frame to a process behind a
// tap.
func TestFewPolledQueues(t *testing.T) {
	r := newRig(t, testSizes)
	r.w.fixed = 1
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{Polled: true}, false)
	r.addPort(3, porttest.Options{}, false)
	r.install(0, 1, 0xa, output(3))
	r.install(1, 1, 0xb, output(2))
	r.turn()
	recvs := r.rx(2).Recvs.Load()
	for range 10 {
		r.turn()
	}
	r.equal("reads", r.rx(2).Recvs.Load(), recvs+10)
	recvs += 10
	for i := range uint32(10) {
		r.inject(1, ethernet(0xa, 60, i))
		r.turn()
	}
	r.equal("reads by a busy worker", r.rx(2).Recvs.Load(), recvs+1)
	r.w.fixed += readyEveryNS
	r.inject(1, ethernet(0xa, 60, 10))
	r.turn()
	r.equal("reads by a busy worker, later", r.rx(2).Recvs.Load(), recvs+2)
	r.inject(1, ethernet(0xb, 60, 11))
	r.turn()
	r.inject(1, ethernet(0xa, 60, 12))
	r.turn()
	r.equal("reads behind what was delivered", r.rx(2).Recvs.Load(), recvs+3)
	r.inject(1, ethernet(0xa, 60, 13))
	r.turn()
	r.equal("reads after that", r.rx(2).Recvs.Load(), recvs+3)
}

// guestRx is the receive queue of a vhost-user guest.
type guestRx struct{ port.Rx }

func (guestRx) EdgeWatched() {}

// A worker yields its core after a frame for a guest, as after a frame for a tap. It reads the taps at once
// only after a frame for a tap.
func TestYieldToGuests(t *testing.T) {
	r := newRig(t, testSizes)
	r.w.fixed = 1
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{Polled: true}, false)
	d := porttest.New(1, porttest.Options{})
	r.ports[3] = d
	if err := r.w.addPort(&PortQueues{Port: 3, Rx: []port.Rx{guestRx{d.Rx()[0]}}, Tx: d.Tx()[0]}); err != nil {
		t.Fatal(err)
	}
	for number, want := range []bool{1: false, 2: true, 3: true} {
		if got := r.w.ports[number].local; got != want {
			t.Errorf("port %d is local: %v, want %v", number, got, want)
		}
	}
	r.install(0, 1, 0xa, output(3))
	r.turn()
	r.inject(1, ethernet(0xa, 60, 0))
	r.turn()
	recvs := r.rx(2).Recvs.Load()
	r.inject(1, ethernet(0xa, 60, 1))
	r.turn()
	r.equal("delivered", r.sh.Ports[3].TxPackets, 2)
	r.equal("reads of the tap by a busy worker", r.rx(2).Recvs.Load(), recvs)
}

// A worker with taps yields after every yieldFrames frames of passes with many frames. A
// worker without taps keeps its core while frames keep coming.
func TestBusyWorkerYields(t *testing.T) {
	for _, c := range []struct {
		tap          bool
		unyielded    int // number of frames since the last yield
		frames, want int
	}{
		{true, yieldFrames - manyFrames, manyFrames, 0},
		{true, yieldFrames - manyFrames - 1, manyFrames, yieldFrames - 1},
		{true, yieldFrames - 1, manyFrames - 1, yieldFrames - 1},
		{false, yieldFrames, packet.BatchSize, yieldFrames + packet.BatchSize},
	} {
		r := newRig(t, testSizes)
		r.addPort(1, porttest.Options{}, false)
		r.addPort(2, porttest.Options{Polled: c.tap}, false)
		r.install(0, 1, 0xa, output(2))
		r.turn()
		for i := range uint32(c.frames) {
			r.inject(1, ethernet(0xa, 60, i))
		}
		r.w.unyielded = c.unyielded
		r.turn()
		r.equal("sent", r.sh.Ports[2].TxPackets, uint64(c.frames))
		if r.w.unyielded != c.want {
			t.Errorf("tap %v, %d frames after %d: %d frames since the last yield, want %d", c.tap, c.frames, c.unyielded, r.w.unyielded, c.want)
		}
	}
}

// With many polled queues, the worker reads a queue only if epoll reports it.
func TestPolledQueue(t *testing.T) {
	r := newRig(t, testSizes)
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{Polled: true}, false)
	for no := range uint32(maxReadUnasked) {
		r.addPort(3+no, porttest.Options{Polled: true}, false)
	}
	r.install(0, 2, 0xa, output(1))
	r.turn()
	recvs := r.rx(2).Recvs.Load()
	for range 1000 {
		r.turn()
	}
	r.equal("reads of nothing", r.rx(2).Recvs.Load(), recvs)
	for i := range uint32(3 * packet.BatchSize) {
		r.inject(2, ethernet(0xa, 60, i))
	}
	r.w.waiter.nextReady = 0
	for range 4 { // the worker goes on reading the queue until Recv returns no frame
		r.turn()
	}
	r.equal("sent", r.sh.Ports[1].TxPackets, 3*packet.BatchSize)
	r.equal("reads", r.rx(2).Recvs.Load(), recvs+4)
}

// A worker reads a counted queue only if its count says that frames wait, without asking epoll. Every
// uncountedEveryNS it asks epoll for frames that the count has missed.
func TestCountedQueue(t *testing.T) {
	r := newRig(t, testSizes)
	r.w.fixed = 1
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{Polled: true, Counted: true}, false)
	r.install(0, 1, 0xa, output(1))
	r.install(1, 2, 0xa, output(1))
	r.turn()
	recvs, calls := r.rx(2).Recvs.Load(), r.sh.Counters.Syscalls
	for range 1000 {
		r.turn()
	}
	r.equal("reads of nothing", r.rx(2).Recvs.Load(), recvs)
	r.equal("system calls for nothing", r.sh.Counters.Syscalls, calls)

	r.inject(1, ethernet(0xa, 60, 0))
	r.turn()
	r.inject(1, ethernet(0xa, 60, 1))
	for i := range uint32(packet.BatchSize + 1) {
		r.inject(2, ethernet(0xa, 60, i))
	}
	r.turn()
	r.equal("reads by a busy worker", r.rx(2).Recvs.Load(), recvs+1)
	r.turn()
	r.turn()
	r.equal("reads after a full batch", r.rx(2).Recvs.Load(), recvs+2)
	r.equal("sent", r.sh.Ports[1].TxPackets, packet.BatchSize+3)
	r.equal("system calls", r.sh.Counters.Syscalls, calls)

	r.rx(2).Uncounted.Store(true)
	r.rx(2).Woken() // the frames above
	r.inject(2, ethernet(0xa, 60, 0))
	r.turn()
	r.equal("reads of an uncounted frame", r.rx(2).Recvs.Load(), recvs+2)
	r.w.fixed += uncountedEveryNS
	r.turn()
	r.equal("reads of an uncounted frame, later", r.rx(2).Recvs.Load(), recvs+3)
	r.equal("sent", r.sh.Ports[1].TxPackets, packet.BatchSize+4)
}

// A million frames cause no allocation and no garbage collection.
func TestMillionFrames(t *testing.T) {
	const frames = 1_000_000
	r := withTunnel(t, 2)
	r.tx(2).Discard.Store(true)
	r.tx(uplinkPort).Discard.Store(true)
	for i := range uint32(100) {
		dst := uint64(0xa + i%4)
		r.inject(1, ethernet(dst, 60+int(i), i))
	}
	r.install(0, 1, 0xa, output(2))
	r.install(1, 1, 0xb, flowtable.Action{Op: flowtable.OpSetEthSrc, U64: 1}, output(2))
	r.install(2, 1, 0xc, toTunnel(77))
	r.install(3, 1, 0xd, toTunnel(77), output(2))
	r.turn()
	r.run(forever)
	await(t, "the first frames", func() bool { return r.rx(1).Lent() == 0 })
	time.Sleep(time.Millisecond)

	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	received := r.sh.Counters.Frames
	r.rx(1).Replay(frames)
	for !r.rx(1).Replayed() {
		time.Sleep(time.Millisecond)
	}
	runtime.ReadMemStats(&after)
	if n := after.NumGC - before.NumGC; n != 0 {
		t.Errorf("%d garbage collections, want 0", n)
	}
	// A thread that the runtime starts allocates some objects.
	if n := after.Mallocs - before.Mallocs; n > 100 {
		t.Errorf("%d allocations, want at most 100", n)
	}
	await(t, "the last frame", func() bool { return r.sh.Counters.Frames == received+frames })
	await(t, "the last pass", func() bool { return r.sh.Ports[2].TxPackets == r.tx(2).Packets.Load() })
	r.w.Settle()
	c := r.sh.Counters
	r.equal("hits", c.ExactHits+c.MegaflowHits, c.Frames)
	flows := uint64(0)
	for slot := range 4 {
		flows += r.sh.Cache.Flows[slot].Packets
	}
	r.equal("frames of the flows", flows, c.Frames)
	r.drops(nil)
}

// After RemovePort the worker does not use the port's memory, even under load.
func TestPortsComeAndGo(t *testing.T) {
	r := newRig(t, testSizes)
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{}, false)
	for i := range uint32(64) {
		r.inject(1, ethernet(0xa, 200, i))
	}
	r.install(0, 1, 0xa, output(2), output(3))
	r.tx(2).Discard.Store(true)
	r.turn()
	r.rx(1).Replay(1 << 40)
	r.run(forever)
	for range 100 {
		d := porttest.New(1, porttest.Options{})
		d.TxQueues[0].Discard.Store(true)
		d.RxQueues[0].Inject(ethernet(0xb, 200, 0))
		if err := r.w.AddPort(PortQueues{Port: 3, Rx: d.Rx(), Tx: d.Tx()[0]}); err != nil {
			t.Fatal(err)
		}
		if err := r.w.AddPort(PortQueues{Port: 3, Rx: d.Rx(), Tx: d.Tx()[0]}); err == nil {
			t.Fatal("a port was added twice without an error")
		}
		await(t, "a frame", func() bool { return d.TxQueues[0].Packets.Load() > 0 })
		r.w.RemovePort(3)
		d.Close()
	}
	if up, ok := r.upcall(); ok && up.Op == UpFault {
		t.Fatalf("fault: %s", up.Reason)
	}
	r.w.RemovePort(3)
	r.w.RemovePort(port.MaxPorts)
	if err := r.w.AddPort(PortQueues{Port: port.MaxPorts}); err == nil {
		t.Fatal("a port beyond the last number was added without an error")
	}
	if err := r.w.AddPort(PortQueues{Port: 0}); err == nil {
		t.Fatal("port 0 was added without an error")
	}
}

// Two workers that share a transmit queue lose no frame and corrupt no frame.
func TestSharedTx(t *testing.T) {
	const frames = 100_000
	shared, lock := porttest.NewTx(porttest.Options{}), new(TxLock)
	defer shared.Close()
	shared.Discard.Store(true)
	var rigs []*rig
	for i := range uint32(2) {
		r := newRig(t, testSizes)
		r.addPort(1, porttest.Options{}, false)
		if err := r.w.addPort(&PortQueues{Port: 2, Tx: shared, Lock: lock}); err != nil {
			t.Fatal(err)
		}
		for n := range uint32(64) {
			r.inject(1, ethernet(0xa, 100+int(i), n))
		}
		r.install(0, 1, 0xa, output(2))
		r.turn()
		rigs = append(rigs, r)
	}
	for _, r := range rigs {
		r.rx(1).Replay(frames)
		r.run(forever)
	}
	await(t, "all frames", func() bool { return shared.Packets.Load() == 2*frames+2*packet.BatchSize })
	for _, r := range rigs {
		await(t, "the counters", func() bool { return r.sh.Ports[2].TxPackets == frames+packet.BatchSize })
		r.drops(nil)
	}
}

func TestEndedWorker(t *testing.T) {
	r := newRig(t, testSizes)
	r.w.config.Core = 1023
	if err := r.w.Run(); err == nil {
		t.Fatal("pinned to a core that is not there")
	}
	if r.w.Settle() {
		t.Fatal("still there")
	}
	if err := r.w.AddPort(PortQueues{Port: 1}); err == nil {
		t.Fatal("a port for nobody")
	}
	r.w.RemovePort(1)
}
