// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"golang.org/x/sys/unix"

	"weft/internal/iovec"
	"weft/packet"
)

// rxQueue reads frames from one descriptor of a tap. A worker owns it.
type rxQueue struct {
	iovec.RxQueue         // memory: the vectors of readv and the virtio-net header, then the buffers
	buffers       uintptr // address of the first buffer
	length        int     // length of a buffer in bytes
	lent          int     // number of buffers in use until Release
	read          int     // number of bytes read since Release
	vnet          *[packet.VnetLen]byte
	headerLen     int // length of the virtio-net header in bytes; 0: none
	offloads      packet.Offloads
}

// vectorBytes is the length of the memory before the buffers: vectors and virtio-net
// header.
const (
	vectorBytes = 64
	vnetAt      = 3 * iovec.Size
)

func newRx(fd int, s spec) (*rxQueue, error) {
	length, before := bufferLen, 0
	if s.Vnet {
		length, before = largeBufferLen, packet.VnetLen
	}
	q := &rxQueue{length: length, headerLen: before, offloads: s.Takes}
	var err error
	if q.Queue, err = iovec.OpenQueue(fd, 3, vectorBytes+buffers*length); err != nil {
		return nil, err
	}
	q.vnet, q.buffers = (*[packet.VnetLen]byte)(q.Mem[vnetAt:]), iovec.Address(q.Mem)+vectorBytes
	q.Vectors[0] = iovec.Vector{Base: iovec.Address(q.vnet[:]), Len: uintptr(before)}
	return q, nil
}

// Recv reads frames, one per system call, until none waits or the batch is full. The spans refer to
// the queue's buffers and are valid until Release. A frame that is longer than a buffer is dropped.
func (q *rxQueue) Recv(b *packet.Batch) int {
	n, _ := q.recv(b, packet.BatchSize)
	return n
}

// recv does the same as Recv for at most limit frames. empty is true if a read has found no frame.
func (q *rxQueue) recv(b *packet.Batch, limit int) (n int, empty bool) {
	if q.Broken != "" {
		return -1, false
	}
	for ; n < limit && !b.Full() && q.lent < buffers && q.read < iovec.BatchBytes && b.SpansLeft() > 0; n++ {
		f, header := b.Next()
		buffer := q.buffers + uintptr(q.lent*q.length)
		q.Vectors[1] = iovec.Vector{Base: iovec.Address(header[:]), Len: headerLen}
		q.Vectors[2] = iovec.Vector{Base: buffer, Len: uintptr(q.length)}
		got, errno := q.Read(3)
		if errno != 0 {
			if !q.goesOn(errno) && n == 0 {
				return -1, false
			}
			return n, true
		}
		if q.headerLen > 0 {
			got = max(got-q.headerLen, 0)
			f.DecodeVnet(q.vnet, q.offloads, true)
		}
		if got > headerLen {
			b.AddSpan(f, buffer, uint32(got-headerLen))
			q.lent++
			q.read += got
		}
		if got == headerLen+q.length {
			f.Drop = packet.DropOversizeFrame
		}
		b.Commit(f, min(got, headerLen))
	}
	return n, false
}

// goesOn reports whether the queue can still be used after a read error. If it cannot, goesOn stores
// the reason in q.Broken.
func (q *rxQueue) goesOn(errno unix.Errno) bool {
	switch errno {
	case unix.EAGAIN:
		return true
	case unix.ENOMEM, unix.ENOBUFS:
		return true // the kernel is out of memory at the moment; the descriptor stays readable
	case unix.EBADFD, unix.EFAULT:
		// The device is deleted: EFAULT while the tun driver detaches the descriptor,
		// EBADFD afterwards.
		q.Broken = "the tap device was removed"
	default:
		q.Broken = errno.Error()
	}
	return false
}

// Release makes all buffers available for the next reads.
func (q *rxQueue) Release() { q.lent, q.read = 0, 0 }

// Arm does nothing, because the descriptor stays readable as long as a frame waits.
func (q *rxQueue) Arm() bool { return false }
