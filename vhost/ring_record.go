package vhost

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// record is the switch's own account of a device's rings, in memory that outlives the
// engine: of a packed ring a word of state, and the elements that are taken and not
// published; of a split ring that the driver transmits on, a word that says how many
// chains are dealt with, of which it may have been shown fewer. QEMU's network front
// end passes no INFLIGHT_SHMFD on, which is the protocol's way to the same end.
// Control makes it, before the device starts, and keeps its descriptor; the engine
// writes.
type record struct{ region *shm.Region }

// The word of state: position of the oldest chain not published, the mark of a
// ring that was ever started, index of that chain's element, number of elements
// that are being published (0: nothing is under way).
const recordValid = 1 << 16

func packedRecordState(first, published, n uint16) uint64 {
	return uint64(first) | recordValid | uint64(published)<<32 | uint64(n)<<48
}

func parseRecordState(s uint64) (first, published, n uint16) {
	return uint16(s), uint16(s >> 32), uint16(s >> 48)
}

// splitRecordValid marks the word of a split ring.
const splitRecordValid = 1 << 17

func splitRecordState(done uint16) uint64 { return splitRecordValid | uint64(done)<<32 }

// splitRecordAhead is the number of chains, of those that the used index does not count yet, that
// such a word says are dealt with; more than any ring has: it says nothing.
func splitRecordAhead(s uint64, published uint16) uint32 {
	if s&splitRecordValid == 0 {
		return MaxRingSize + 1
	}
	return uint32(uint16(s>>32) - published)
}

const (
	recordHeader = 64
	recordStride = recordHeader + 8*MaxRingSize
	recordSize   = 2 * MaxQueuePairs * recordStride // takes memory only where it is touched
)

// NewRecord returns the descriptor of an empty record, which the caller owns.
func NewRecord() (int, error) {
	r, err := shm.Create("vrings", recordSize)
	if err != nil {
		return -1, err
	}
	defer r.Close()
	fd, err := unix.FcntlInt(uintptr(r.FD()), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return -1, fmt.Errorf("record of the rings: %w", err)
	}
	return fd, nil
}

// openRecord owns fd, also when it fails.
func openRecord(fd int) (*record, error) {
	r, err := shm.Open(fd)
	if err != nil {
		return nil, err
	}
	if len(r.Bytes()) < recordSize {
		r.Close()
		return nil, fmt.Errorf("record of %d bytes, expected %d", len(r.Bytes()), recordSize)
	}
	return &record{r}, nil
}

// vring is the word of state and the elements of a ring.
func (r *record) vring(index int) (*uint64, unsafe.Pointer) {
	at := unsafe.Pointer(&r.region.Bytes()[index*recordStride])
	return (*uint64)(at), unsafe.Add(at, recordHeader)
}

func (r *record) close() {
	if r != nil {
		r.region.Close()
	}
}

// takeRecord is openRecord of a descriptor in a list.
func openRecordAt(at int, fds []int) (*record, error) {
	if at < 0 || at >= len(fds) {
		return nil, fmt.Errorf("record: descriptor %d of %d", at, len(fds))
	}
	fd := fds[at]
	fds[at] = -1
	return openRecord(fd)
}

// stoppedAt is where a ring goes on if nobody is left who knows better: what the
// device that is gone has published, or what the record says, finished. Control
// only. The descriptors stay the caller's.
func resumePosition(s DeviceSpec, fds []int, v VringSpec) (at uint16, err error) {
	mem, err := openMemory(s.Regions, fds)
	if err != nil {
		return 0, err
	}
	defer mem.close()
	var rec *record
	if s.Record > 0 {
		fd, err := unix.FcntlInt(uintptr(fds[s.Record-1]), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return 0, fmt.Errorf("record of the rings: %w", err)
		}
		if rec, err = openRecord(fd); err != nil {
			return 0, err
		}
		defer rec.close()
	}
	defer recoverFault(&err)()
	var r ring
	s.Resume = true
	if err := r.open(v, s, mem, fds, rec, nil, &fault{}); err != nil {
		return 0, err
	}
	return r.lastAvail(), nil
}
