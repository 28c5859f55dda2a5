// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"golang.org/x/sys/unix"

	"weft/internal/iovec"
	"weft/packet"
)

// ringQueue receives from a packet socket with a ring. It makes no system call to look for frames, or
// to receive a frame that fits into a slot. A worker owns it.
type ringQueue struct {
	rxQueue // buffers for the frames that are longer than a slot
	ring    ring
}

// newRingRx opens the receive queue of socket fd, whose ring has slots slots. takesAll says that the
// socket takes every frame of the device.
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

// Recv takes datagrams from the ring, until no slot has one or the batch is full. A slot may have a
// train (merged datagrams), from which Recv makes several frames. The spans refer to slots or, for
// frames longer than a slot, to the queue's buffers. They are valid until Release.
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

// receive takes the next slot s and receives its frame. readBytes is the number of bytes that it has read
// from the socket; it is 0 if the whole frame was in the slot. ok is false if the frame could not be
// received.
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

// fromSlot appends the frame in the taken slot s to the batch. If the slot has a train, fromSlot
// stores the train in q.train instead.
func (q *ringQueue) fromSlot(b *packet.Batch, s *slot) {
	at, n, err := s.frame()
	if err != nil {
		q.Broken = err.Error()
		return
	}
	q.note(b, (*[packet.VnetLen]byte)(s.rest[at-packet.VnetLen:]), iovec.Address(s.rest[at:]), n)
}

// truncated appends the beginning of the frame in the taken slot s, marked as dropped: the slot was
// too short for the frame, and the socket had no room for it.
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

// fromSocket takes the next slot and reads its frame from the socket. The kernel queues the frame in the
// socket before it sets the slot's status. So if the socket has no frame, an earlier engine process has read
// it and was killed before it took the slot. In this case, fromSocket only takes the slot. n is the number of
// bytes read. ok is false if the read failed.
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

// Release returns the slots to the kernel and makes the queue's buffers available again. If Recv has not
// returned all frames of a train yet, Release keeps the slot and the buffer of the train.
func (q *ringQueue) Release() {
	end := q.ring.next
	if q.train.length > 0 {
		// The last slot has a train from which Recv has not returned all frames yet. Recv takes no further slot
		// before it has returned them.
		end--
	}
	q.ring.release(end)
	q.rxQueue.Release()
}

// Arm reports whether frames wait. It needs no request to the kernel, because the socket stays
// readable as long as a slot has a frame.
func (q *ringQueue) Arm() bool { return q.train.length > 0 || q.ring.waits() }

// Woken clears a pending error of the socket, for example that the device is down. The error would
// keep the socket readable until something reads it.
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
