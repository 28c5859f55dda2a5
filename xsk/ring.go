// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// Sizes of the kernel's structures in include/uapi/linux/if_xdp.h.
var (
	_ [16]byte  = [unsafe.Sizeof(unix.XDPDesc{})]byte{}
	_ [128]byte = [unsafe.Sizeof(unix.XDPMmapOffsets{})]byte{}
	_ [32]byte  = [unsafe.Sizeof(unix.XDPUmemReg{})]byte{}
	_ [48]byte  = [unsafe.Sizeof(unix.XDPStatistics{})]byte{}
)

// ring is one of the four rings of a socket, shared with the kernel
// (Documentation/networking/af_xdp.rst). Indexes only increase and wrap at 32 bits. T
// is a descriptor or a UMEM address.
type ring[T unix.XDPDesc | uint64] struct {
	// producer pairs with the kernel's smp_store_release and smp_load_acquire of ring->producer. The worker
	// loads producer before it reads slots, and stores it after it has written slots. consumer pairs in the same
	// way in the other direction (net/xdp/xsk_queue.h).
	producer *atomic.Uint32
	consumer *atomic.Uint32
	flags    *atomic.Uint32
	slots    []T
	mask     uint32
	mem      []byte
}

// mapRing maps a ring of n entries of the socket fd. pageOffset selects the ring for mmap(2).
func mapRing[T unix.XDPDesc | uint64](fd int, pageOffset int64, offsets unix.XDPRingOffset, n int) (ring[T], error) {
	var t T
	size := int(offsets.Desc) + n*int(unsafe.Sizeof(t))
	mem, err := unix.Mmap(fd, pageOffset, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return ring[T]{}, fmt.Errorf("map ring of %d entries: %w", n, err)
	}
	return makeRing[T](mem, offsets, n), nil
}

// makeRing returns a ring of n entries, a power of two, in the mapped memory mem.
func makeRing[T unix.XDPDesc | uint64](mem []byte, offsets unix.XDPRingOffset, n int) ring[T] {
	return ring[T]{
		producer: &shm.View[atomic.Uint32](mem, int(offsets.Producer), 1)[0],
		consumer: &shm.View[atomic.Uint32](mem, int(offsets.Consumer), 1)[0],
		flags:    &shm.View[atomic.Uint32](mem, int(offsets.Flags), 1)[0],
		slots:    shm.View[T](mem, int(offsets.Desc), n),
		mask:     uint32(n - 1),
		mem:      mem,
	}
}

// slot returns the slot of index i, which may be larger than the number of slots.
func (r *ring[T]) slot(i uint32) *T { return &r.slots[i&r.mask] }

// wantsWakeup reports whether the kernel needs a system call to notice new entries. The caller must store the
// producer index before. No wake-up is lost: this store and the load of the flag are sequentially consistent,
// and the driver reads the index again after it has set the flag.
func (r *ring[T]) wantsWakeup() bool { return r.flags.Load()&unix.XDP_RING_NEED_WAKEUP != 0 }

func (r *ring[T]) unmap() {
	if r.mem != nil {
		_ = unix.Munmap(r.mem)
		r.mem, r.slots = nil, nil
	}
}

// address returns the address of mapped memory.
func address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// kickTx makes the kernel send the frames of the tx ring. The system call does not block. It bypasses
// the Go scheduler.
func kickTx(fd int) unix.Errno {
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
		if errno != unix.EINTR {
			return errno
		}
	}
}

// kickRx makes the driver take free frames from the fill ring. The system call does not block. It
// bypasses the Go scheduler.
func kickRx(fd int) unix.Errno {
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
		if errno != unix.EINTR {
			return errno
		}
	}
}

// epollControl adds a socket to an epoll set or removes it, depending on op. It ignores errors: they
// only mean that this was already done.
func epollControl(set, op, fd int) {
	event := unix.EpollEvent{Events: unix.EPOLLIN}
	_, _, _ = unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(set), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(&event)), 0, 0)
}

// mmapOffsets returns where the indexes, flags and slots are in the mapped rings of a socket.
func mmapOffsets(fd int) (unix.XDPMmapOffsets, error) {
	var off unix.XDPMmapOffsets
	err := getsockopt(fd, unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&off), unsafe.Sizeof(off))
	return off, err
}

// statistics returns the kernel's counters of the socket since its creation.
func statistics(fd int) (unix.XDPStatistics, error) {
	var s unix.XDPStatistics
	err := getsockopt(fd, unix.XDP_STATISTICS, unsafe.Pointer(&s), unsafe.Sizeof(s))
	return s, err
}

func getsockopt(fd, option int, value unsafe.Pointer, size uintptr) error {
	n := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option),
		uintptr(value), uintptr(unsafe.Pointer(&n)), 0)
	switch {
	case errno != 0:
		return errno
	case uintptr(n) != size:
		return unix.EOPNOTSUPP // kernels before 5.4 return fewer counters
	}
	return nil
}

// registerUmem registers mem as the socket's UMEM.
func registerUmem(fd int, mem []byte, frameSize int) error {
	reg := unix.XDPUmemReg{Addr: uint64(address(mem)), Len: uint64(len(mem)), Size: uint32(frameSize)}
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG,
		uintptr(unsafe.Pointer(&reg)), unsafe.Sizeof(reg), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
