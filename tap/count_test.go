// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/testnet"
	"weft/packet"
	"weft/port"
	"weft/port/porttest"
)

// counted returns receive queue i, whose frames the kernel counts.
func counted(t testing.TB, d port.Device, i int) port.Counted {
	t.Helper()
	q, ok := d.Rx()[i].(port.Counted)
	if !ok {
		t.Fatalf("receive queue %d is not counted", i)
	}
	return q
}

// recvWaiting receives while the count says that frames wait. It returns the number of the test's own
// frames. It fails after too many calls that find no frame.
func recvWaiting(t testing.TB, q port.Counted) int {
	t.Helper()
	b, frames, empty := new(packet.Batch), 0, 0
	for q.Waits() {
		b.Reset()
		n := q.Recv(b)
		if n < 0 {
			t.Fatal(q.Fault())
		}
		frames += ownFrames(b)
		q.Release()
		if n > 0 {
			continue
		}
		if empty++; empty > 1000 {
			t.Fatal("the count says for ever that a frame waits")
		}
	}
	return frames
}

// awaitFrames receives until the queues have received want frames of the test. Like a worker, it reads
// a queue if the count or the descriptor says that frames wait. It returns how many frames only the
// descriptor has reported. There can be a few on a busy machine, because the sender's CPU may stop
// between the count of a frame and its delivery.
func awaitFrames(t testing.TB, want int, queues ...port.Counted) (uncounted int) {
	t.Helper()
	b, got := new(packet.Batch), 0
	for end := time.Now().Add(30 * time.Second); got < want; {
		if time.Now().After(end) {
			t.Fatalf("received %d of %d frames", got, want)
		}
		for _, q := range queues {
			if got += recvWaiting(t, q); got >= want {
				break
			}
			p := []unix.PollFd{{Fd: int32(q.WaitFD()), Events: unix.POLLIN}}
			if n, err := unix.Poll(p, 0); n < 1 || err != nil || q.Waits() {
				continue
			}
			b.Reset()
			if q.Recv(b) < 0 {
				t.Fatal(q.Fault())
			}
			n := ownFrames(b)
			got, uncounted = got+n, uncounted+n
			q.Release()
		}
	}
	return uncounted
}

// ownFrames returns how many frames of b have the test's EtherType. The kernel also sends frames of
// its own.
func ownFrames(b *packet.Batch) (n int) {
	for i := range b.N {
		if h := b.Frames[i].Header(); h[12] == etherType>>8 && h[13] == etherType&0xff {
			n++
		}
	}
	return n
}

// Queues receive all frames, and learn of nearly all of them from the count.
func TestCountedFrames(t *testing.T) {
	n := testnet.New(t)
	tap := create(t, Config{Dev: "tap0", Netns: n.Name, Queues: 2})
	if yes, why := tap.Counted(); !yes {
		t.Fatal(why)
	}
	d := open(t, tap)
	defer d.Close()
	w := openWire(t, n, "tap0")
	total, uncounted := 0, 0
	for sent := 1; sent <= 200; sent = sent*3/2 + 1 {
		for i := range sent {
			w.send(frame(60+i, uint64(i)))
		}
		uncounted += awaitFrames(t, sent, counted(t, d, 0), counted(t, d, 1))
		total += sent
	}
	if uncounted > total/2 {
		t.Errorf("%d of %d frames were not counted", uncounted, total)
	}
}

// The kernel drops frames after it has counted them. The queue does not wait for them, and later
// frames arrive.
func TestCountedFramesThatAreDropped(t *testing.T) {
	n := testnet.New(t)
	d := open(t, create(t, Config{Dev: "tap0", Netns: n.Name}))
	defer d.Close()
	w, q := openWire(t, n, "tap0"), counted(t, d, 0)
	n.Exec("ip", "link", "set", "tap0", "txqueuelen", "10")
	for i := range 100 {
		w.send(frame(60, uint64(i)))
	}
	if got := recvWaiting(t, q); got >= 100 {
		t.Errorf("received %d frames from a queue of 10", got)
	}
	for i := range 5 {
		w.send(frame(60, uint64(i)))
	}
	awaitFrames(t, 5, q)
}

// The kernel drops frames after it has counted them, and other frames arrive meanwhile. The queue does
// not go on waiting for the dropped ones. Otherwise each Recv would end with a read that finds
// nothing, for as long as there is traffic.
func TestDroppedFramesUnderTraffic(t *testing.T) {
	n := testnet.New(t)
	d := open(t, create(t, Config{Dev: "tap0", Netns: n.Name}))
	defer d.Close()
	w, q := openWire(t, n, "tap0"), counted(t, d, 0)
	n.Exec("ip", "link", "set", "tap0", "txqueuelen", "10")
	for i := range 100 {
		w.send(frame(60, uint64(i)))
	}
	b := new(packet.Batch)
	for range 1000 {
		w.send(frame(60, 1))
		b.Reset()
		if q.Recv(b) < 0 {
			t.Fatal(q.Fault())
		}
		q.Release()
		if !q.Waits() {
			return
		}
	}
	t.Errorf("%d frames are still waited for", q.(*countedQueue).waiting())
}

// The kernel has not counted a frame. A Recv that is called without Waits receives it, and the count
// is right again.
func TestFramesThatAreNotCounted(t *testing.T) {
	n := testnet.New(t)
	tap := create(t, Config{Dev: "tap0", Netns: n.Name})
	d := open(t, tap)
	defer d.Close()
	w, q := openWire(t, n, "tap0"), counted(t, d, 0)
	recvWaiting(t, q)
	if err := unix.IoctlSetPointerInt(tap.fds[0], unix.TUNSETFILTEREBPF, -1); err != nil {
		t.Fatal(err)
	}
	w.send(frame(60, 1))
	w.send(frame(60, 2))
	if got := recv(t, q, new(packet.Batch), 2); len(got) != 2 {
		t.Errorf("received %d of 2 frames", len(got))
	}
	recvWaiting(t, q)
}

// Frames arrive while no engine runs. The next engine receives them. So does the engine of the next
// control process, which creates counts of its own.
func TestCountsOutliveTheEngine(t *testing.T) {
	n := testnet.New(t)
	first := create(t, Config{Dev: "tap0", Netns: n.Name})
	w := openWire(t, n, "tap0")
	next := func(tap *Tap) {
		t.Helper()
		d := open(t, tap)
		defer d.Close()
		w.send(frame(60, 1)) // it makes no difference whether they are counted before or after Open
		if got := recv(t, d.Rx()[0], new(packet.Batch), 3); len(got) != 3 {
			t.Fatalf("received %d of 3 frames", len(got))
		}
		recvWaiting(t, counted(t, d, 0))
		w.send(frame(60, 2))
		awaitFrames(t, 1, counted(t, d, 0))
	}
	wait := func() {
		w.send(frame(60, 3))
		w.send(frame(60, 4))
	}
	wait()
	next(first)
	wait()
	next(first)
	blob, fds, err := first.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	second, err := Restore(blob, porttest.Duplicates(t, fds))
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if yes, _ := second.Counted(); yes {
		t.Error("the next control process has counts before CountFrames")
	}
	second.CountFrames()
	wait()
	next(second)
}

// A tap works without counts if the kernel refuses the program, or if another program may
// use the filter of the tap.
func TestRefusedCounts(t *testing.T) {
	n := testnet.New(t)
	check := func(tap *Tap, want string) {
		t.Helper()
		if yes, why := tap.Counted(); yes || !strings.Contains(why, want) {
			t.Errorf("counted %v: %q, want %q", yes, why, want)
		}
		d := open(t, tap)
		defer d.Close()
		if _, is := d.Rx()[0].(port.Counted); is {
			t.Error("the queue is counted")
		}
		w := openWire(t, n, "tap0")
		w.send(frame(60, 1))
		if got := recv(t, d.Rx()[0], new(packet.Batch), 1); len(got) != 1 {
			t.Error("the frame did not arrive")
		}
	}
	tap, err := Create(Config{Dev: "tap0", Netns: n.Name})
	if err != nil {
		t.Fatal(err)
	}
	testnet.WithoutBPF(t, tap.CountFrames)
	check(tap, "needs CAP_BPF")
	tap.Close()

	n.Exec("ip", "tuntap", "add", "tap0", "mode", "tap")
	check(create(t, Config{Dev: "tap0", Netns: n.Name}), "existed before")
}
