// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"golang.org/x/sys/unix"

	"weft/internal/iovec"
	"weft/packet"
)

// ringQueue receives from a packet socket with a ring. Checking an empty ring, and
// receiving a frame that fits into a slot, need no system call. A worker owns it.
type ringQueue struct {
	rxQueue // buffers for the frames that are longer than a slot
	ring    ring
}

// newRingRx opens the receive queue of a socket. With takesAll, the socket takes every frame of
// the device.
func newRingRx(fd, slots int, takesAll bool) (*ringQueue, error) {
	q := &ringQueue{}
	q.takesAll = takesAll
	if err := q.init(fd); err != nil {
		return nil, err
	}
	var err error
	if q.ring, err = openRing(fd, slots); err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}

// Recv takes datagrams from the ring, until no slot has one or the batch is full. A slot
// may also have a train. The spans refer to slots; for long frames they refer to the
// queue's buffers. They are valid until Release.
func (q *ringQueue) Recv(b *packet.Batch) int {
	if q.Broken != "" {
		return -1
	}
	was, from, read := b.N, q.ring.next, 0
	for !b.Full() && b.SpansLeft() > 0 {
		if q.train.length > 0 {
			q.nextOfTrain(b)
			continue
		}
		if !q.ring.waits() || q.lent == buffers || read >= iovec.BatchBytes {
			break
		}
		n, ok := q.receive(b, q.ring.slotAt(q.ring.next))
		if !ok {
			break
		}
		read += n
	}
	if q.ring.next != from {
		q.ring.publish()
	}
	if q.Broken != "" && b.N == was {
		return -1
	}
	return b.N - was
}

// receive takes the frame of the next slot s. readBytes is the number of bytes that it has
// read from the socket. ok is false if the frame could not be received.
func (q *ringQueue) receive(b *packet.Batch, s *slot) (readBytes int, ok bool) {
	if q.takesAll {
		q.tag = s.tag() // before take overwrites the status
	}
	switch {
	case s.Snaplen == s.Len:
		q.ring.take()
		q.fromSlot(b, s)
	case s.Status&unix.TP_STATUS_COPY == 0: // the socket's queue was full
		q.ring.take()
		q.truncated(b, s)
	default:
		return q.fromSocket(b)
	}
	return 0, q.Broken == ""
}

// fromSlot makes a frame of the batch from the frame in the taken slot s. If the slot has
// a train, fromSlot stores the train in the queue instead.
func (q *ringQueue) fromSlot(b *packet.Batch, s *slot) {
	at, n, err := s.frame()
	if err != nil {
		q.Broken = err.Error()
		return
	}
	q.note(b, (*[packet.VnetLen]byte)(s.rest[at-packet.VnetLen:]), iovec.Address(s.rest[at:]), n)
}

// truncated counts the frame in the taken slot s as dropped.
func (q *ringQueue) truncated(b *packet.Batch, s *slot) {
	at, n, err := s.frame()
	if err != nil {
		q.Broken = err.Error()
		return
	}
	f, header := b.Next()
	k := copy(header[:rxHeader], s.rest[at:at+n])
	f.Drop = packet.DropRxFull
	b.Commit(f, k)
}

// fromSocket reads the frame of the next slot from the socket, and takes the slot. The
// kernel has queued the frame before it set the slot's status. If the frame is missing,
// an engine was killed after it had read the frame, and the slot has nothing more. ok
// is false if the frame could not be read.
func (q *ringQueue) fromSocket(b *packet.Batch) (n int, ok bool) {
	at := q.buffer()
	q.Vectors[1] = iovec.Vector{Base: at, Len: bufferLen}
	got, errno := q.Read(2)
	if errno == unix.ENETDOWN { // the socket reports once that the device is down, before it returns the frame
		got, errno = q.Read(2)
	}
	switch errno {
	case 0:
		q.ring.take()
		q.lent++
		q.note(b, q.vnet, at, max(got-packet.VnetLen, 0))
		return got, true
	case unix.EINVAL:
		q.ring.take()
		q.unknown(b)
		return 0, true
	case unix.EAGAIN:
		q.ring.take()
		return 0, true
	}
	q.goesOn(errno)
	return 0, false
}

// Release returns the slots to the kernel and makes the buffers available. It keeps the
// slots and buffers of a train of which Recv has returned only a part.
func (q *ringQueue) Release() {
	end := q.ring.next
	if q.train.length > 0 {
		// the last slot has a train that Recv has not returned completely; Recv takes no
		// further slot before it has
		end--
	}
	q.ring.release(end)
	q.rxQueue.Release()
}

// Arm needs no request to the kernel: the socket stays readable as long as a slot has a
// frame. It returns true if frames wait.
func (q *ringQueue) Arm() bool { return q.train.length > 0 || q.ring.waits() }

// Woken clears an error of the socket, for example that the device is down. The error
// would keep the socket readable, because nothing but a read reports it.
func (q *ringQueue) Woken() {
	if q.Arm() {
		return
	}
	_, _ = unix.GetsockoptInt(q.FD, unix.SOL_SOCKET, unix.SO_ERROR)
}

// Polled returns false, because checking the ring needs no system call.
func (q *ringQueue) Polled() bool { return false }

// Close unmaps the queue's memory. Every later Recv fails.
func (q *ringQueue) Close() {
	q.ring.unmap()
	q.rxQueue.Close()
}
