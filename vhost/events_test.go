// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
	"weft/internal/waitfor"
	"weft/packet"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

// In these tests, a hostile front end clears O_NONBLOCK of the shared call, kick and
// err eventfds, fills their counters, or adds many waiters.

// hostile makes every further write to the eventfd fd block: it is in blocking mode, and its counter
// is full.
func hostile(t *testing.T, fd int) {
	t.Helper()
	blocking(t, fd)
	if _, err := unix.Write(fd, binary.LittleEndian.AppendUint64(nil, math.MaxUint64-1)); err != nil {
		t.Fatal(err)
	}
}

// blocking clears O_NONBLOCK of an eventfd and sets its counter to 0.
func blocking(t *testing.T, fd int) {
	t.Helper()
	relent(fd)
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
}

// relent lets the blocked writers of an eventfd continue.
func relent(fd int) {
	_ = unix.SetNonblock(fd, true)
	var b [8]byte
	_, _ = unix.Read(fd, b[:])
}

func eachRing(t *testing.T, run func(t *testing.T, o vhosttest.Options)) {
	for name, features := range map[string]uint64{
		"split":        vhost.FeatureVersion1,
		"split-event":  vhost.FeatureVersion1 | vhost.FeatureEventIndex,
		"packed":       vhost.FeatureVersion1 | vhost.FeatureRingPacked,
		"packed-event": vhost.FeatureVersion1 | vhost.FeatureRingPacked | vhost.FeatureEventIndex,
	} {
		t.Run(name, func(t *testing.T) {
			run(t, vhosttest.Options{Num: 64, Features: features, Interrupts: true})
		})
	}
}

// A full call eventfd does not block opening a device.
func TestHostileCallAtOpen(t *testing.T) {
	eachRing(t, func(t *testing.T, o vhosttest.Options) {
		g := guest(t, o)
		calls := []int{g.Rx[0].CallFD(), g.Tx[0].CallFD()}
		for _, fd := range calls {
			hostile(t, fd)
		}
		var d *vhost.Device
		waitfor.Return(t, "Open", func() { relent(calls[0]); relent(calls[1]) }, func() { d = open(t, g, nil) })
		d.State()
	})
}

// A full call eventfd does not block the worker, in either ring.
func TestHostileCallOfWorker(t *testing.T) {
	eachRing(t, func(t *testing.T, o vhosttest.Options) {
		g := guest(t, o)
		d := open(t, g, nil)
		for _, q := range []*vhosttest.Queue{g.Rx[0], g.Tx[0]} {
			hostile(t, q.CallFD())
			q.WantCalls(true)
		}
		for round := range 3 {
			if !g.Tx[0].Send(random(uint64(round), 100)) {
				t.Fatal("no buffer")
			}
			g.Tx[0].Publish()
			var b packet.Batch
			if n := d.Rx()[0].Recv(&b); n != 1 {
				t.Fatalf("%d frames: %s", n, d.Rx()[0].Fault())
			}
			if n := d.Tx()[0].Send(&b, allOffloads[:1]); n != 1 {
				t.Fatalf("%d frames sent", n)
			}
			waitfor.Return(t, "Flush", func() { relent(g.Rx[0].CallFD()) }, d.Tx()[0].Flush)
			waitfor.Return(t, "Release", func() { relent(g.Tx[0].CallFD()) }, d.Rx()[0].Release)
			g.Tx[0].Reclaim()
		}
		for _, q := range []*vhosttest.Queue{g.Rx[0], g.Tx[0]} {
			if !readable(q.CallFD(), 0) {
				t.Errorf("vring %d: the call is lost", q.Index())
			}
		}
	})
}

// A full kick eventfd does not block the worker when it finds a fault.
func TestHostileKickOfBroken(t *testing.T) {
	eachRing(t, func(t *testing.T, o vhosttest.Options) {
		g := guest(t, o)
		d := open(t, g, nil)
		vhosttest.Attacks[0].Do(g.Tx[0])
		hostile(t, g.Tx[0].KickFD())
		waitfor.Return(t, "Recv", func() { relent(g.Tx[0].KickFD()) }, func() {
			var b packet.Batch
			for d.Rx()[0].Recv(&b) >= 0 && d.Rx()[0].Fault() == "" {
				b.Reset()
			}
		})
		if d.Rx()[0].Fault() == "" {
			t.Error("the ring is not broken")
		}
	})
}

// A full err eventfd does not block the end of a session.
func TestHostileErr(t *testing.T) {
	r := newRig(t, false)
	g := guest(t, vhosttest.Options{Features: features})
	f := r.attach(t, g)
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(event)
	if answer, err := f.Call(vhosttest.SetVringErr, vhosttest.Number(1), event); err != nil || answer[0] != 0 {
		t.Fatalf("SET_VRING_ERR: %x, %v", answer, err)
	}
	hostile(t, event)
	r.Break("vring 1: something hostile")
	waitfor.Return(t, "the session", func() { relent(event) }, func() {
		for r.Status().Connected {
			time.Sleep(time.Millisecond)
		}
		r.Close()
	})
	if !readable(event, 0) {
		t.Error("the error descriptor was not signalled")
	}
}

// A front end sends a descriptor that is no eventfd in place of one. The session disconnects it, with
// one log line.
func TestEventIsNoEvent(t *testing.T) {
	for i, request := range []uint32{vhosttest.SetVringKick, vhosttest.SetVringCall, vhosttest.SetVringErr} {
		t.Run(fmt.Sprint(request), func(t *testing.T) {
			r := newRig(t, false)
			f := r.attach(t, guest(t, vhosttest.Options{Features: features}))
			var fd int
			var err error
			switch i {
			case 0:
				fd, err = unix.MemfdCreate("anon_inode:[eventfd]", unix.MFD_CLOEXEC)
			case 1:
				fd, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)
			case 2:
				fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			_, _ = f.Call(request, vhosttest.Number(1), fd)
			eventually(t, "disconnect", func() bool { return !r.Status().Connected })
			if r.log.count("expected an eventfd") != 1 || r.Status().Breaks != 1 {
				t.Errorf("log:\n%s", r.log)
			}
		})
	}
}

// crowd starts threads, each of which waits for the event many times over. The function that it
// returns ends them. The threads poll only for errors, so a signal of the event wakes none of them but
// has to visit all.
func crowd(t *testing.T, fd int) (leave func()) {
	t.Helper()
	const threads, times = 48, 8192
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < times {
		t.Fatalf("%d waiters a poll need RLIMIT_NOFILE, which is %d: %v", times, limit.Cur, err)
	}
	end, err := shm.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range threads {
		waits := make([]unix.PollFd, times)
		for i := range waits {
			waits[i] = unix.PollFd{Fd: int32(fd)}
		}
		waits[0] = unix.PollFd{Fd: int32(end), Events: unix.POLLIN}
		all.Go(func() {
			for {
				if n, err := unix.Poll(waits, -1); n > 0 || err != unix.EINTR {
					return
				}
			}
		})
	}
	return sync.OnceFunc(func() {
		shm.SignalOwn(end)
		all.Wait()
		unix.Close(end)
	})
}

// To signal an eventfd with many waiters takes long. A device that does so fails, and no new device
// with this eventfd opens.
func TestCallWithManyWaiters(t *testing.T) {
	eachRing(t, func(t *testing.T, o vhosttest.Options) {
		g := guest(t, o)
		d := open(t, g, nil)
		leave := crowd(t, g.Tx[0].CallFD())
		defer leave()
		var b packet.Batch
		eventually(t, "the fault of the device", func() bool {
			shm.Suspect()
			g.Tx[0].WantCalls(true)
			g.Tx[0].Send(random(1, 100))
			g.Tx[0].Publish()
			b.Reset()
			if d.Rx()[0].Recv(&b) < 0 {
				return true
			}
			d.Rx()[0].Release()
			g.Tx[0].Reclaim()
			return false
		})
		if reason := d.Rx()[0].Fault(); !strings.Contains(reason, "too many threads wait for it") {
			t.Errorf("the fault is %q", reason)
		}
		d.Close()
		eventually(t, "the refusal of another", func() bool { // Open refuses only when all threads wait
			d, err := g.Open(nil)
			if err == nil {
				d.Close()
			} else if !strings.Contains(err.Error(), "too many threads wait for it") {
				t.Fatal(err)
			}
			return err != nil
		})
		leave()
		open(t, g, nil)
	})
}

// An eventfd with ordinary waiters never counts as slow.
func TestCallIsQuick(t *testing.T) {
	eachRing(t, func(t *testing.T, o vhosttest.Options) {
		g := guest(t, o)
		d := open(t, g, nil)
		var b packet.Batch
		for range 2000 {
			shm.Suspect()
			g.Tx[0].WantCalls(true)
			g.Tx[0].Send(random(1, 100))
			g.Tx[0].Publish()
			b.Reset()
			if n := d.Rx()[0].Recv(&b); n != 1 {
				t.Fatalf("%d frames: %s", n, d.Rx()[0].Fault())
			}
			d.Rx()[0].Release()
			g.Tx[0].Reclaim()
		}
	})
}
