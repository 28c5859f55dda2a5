// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file finds the position of a ring whose engine has died. It runs in the control process.
//
// While a front end punches a hole into its memory, every access to that memory waits: about 80 ms for each
// GiB of the hole. A goroutine that waits in a page fault keeps its P, a slot of the Go scheduler. The
// control process has one P for each core without a worker, and no garbage collection ends while a P waits.
// So the control process reads and writes the ring by system calls. A thread may wait in a system call,
// too, but the scheduler then takes its P away. Reads do not wait at all, because the kernel locks the file
// only against faults and writes.

// resumePosition returns the position at which ring v continues after its engine has died. If the engine
// has died during a publish, resumePosition first finishes the publish. The caller keeps the ownership of
// fds.
func resumePosition(s DeviceSpec, fds []int, v VringSpec) (pos uint16, err error) {
	c, err := copyRing(s, fds, v)
	defer c.close()
	if err != nil {
		return 0, fmt.Errorf("vring %d: %w", v.Index, err)
	}
	var rec *record
	head := uint16(0) // position of the first descriptor of an interrupted publish
	if s.Record > 0 {
		fd, err := unix.FcntlInt(uintptr(fds[s.Record-1]), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return 0, fmt.Errorf("record of the rings: %w", err)
		}
		if rec, err = openRecord(fd, []VringSpec{v}); err != nil {
			return 0, err
		}
		defer rec.close()
	}
	defer recoverFault(&err)() // the record may fault: a guest that has taken over the engine can truncate it
	if rec != nil {
		state, _ := rec.vring(v.Index)
		head, _, _ = parseRecordState(atomic.LoadUint64(state))
	}
	var r ring
	s.Resume = true
	if err := r.open(v, s, c.memory(), fds, rec, nil, &fault{}); err != nil {
		return 0, err
	}
	if err := c.publish(&r, head); err != nil {
		return 0, fmt.Errorf("vring %d: finish the last publish: %w", v.Index, err)
	}
	return r.lastAvail(), nil
}

// ringCopy has copies of the three areas of a ring (type part), in the order of splitParts or
// packedParts.
type ringCopy []partCopy

// partCopy is a copy of one area of a ring. In the file fd, the area begins at offset. The caller of
// copyRing owns fd.
type partCopy struct {
	user   uint64 // address in the front end's process
	fd     int
	offset int64
	size   int
	// skip and length are the results of checkFile for a mapping of the area, in bytes.
	skip, length int
	asRead       []byte // the area's bytes as read from guest memory
	now          []byte // the copy that the ring changes, outside of Go's heap like all memory of type memory
}

// copyRing copies the areas of a ring from guest memory. The caller closes the copy, also after an
// error.
func copyRing(s DeviceSpec, fds []int, v VringSpec) (c ringCopy, err error) {
	if err := checkRegions(s.Regions); err != nil {
		return nil, err
	}
	if err := checkVring(v, s.Features); err != nil {
		return nil, err
	}
	var r ring
	parts := r.splitParts(v)
	if s.Features&FeatureRingPacked != 0 {
		parts = r.packedParts(v)
	}
	for _, p := range parts {
		copied, err := copyPart(s.Regions, fds, p)
		if err != nil {
			return c, fmt.Errorf("%s: %w", p.name, err)
		}
		c = append(c, copied)
	}
	return c, nil
}

func copyPart(regions []RegionSpec, fds []int, p part) (c partCopy, err error) {
	at := slices.IndexFunc(regions, func(g RegionSpec) bool {
		skip := p.addr - g.UserAddr
		return skip < g.Size && p.size <= g.Size-skip
	})
	if at < 0 {
		return c, fmt.Errorf("user address %#x with %d bytes is not in one memory region", p.addr, p.size)
	}
	g := &regions[at]
	if g.FD < 0 || g.FD >= len(fds) {
		return c, fmt.Errorf("descriptor %d of %d", g.FD, len(fds))
	}
	start := g.MmapOffset + p.addr - g.UserAddr
	skip, length, err := checkFile(RegionSpec{MmapOffset: start, Size: p.size}, fds[g.FD])
	if err != nil {
		return c, err
	}
	c = partCopy{user: p.addr, fd: fds[g.FD], offset: int64(start), skip: int(skip), length: int(length), size: int(p.size), asRead: make([]byte, p.size)}
	for done := 0; done < c.size; {
		n, err := unix.Pread(c.fd, c.asRead[done:], c.offset+int64(done))
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF // the front end has truncated the file
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return c, fmt.Errorf("read %d bytes: %w", c.size, err)
		}
		done += max(n, 0)
	}
	c.now, err = unix.Mmap(-1, 0, c.size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	copy(c.now, c.asRead)
	return c, err
}

func (c ringCopy) close() {
	for i := range c {
		_ = unix.Munmap(c[i].now) // error ignored: it is mapped
	}
}

// memory returns a memory table in which the areas of the ring are the copies.
func (c ringCopy) memory() *memory {
	m := &memory{}
	for i := range c {
		p := &c[i]
		m.regions = append(m.regions, region{size: uint64(p.size), user: p.user, base: uintptr(unsafe.Pointer(&p.now[0]))})
	}
	return m
}

// publish copies to the guest's memory what r has published. The ring r works on the copy c instead of the
// guest's memory. head is the position of the first descriptor that r has published in a packed ring.
func (c ringCopy) publish(r *ring, head uint16) error {
	if r.packed {
		return c[0].publishDescs(int(head&^packedWrap) * descSize)
	}
	used := &c[2]
	index := func(b []byte) uint16 { return binary.LittleEndian.Uint16(b[2:]) }
	return used.advanceUsed(index(used.now) - index(used.asRead))
}

// publishDescs writes the used descriptors to the guest's memory. The driver reads none of them until
// the one at byte offset head has the used flag. So publishDescs writes that descriptor last, and its
// last byte, which has the used flag, after its other bytes.
func (p *partCopy) publishDescs(head int) error {
	differs := func(place int) bool { return !bytes.Equal(p.now[place:place+descSize], p.asRead[place:place+descSize]) }
	if head < 0 || head+descSize > p.size || !differs(head) {
		return nil
	}
	for place := 0; place < p.size; place += descSize {
		if place != head && differs(place) {
			if err := p.write(place, place+descSize); err != nil {
				return err
			}
		}
	}
	if err := p.write(head, head+descSize-1); err != nil {
		return err
	}
	return p.write(head+descSize-1, head+descSize)
}

// write writes p.now[from:to] to the same offsets of the area in the guest's memory.
func (p *partCopy) write(from, to int) error {
	for from < to {
		n, err := unix.Pwrite(p.fd, p.now[from:to], p.offset+int64(from))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		from += max(n, 0)
	}
	return nil
}

// advanceUsed adds n to the used index of a split ring in the guest's memory. The used elements are
// there already. A write of two bytes by pwrite(2) may become visible one byte at a time. So
// advanceUsed uses futex(2), which adds to the aligned word of flags and index atomically, and which
// waits for the page within the system call. futex can add only powers of two. The driver may see the
// steps, but each of them publishes complete elements.
func (p *partCopy) advanceUsed(n uint16) error {
	if n == 0 {
		return nil
	}
	mapped, err := unix.Mmap(p.fd, p.offset-int64(p.skip), p.length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	defer unix.Munmap(mapped)
	for ; n != 0; n &= n - 1 {
		if err := futexAdd(&mapped[p.skip], 16+bits.TrailingZeros16(n)); err != nil {
			return err
		}
	}
	return nil
}

// futexAdd adds 1<<shift atomically to the 32-bit word at the address word.
func futexAdd(word *byte, shift int) error {
	const (
		wakeOp    = 5 // FUTEX_WAKE_OP of linux/futex.h
		private   = 128
		opAdd     = 1
		opShift   = 8 // the operand is an exponent of two
		cmpIsZero = 0
	)
	var woken uint32 // nobody waits for it
	op := uintptr(opAdd|opShift)<<28 | cmpIsZero<<24 | uintptr(shift)<<12
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&woken)), wakeOp|private, 0, 0, uintptr(unsafe.Pointer(word)), op)
	if errno != 0 {
		return fmt.Errorf("futex: %w", errno)
	}
	return nil
}
