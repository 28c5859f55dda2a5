// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"

	"weft/packet"
)

// truncated maps memory as it is after its file was truncated: only the first edge bytes can be read.
func truncated(t *testing.T, bytes int) (addr uintptr, edge uint32) {
	t.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(bytes)); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	edge = uint32(unix.Getpagesize())
	if err := unix.Ftruncate(fd, int64(edge)); err != nil {
		t.Fatal(err)
	}
	return address(mem), edge
}

// faults reports whether a memory access in call has faulted. It sets the same protection as a worker.
func faults(t *testing.T, call func()) (failed bool) {
	t.Helper()
	defer func() {
		if cause := recover(); cause != nil {
			if _, ok := cause.(interface{ Addr() uintptr }); !ok {
				panic(cause)
			}
			failed = true
		}
	}()
	call()
	return false
}

// A memory fault interrupts Send at any frame. No frame of the batch is then sent, and no UMEM frame
// is lost.
func TestNoFrameIsLostInAFault(t *testing.T) {
	const rounds = 2000
	for name, mtu := range map[string]int{"one piece": 1514, "several pieces": 4 * modelFrame} {
		t.Run(name, func(t *testing.T) {
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // SetPanicOnFault is a setting of this goroutine; the defer restores it
			m := newModel(t, ^uint32(0)-100)
			m.tx.mtu, m.tx.large = mtu, make([]byte, mtu)
			addr, edge := truncated(t, 1<<16)
			batch := func(bad int) *packet.Batch {
				b := new(packet.Batch)
				for i := range 8 {
					f, _ := b.Next()
					if at := addr; i == bad {
						b.AddSpan(f, at+uintptr(edge)-100, uint32(mtu)-128)
					} else {
						b.AddSpan(f, at, uint32(min(mtu-128, int(edge)-128)))
					}
					b.Commit(f, 128)
				}
				return b
			}
			order := []uint8{0, 1, 2, 3, 4, 5, 6, 7}
			for round := range rounds {
				b := batch(round % 8)
				if !faults(t, func() { m.tx.Send(b, order) }) {
					t.Fatal("no fault: the test is void")
				}
				m.check("fault")
				if round%5 == 0 {
					m.tx.Flush()
					m.check("flush after a fault")
				}
				if m.tx.freeCount != modelRing || m.tx.next != m.txRing.consumer.Load() {
					t.Fatalf("round %d: %d of %d frames are free, %d to be sent", round, m.tx.freeCount, modelRing,
						m.tx.next-m.txRing.consumer.Load())
				}
			}
			if n := m.tx.Send(batch(-1), order); n != len(order) {
				t.Fatalf("after the fault %d of %d frames were sent", n, len(order))
			}
			m.kill() // the next engine finds the state as it was
			m.check("successor")
			if m.tx.freeCount != modelRing {
				t.Fatalf("the next engine finds %d free frames", m.tx.freeCount)
			}
		})
	}
}
