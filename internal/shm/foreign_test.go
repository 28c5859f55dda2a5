// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"encoding/binary"
	"math"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/waitfor"
)

func blockingEvent(t *testing.T, flags int) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func fill(t *testing.T, fd int) {
	t.Helper()
	if _, err := unix.Write(fd, binary.LittleEndian.AppendUint64(nil, math.MaxUint64-1)); err != nil {
		t.Fatal(err)
	}
}

func foreign(t *testing.T, fd int) *Foreign {
	t.Helper()
	e := NewForeign(fd)
	if e.via == nil {
		t.Fatal("no context: the test would write")
	}
	return e
}

func count(t *testing.T, fd int) uint64 {
	t.Helper()
	var b [8]byte
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Read(fd, b[:]); err != nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b[:])
}

// A front end cannot make a signal block, neither by a full counter nor by clearing O_NONBLOCK.
func TestForeignNeverBlocks(t *testing.T) {
	for name, flags := range map[string]int{"counter": 0, "semaphore": unix.EFD_SEMAPHORE} {
		t.Run(name, func(t *testing.T) {
			fd := blockingEvent(t, flags)
			e := foreign(t, fd)
			empty := func() { count(t, fd) }
			fill(t, fd)
			waitfor.Return(t, "Signal of a full event", empty, e.Signal)
			waitfor.Return(t, "Signal beyond the maximum", empty, e.Signal)
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, err := unix.Poll(p, 0); n != 1 || err != nil {
				t.Errorf("a full event is not readable: %v", err)
			}
		})
	}
}

// Each signal adds one to the counter and wakes a reader, also if there are more signals than the
// completion ring has entries.
func TestForeignSignals(t *testing.T) {
	const signals = 10_000
	fd := blockingEvent(t, 0)
	e := foreign(t, fd)
	for range signals {
		e.Signal()
	}
	if n := count(t, fd); n != signals {
		t.Errorf("%d signals counted %d", signals, n)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	woken := make(chan struct{})
	go func() {
		defer close(woken)
		var b [8]byte
		unix.Read(fd, b[:])
	}()
	e.Signal()
	<-woken
}

// Several threads may signal one eventfd at the same time through one context.
func TestForeignShared(t *testing.T) {
	const threads, signals = 8, 20_000
	fd := blockingEvent(t, 0)
	var all sync.WaitGroup
	for range threads {
		e := foreign(t, fd)
		all.Go(func() {
			for range signals {
				e.Signal()
			}
		})
	}
	all.Wait()
	if n := count(t, fd); n != threads*signals {
		t.Errorf("%d signals counted %d", threads*signals, n)
	}
}

// Without an AIO context, a signal is a write to the eventfd.
func TestForeignWithoutContext(t *testing.T) {
	fd := blockingEvent(t, 0)
	e := foreign(t, fd)
	e.via = nil
	fill(t, fd)
	waitfor.Return(t, "Signal", func() { count(t, fd) }, e.Signal)
	count(t, fd)
	e.Signal()
	if n := count(t, fd); n != 1 {
		t.Errorf("the counter is %d", n)
	}
}

// CheckEvent refuses every file descriptor that is not an eventfd.
func TestForeignRefuses(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "anon_inode:[eventfd]")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(set)
	for what, fd := range map[string]int{"file": int(file.Fd()), "socket": pair[0], "epoll": set, "none": 1 << 20} {
		if err := CheckEvent(fd); err == nil {
			t.Errorf("%s was taken for an eventfd", what)
		}
	}
	var none *Foreign
	none.Signal()
	none.Place(3)
}

// An interrupt makes single signals slow. Therefore an eventfd is refused only if all its signals are
// slow.
func TestProbe(t *testing.T) {
	const slow, fast = SlowSignals*MaxSignalNS + 1, 1000
	for _, c := range []struct {
		signals []int64
		refused bool
	}{
		{[]int64{fast}, false},
		{[]int64{slow, slow, fast}, false},
		{[]int64{slow, slow, slow}, true},
	} {
		n := 0
		err := probe(func() int64 { n++; return c.signals[n-1] })
		if (err != nil) != c.refused || n != len(c.signals) {
			t.Errorf("signals of %d ns: %v after %d of them", c.signals, err, n)
		}
	}
}

func TestForeignAllocatesNothing(t *testing.T) {
	e := foreign(t, blockingEvent(t, 0))
	if n := testing.AllocsPerRun(1000, func() { e.Signal() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := testing.AllocsPerRun(1000, func() { Suspect(); e.Signal() }); n != 0 {
		t.Errorf("%v allocations where signals are measured", n)
	}
}

func BenchmarkSignal(b *testing.B) {
	fd, err := NewEvent()
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fd)
	e := NewForeign(fd)
	b.Run("own", func(b *testing.B) {
		for b.Loop() {
			SignalOwn(fd)
		}
	})
	b.Run("foreign", func(b *testing.B) {
		for b.Loop() {
			e.Signal()
		}
	})
}
