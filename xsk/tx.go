package xsk

import (
	"fmt"

	"golang.org/x/sys/unix"

	"weft/packet"
)

// kickBudget is the number of frames that copy mode sends on one system call
// (TX_BATCH_SIZE in net/xdp/xsk.c); the rest needs further calls. From Linux 6.17 on
// it sends patience of them, see raiseBudget.
const kickBudget = 32

// patience is the number of frames that may wait for a system call while more are
// coming. The call does the work of sending them, during which the worker does no
// other: a microsecond each.
const patience = 64

// kickStalls is the number of calls that may send nothing before Flush leaves
// the rest to the next one: completions or buffers are short at the moment.
const kickStalls = 3

// txQueue sends on one queue of the NIC. Worker owns.
type txQueue struct {
	fd         int
	tx         ring[unix.XDPDesc]
	completion ring[uint64]
	record     *record
	marks      []uint8

	umem      []byte
	first     uint64 // first byte of the queue's sending frames
	bytes     uint64 // of all of them
	frameSize uint64
	shift     uint // log2 of frameSize
	mtu       int  // longest frame, Ethernet header included
	zeroCopy  bool

	free      []uint32 // frames that are free, last in first out; length is RingSize
	freeCount int
	next      uint32 // tx index to write next
	published uint32 // tx producer as last stored
	reaped    uint32 // completion consumer as last stored
	backlog   bool   // published frames wait for a kick
	large     []byte // where a frame of several pieces is gathered first; nil: none are sent
}

// Send gathers into UMEM frames and writes their descriptors; Flush publishes
// them. The tx ring has a slot for every frame, so frames are all that can run
// out.
//
// A copy faults where a guest has truncated its memory. All copies come before take,
// which alone changes what the queue owns: a fault leaves the queue as it was.
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
		if length == 0 { // the kernel swallows such a descriptor, and its frame
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

// frameFor is the address in the UMEM of the frame that goes into slot number i of those
// to come.
func (q *txQueue) frameFor(i int) uint64 {
	return q.first + uint64(q.free[q.freeCount-1-i])<<q.shift
}

// gatherPieces gathers one frame longer than one of the UMEM's into the slots from
// number count on. It returns how many slots the frame fills, 0 where the free frames do
// not suffice.
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

// take takes the frames of the next count slots, which are written, off the free list.
func (q *txQueue) take(count int) {
	q.freeCount -= count
	q.next += uint32(count)
	q.noteSent()
	q.markGiven(count)
}

func (q *txQueue) noteSent() { q.record.sent.Store(q.next) }

// markGiven marks the frames that left the free list last.
func (q *txQueue) markGiven(count int) {
	for _, frame := range q.free[q.freeCount:][:count] {
		q.marks[frame] = markGiven
	}
}

// reap makes the frames that the kernel is done with free.
func (q *txQueue) reap() {
	done := q.completion.producer.Load() // pairs with the kernel's release of completion.producer
	if n := done - q.reaped; n == 0 || n > uint32(len(q.completion.slots)) {
		return // the latter is the kernel's mistake: leave the frames given
	}
	q.markDone(done)
	q.publishReaped(done)
}

// markDone marks the completed frames up to index done as free. An address that
// is not of a frame given is the kernel's mistake, and ignored: what matters is
// that no frame becomes free twice.
func (q *txQueue) markDone(done uint32) {
	for i := q.reaped; i != done; i++ {
		offset := *q.completion.at(i) - q.first // once: kernel memory
		if offset >= q.bytes {
			continue
		}
		frame := uint32(offset >> q.shift) // completions may carry an offset into the frame
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

// Flush publishes and wakes the kernel where it waits for that. In copy mode
// the system call does the sending, some frames at a time, and is repeated
// until all are gone; what the device does not take now goes with a later Flush
// or before the worker sleeps.
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
		q.backlog = errno != 0 // EBUSY, EAGAIN: ask again
		return
	}
	q.kickCopy()
}

// Postpone publishes, and leaves the system call to a later call where few frames
// wait for it.
func (q *txQueue) Postpone() bool {
	if q.next-q.tx.consumer.Load() >= patience { // pairs with the kernel's release of tx.consumer
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
		default: // ENETDOWN, ENXIO: not before the device is up again
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

// MTU is the device's when control set it up, with the Ethernet header.
func (q *txQueue) MTU() int { return q.mtu }

// Offloads: checksums are finished while the frame is copied into the UMEM, in the
// same pass. Large frames are cut before: no driver segments what comes from
// AF_XDP.
func (q *txQueue) Offloads() packet.Offloads { return packet.TakesPartial }

// Close unmaps the rings. The socket is the device's.
func (q *txQueue) Close() {
	q.tx.unmap()
	q.completion.unmap()
}

// recoverFrames takes up where the last owner stopped, wherever that was. See
// the package comment.
func (q *txQueue) recoverFrames() error {
	size := uint32(len(q.tx.slots))
	q.published = q.tx.producer.Load()
	q.next = q.published
	sent := q.record.sent.Load()
	if pending := sent - q.published; int32(pending) > 0 {
		if pending > size {
			return fmt.Errorf("%d frames were to be sent of %d", pending, size)
		}
		for i := q.published; i != sent; i++ {
			offset := q.tx.at(i).Addr - q.first
			if offset >= q.bytes {
				return fmt.Errorf("the tx ring holds an address that is not the queue's")
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
		return fmt.Errorf("%d frames are free and %d out, of %d", q.freeCount, out, size)
	}
	q.backlog = q.tx.consumer.Load() != q.published
	return nil
}
