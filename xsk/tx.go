// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"fmt"

	"golang.org/x/sys/unix"

	"weft/packet"
)

// kickBudget is the number of frames that copy mode sends in one system call
// (TX_BATCH_SIZE in net/xdp/xsk.c); more frames need further calls. From Linux 6.17
// on, raiseBudget raises it to maxPostponed.
const kickBudget = 32

// maxPostponed is the number of frames at which Postpone no longer waits for more.
// The system call sends the frames itself, about a microsecond each, and the worker
// does nothing else meanwhile.
const maxPostponed = 64

// kickStalls is the number of system calls that may send nothing before Flush leaves
// the rest to a later one. Such a call means that completions or buffers are short at
// the moment.
const kickStalls = 3

// txQueue sends on one queue of the NIC. The worker owns it.
type txQueue struct {
	fd         int
	tx         ring[unix.XDPDesc]
	completion ring[uint64]
	record     *record
	marks      []uint8

	umem      []byte
	first     uint64 // offset in the UMEM of the queue's sending frames
	bytes     uint64 // length of all sending frames
	frameSize uint64
	shift     uint // log2 of frameSize
	mtu       int  // length of the longest frame, Ethernet header included
	zeroCopy  bool

	free      []uint32 // stack of free frames; its length is RingSize
	freeCount int
	next      uint32 // tx index to write next
	published uint32 // tx producer index as last stored
	reaped    uint32 // completion consumer index as last stored
	backlog   bool   // published frames wait for a system call
	large     []byte // buffer for gathering a frame of several pieces; nil: the queue sends no such frames
}

// Send gathers frames into UMEM frames and writes their descriptors; Flush publishes
// them. The tx ring has a slot for every UMEM frame, so only the frames can run out.
//
// A copy faults if a guest has truncated its memory. All copies come before take,
// which alone changes the queue's state. So a fault leaves the queue as it was.
func (q *txQueue) Send(b *packet.Batch, order []uint8) int {
	q.reap()
	n, count := 0, 0
	for _, i := range order {
		f := &b.Frames[i]
		length := f.Len()
		if length > q.mtu {
			f.Drop = packet.DropOversizeFrame
			n++
			continue
		}
		if length == 0 { // the kernel loses the UMEM frame of an empty descriptor
			f.Drop = packet.DropRuntFrame
			n++
			continue
		}
		if uint64(length) > q.frameSize {
			pieces := q.gatherPieces(b, f, length, count)
			if pieces == 0 {
				break
			}
			count += pieces
			n++
			continue
		}
		if count == q.freeCount {
			break
		}
		addr := q.frameFor(count)
		b.GatherFinished(f, q.umem[addr:addr+uint64(length)])
		*q.tx.at(q.next + uint32(count)) = unix.XDPDesc{Addr: addr, Len: uint32(length)}
		count++
		n++
	}
	if count > 0 {
		q.take(count)
	}
	return n
}

// frameFor returns the UMEM address of the frame for the i-th slot from next on.
func (q *txQueue) frameFor(i int) uint64 {
	return q.first + uint64(q.free[q.freeCount-1-i])<<q.shift
}

// gatherPieces gathers a frame longer than a UMEM frame into the slots from number
// count on. It returns the number of slots, 0 if there are not enough free frames.
func (q *txQueue) gatherPieces(b *packet.Batch, f *packet.Frame, length, count int) int {
	pieces := (length + int(q.frameSize) - 1) / int(q.frameSize)
	if pieces > q.freeCount-count || length > len(q.large) {
		return 0
	}
	b.GatherFinished(f, q.large[:length])
	rest := q.large[:length]
	for i := count; i < count+pieces; i++ {
		addr := q.frameFor(i)
		n := copy(q.umem[addr:addr+q.frameSize], rest)
		rest = rest[n:]
		d := unix.XDPDesc{Addr: addr, Len: uint32(n)}
		if len(rest) > 0 {
			d.Options = pieceFollows
		}
		*q.tx.at(q.next + uint32(i)) = d
	}
	return pieces
}

// take removes the frames of the next count slots from the free list. The slots are
// already written.
func (q *txQueue) take(count int) {
	q.freeCount -= count
	q.next += uint32(count)
	q.noteSent()
	q.markGiven(count)
}

func (q *txQueue) noteSent() { q.record.sent.Store(q.next) }

// markGiven records that the last count frames taken from the free list are no longer
// free.
func (q *txQueue) markGiven(count int) {
	for _, frame := range q.free[q.freeCount:][:count] {
		q.marks[frame] = markGiven
	}
}

// reap frees the frames that the kernel has completed.
func (q *txQueue) reap() {
	done := q.completion.producer.Load() // pairs with the kernel's release of completion.producer
	if n := done - q.reaped; n == 0 || n > uint32(len(q.completion.slots)) {
		return // a count beyond the ring's size is a bug of the kernel: do not free any frame
	}
	q.markDone(done)
	q.publishReaped(done)
}

// markDone marks the completed frames up to index done as free. It ignores the
// address of a frame that was not given, which is a bug of the kernel. No frame must
// become free twice.
func (q *txQueue) markDone(done uint32) {
	for i := q.reaped; i != done; i++ {
		offset := *q.completion.at(i) - q.first // kernel memory is read once
		if offset >= q.bytes {
			continue
		}
		frame := uint32(offset >> q.shift) // a completion may carry an offset within the frame
		if q.marks[frame] != markGiven {
			continue
		}
		q.marks[frame] = markFree
		q.free[q.freeCount] = frame
		q.freeCount++
	}
}

func (q *txQueue) publishReaped(done uint32) {
	q.reaped = done
	q.completion.consumer.Store(done) // pairs with the kernel's acquire of completion.consumer
}

// Flush publishes the written frames and wakes the kernel if it waits for that. In
// copy mode the system call itself sends some frames at a time, so Flush repeats it
// until all are sent. Frames that the device does not take now are sent by a later
// Flush, or before the worker sleeps.
func (q *txQueue) Flush() {
	if q.next == q.published && !q.backlog {
		return
	}
	q.publish()
	if !q.tx.wantsWakeup() {
		q.backlog = false
		return
	}
	if q.zeroCopy {
		errno := kickTx(q.fd)
		q.backlog = errno != 0 // after EBUSY or EAGAIN, kick again later
		return
	}
	q.kickCopy()
}

// Postpone publishes the written frames. It leaves the system call to a later Flush
// or Postpone while fewer than maxPostponed frames wait for it.
func (q *txQueue) Postpone() bool {
	if q.next-q.tx.consumer.Load() >= maxPostponed { // pairs with the kernel's release of tx.consumer
		q.Flush()
		return false
	}
	q.publish()
	q.backlog = q.tx.wantsWakeup()
	return q.backlog
}

func (q *txQueue) publish() {
	q.published = q.next
	q.tx.producer.Store(q.next) // pairs with the kernel's acquire of tx.producer
}

func (q *txQueue) kickCopy() {
	consumed := q.tx.consumer.Load()
	stalls := 0
	for range len(q.tx.slots)/kickBudget + kickStalls {
		errno := kickTx(q.fd)
		now := q.tx.consumer.Load() // pairs with the kernel's release of tx.consumer
		if q.backlog = now != q.published; !q.backlog {
			return
		}
		switch errno {
		case 0, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS:
		default: // ENETDOWN, ENXIO: the device must come up first
			return
		}
		if now == consumed {
			if stalls++; stalls == kickStalls {
				return
			}
		}
		consumed = now
	}
}

// MTU returns the length of the device's longest frame at set-up, with the Ethernet
// header.
func (q *txQueue) MTU() int { return q.mtu }

// Offloads returns TakesPartial: checksums are finished while the frame is copied
// into the UMEM. Large frames must be cut before, because no driver segments frames
// from AF_XDP.
func (q *txQueue) Offloads() packet.Offloads { return packet.TakesPartial }

// Close unmaps the rings. The device owns the socket.
func (q *txQueue) Close() {
	q.tx.unmap()
	q.completion.unmap()
}

// recoverFrames continues where the last owner stopped, at whatever point that was.
// See the package comment.
func (q *txQueue) recoverFrames() error {
	size := uint32(len(q.tx.slots))
	q.published = q.tx.producer.Load()
	q.next = q.published
	sent := q.record.sent.Load()
	if pending := sent - q.published; int32(pending) > 0 {
		if pending > size {
			return fmt.Errorf("the record says that %d frames were written, but the ring has only %d", pending, size)
		}
		for i := q.published; i != sent; i++ {
			offset := q.tx.at(i).Addr - q.first
			if offset >= q.bytes {
				return fmt.Errorf("the tx ring has an address outside of the queue's frames")
			}
			q.marks[offset>>q.shift] = markFree
		}
	}
	q.record.sent.Store(q.published)
	q.reaped = q.completion.consumer.Load()
	q.reap()
	q.freeCount = 0
	for frame, mark := range q.marks {
		if mark == markFree {
			q.free[q.freeCount] = uint32(frame)
			q.freeCount++
		}
	}
	out := q.published - q.reaped
	if uint32(q.freeCount)+out != size {
		return fmt.Errorf("the record accounts for %d free frames and the rings for %d: expected %d together", q.freeCount, out, size)
	}
	q.backlog = q.tx.consumer.Load() != q.published
	return nil
}
