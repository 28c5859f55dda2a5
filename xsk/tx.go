// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"fmt"

	"golang.org/x/sys/unix"

	"weft/packet"
)

// kickBudget is the number of frames that the kernel sends in one system call in copy mode
// (TX_BATCH_SIZE in net/xdp/xsk.c), unless raiseBudget has raised it.
const kickBudget = 32

// maxPostponed is the number of unsent frames at which Postpone makes the system call that sends them.
// In copy mode this call takes about a microsecond for each frame.
const maxPostponed = 64

// kickStalls is the number of system calls in one Flush that may send no frame. After them, Flush
// leaves the rest to a later Flush, because the kernel may be out of completions or buffers.
const kickStalls = 3

// txQueue sends frames on one queue of the NIC. A worker owns it.
type txQueue struct {
	fd         int
	tx         ring[unix.XDPDesc]
	completion ring[uint64]
	record     *record
	marks      []uint8 // marks of the UMEM frames for sending, in shared memory

	umem      []byte
	first     uint64 // UMEM offset of the first of the frames from which this queue sends
	bytes     uint64 // length in bytes of all these frames
	frameSize uint64
	shift     uint // log2 of frameSize
	mtu       int  // length in bytes of the longest frame, Ethernet header included
	zeroCopy  bool

	free      []uint32 // stack of free sending frames
	freeCount int
	next      uint32 // tx index to write next
	published uint32 // tx producer index as last stored
	reaped    uint32 // consumer index of the completion ring as last stored
	backlog   bool   // true if published frames still wait for a system call
	large     []byte // buffer for a frame of several pieces; nil: such frames are not sent
}

// Send copies the frames in the list order into UMEM frames, and writes their descriptors to the tx
// ring. Flush publishes the descriptors.
//
// A copy faults if a guest has truncated its memory. Send makes all copies before it changes the
// queue's state, so after a fault the queue has taken no frame.
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
		if length == 0 { // an empty frame is not sent, because the kernel would lose its UMEM frame
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
		*q.tx.slot(q.next + uint32(count)) = unix.XDPDesc{Addr: addr, Len: uint32(length)}
		count++
		n++
	}
	if count > 0 {
		q.take(count)
	}
	return n
}

// frameFor returns the offset in the UMEM of the free frame that tx slot q.next+i gets.
func (q *txQueue) frameFor(i int) uint64 {
	return q.first + uint64(q.free[q.freeCount-1-i])<<q.shift
}

// gatherPieces copies a long frame into several UMEM frames, its pieces. count is the number of tx
// slots that Send has already used. The result is the number of pieces; 0: too few UMEM frames are
// free, or the frame is too long.
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
		*q.tx.slot(q.next + uint32(i)) = d
	}
	return pieces
}

// take removes count UMEM frames from the free list. Send has just written the tx slots of these frames.
func (q *txQueue) take(count int) {
	q.freeCount -= count
	q.next += uint32(count)
	q.noteSent()
	q.markGiven(count)
}

func (q *txQueue) noteSent() { q.record.sent.Store(q.next) }

// markGiven marks the count UMEM frames that take has just removed from the free list as given to the
// kernel.
func (q *txQueue) markGiven(count int) {
	for _, frame := range q.free[q.freeCount:][:count] {
		q.marks[frame] = markGiven
	}
}

// reap puts the UMEM frames that the kernel has completed back on the free list.
func (q *txQueue) reap() {
	done := q.completion.producer.Load() // pairs with the kernel's release of completion.producer
	if n := done - q.reaped; n == 0 || n > uint32(len(q.completion.slots)) {
		return // more completions than the ring has entries: a bug of the kernel
	}
	q.markDone(done)
	q.publishReaped(done)
}

// markDone marks the UMEM frames in the completion ring before index end as free. It ignores frames that were
// not given to the kernel, so that no frame becomes free twice.
func (q *txQueue) markDone(end uint32) {
	for i := q.reaped; i != end; i++ {
		offset := *q.completion.slot(i) - q.first // kernel memory is read once
		if offset >= q.bytes {
			continue
		}
		frame := uint32(offset >> q.shift) // the address may have an offset within the frame
		if q.marks[frame] != markGiven {
			continue
		}
		q.marks[frame] = markFree
		q.free[q.freeCount] = frame
		q.freeCount++
	}
}

func (q *txQueue) publishReaped(end uint32) {
	q.reaped = end
	q.completion.consumer.Store(end) // pairs with the kernel's acquire of completion.consumer
}

// Flush publishes the written frames and wakes the kernel if necessary. In copy mode one system call
// sends only some of the frames, so Flush repeats the call. The worker's next Flush sends the frames
// that the kernel did not take.
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
		q.backlog = errno != 0 // EBUSY or EAGAIN: a later Flush tries again
		return
	}
	q.kickCopy()
}

// Postpone publishes the written frames, but delays the system call that sends them until maxPostponed
// frames wait. It returns true if a Flush must follow.
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
		default: // device down (ENETDOWN) or gone (ENXIO)
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

// MTU returns the length in bytes of the device's longest frame, Ethernet header
// included.
func (q *txQueue) MTU() int { return q.mtu }

// Offloads returns TakesPartial, because Send finishes checksums during its copy. Send takes no large
// frames, because no driver segments frames from AF_XDP.
func (q *txQueue) Offloads() packet.Offloads { return packet.TakesPartial }

// Close unmaps the rings. It leaves the socket open, because the device owns the socket
// and closes it.
func (q *txQueue) Close() {
	q.tx.unmap()
	q.completion.unmap()
}

// recoverFrames restores the queue's state after the last engine process stopped, from the rings and from the
// record in shared memory. The package comment describes how.
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
			offset := q.tx.slot(i).Addr - q.first
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
