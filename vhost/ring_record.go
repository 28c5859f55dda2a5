// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// record has the state of a device's rings that the next engine needs. It is in shared memory that outlives
// the engine. For a packed ring it has a state word and the used elements that are not published. For a
// split ring on which the guest transmits, it has the number of completed chains. INFLIGHT_SHMFD serves the
// same purpose, but QEMU's network front end lacks it. The control process makes the record before the
// device starts. The engine process writes it.
type record struct{ region *shm.Region }

// recordValid marks the state word of a packed ring in the record as written. The word has four fields of
// 16 bits, from the lowest: the position of the oldest unpublished chain; this mark; the index of that
// chain's used element; the number of used elements of a publish in progress (0: no publish).
const recordValid = 1 << 16

func packedRecordState(first, published, n uint16) uint64 {
	return uint64(first) | recordValid | uint64(published)<<32 | uint64(n)<<48
}

func parseRecordState(s uint64) (first, published, n uint16) {
	return uint16(s), uint16(s >> 32), uint16(s >> 48)
}

// splitRecordValid marks the state word of a split ring in the record as written. The word's upper half has
// the number of completed chains.
const splitRecordValid = 1 << 17

func splitRecordState(usedCount uint16) uint64 { return splitRecordValid | uint64(usedCount)<<32 }

// splitRecordAhead returns how many completed chains of a split ring are not published. s is the ring's
// state word in the record, and published the ring's used index. If s is invalid, the result exceeds
// MaxRingSize.
func splitRecordAhead(s uint64, published uint16) uint32 {
	if s&splitRecordValid == 0 {
		return MaxRingSize + 1
	}
	return uint32(uint16(s>>32) - published)
}

const (
	recordHeader = 64
	recordStride = recordHeader + 8*MaxRingSize
	// leastRecordPairs is the number of queue pairs of the smallest record. Engines of
	// earlier versions refuse a smaller one.
	leastRecordPairs = 16
)

// NewRecord returns the descriptor of an empty record, the shared memory in which the engine stores the
// positions of a device's rings. pairs is the number of the device's queue pairs. The caller owns the
// descriptor.
func NewRecord(pairs int) (int, error) {
	r, err := shm.Create("vrings", 2*max(pairs, leastRecordPairs)*recordStride)
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

// openRecord maps a record of the rings of a device. It takes ownership of fd, also if it
// fails.
func openRecord(fd int, rings []VringSpec) (*record, error) {
	r, err := shm.Open(fd)
	if err != nil {
		return nil, err
	}
	for _, v := range rings {
		if v.Index < 2*MaxQueuePairs && len(r.Bytes()) < (v.Index+1)*recordStride { // checkVring refuses other indexes
			size := len(r.Bytes())
			r.Close()
			return nil, fmt.Errorf("record of %d bytes, vring %d is not in it", size, v.Index)
		}
	}
	return &record{r}, nil
}

// vring returns the addresses of a ring's state word and of its used elements in the record.
func (r *record) vring(index int) (*uint64, unsafe.Pointer) {
	at := unsafe.Pointer(&r.region.Bytes()[index*recordStride])
	return (*uint64)(at), unsafe.Add(at, recordHeader)
}

func (r *record) close() {
	if r != nil {
		r.region.Close()
	}
}

// openRecordAt maps the record whose descriptor is fds[index]. It takes ownership of the descriptor
// and sets fds[index] to -1.
func openRecordAt(index int, fds []int, rings []VringSpec) (*record, error) {
	if index < 0 || index >= len(fds) {
		return nil, fmt.Errorf("record: descriptor %d of %d", index, len(fds))
	}
	fd := fds[index]
	fds[index] = -1
	return openRecord(fd, rings)
}
