// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"fmt"

	"golang.org/x/sys/unix"

	"weft/packet"
)

// rxHeader is the number of bytes of a received frame that are copied into its header
// buffer: outer headers and 128 bytes of the inner frame, rounded up to cache lines.
const rxHeader = 192

// rxQueue receives from one queue of the network card. A worker owns it.
type rxQueue struct {
	fd     int
	rx     ring[unix.XDPDesc]
	fill   ring[uint64]
	record *record

	umem      []byte
	umemAt    uintptr // address of umem[0]
	first     uint64  // UMEM offset of the first of the frames into which the kernel receives for this queue
	bytes     uint64  // length in bytes of all these frames
	frameSize uint64

	// index of the next rx entry to read; it is ahead of the consumer index by the number of
	// unreleased frames
	next     uint32
	seen     uint32 // rx producer index as last loaded
	released uint32 // rx consumer index as last stored
	// index of the next fill entry to write; it is ahead of the producer index by the number of
	// unreleased frames
	filled uint32

	// tx is the tx ring of the same socket; it is empty if the queue does not send. Before the worker sleeps,
	// Arm wakes the driver if this ring still has frames to send.
	tx    ring[unix.XDPDesc]
	wait  int // epoll set for WaitFD; it contains the socket only while the worker sleeps
	armed bool
	// busyPoll says that the kernel runs the device's receive path within the system calls of this
	// queue, instead of in interrupts.
	busyPoll bool
	// pieces says that a received frame may span several UMEM frames.
	pieces bool
	fault  string
}

// newWaitSet returns a new epoll set for WaitFD.
func newWaitSet() (int, error) { return unix.EpollCreate1(unix.EPOLL_CLOEXEC) }

// Recv takes frames from the rx ring. Their spans refer to the UMEM and are valid until Release. Recv already
// writes the frames' UMEM addresses to the fill ring. Release makes these entries visible to the kernel.
func (q *rxQueue) Recv(b *packet.Batch) int {
	if q.fault != "" {
		return -1
	}
	before := b.N
	room := min(packet.BatchSize-b.N, b.SpansLeft()/maxPieces)
	if q.seen-q.next < uint32(room) {
		q.seen = q.rx.producer.Load() // pairs with the kernel's release of rx.producer
	}
	n := q.seen - q.next
	if n == 0 && q.busyPoll {
		kickRx(q.fd) // with busy polling, the kernel runs the device's receive path in this system call
		q.seen = q.rx.producer.Load()
		n = q.seen - q.next
	}
	if n == 0 {
		return 0
	}
	if n > uint32(len(q.rx.slots)) {
		return q.broken("the rx ring's producer is ahead by more than the ring's size")
	}
	n = min(n, uint32(room))
	// The index in the record is stored before the frames are read. If a frame kills the engine process, the
	// next one discards the frames before this index.
	if !q.pieces {
		q.record.lent.Store(q.next + n)
	}
	for range n {
		d, ok := q.take()
		switch {
		case !ok:
			return q.broken("the rx ring has an address outside of the queue's frames")
		case q.pieces && d.Options&pieceFollows != 0:
			if !q.appendPieces(b, d) {
				return q.broken("the rx ring has a frame without a last piece")
			}
		default:
			q.appendFrame(b, d.Addr, d.Len)
		}
		if q.next == q.seen {
			break
		}
	}
	return b.N - before
}

// take moves one descriptor from the rx ring to the fill ring, but does not yet show it to the kernel. ok is
// false if the descriptor's memory does not belong to the queue.
func (q *rxQueue) take() (d unix.XDPDesc, ok bool) {
	if q.pieces { // with frames in pieces, the number of descriptors of a batch is not known in advance
		q.record.lent.Store(q.next + 1)
	}
	d = *q.rx.slot(q.next) // kernel memory is read once
	offset := d.Addr & (q.frameSize - 1)
	frame := d.Addr - offset
	if frame-q.first >= q.bytes || uint64(d.Len) > q.frameSize-offset {
		return d, false
	}
	*q.fill.slot(q.filled) = frame
	q.filled++
	q.next++
	return d, true
}

// appendPieces appends a frame that takes several UMEM frames, called its pieces. firstPiece is the
// descriptor of the first one. appendPieces returns false if the last piece is missing. That is an error,
// because the kernel publishes all pieces of a frame at once.
func (q *rxQueue) appendPieces(b *packet.Batch, firstPiece unix.XDPDesc) bool {
	f, header := b.Next()
	n := uint32(copy(header[:rxHeader], q.umem[firstPiece.Addr:firstPiece.Addr+uint64(firstPiece.Len)]))
	whole := firstPiece.Len <= n || b.AddSpan(f, q.umemAt+uintptr(firstPiece.Addr)+uintptr(n), firstPiece.Len-n)
	for range maxPieces {
		if q.next == q.seen {
			break
		}
		d, ok := q.take()
		if !ok {
			break
		}
		whole = whole && (d.Len == 0 || b.AddSpan(f, q.umemAt+uintptr(d.Addr), d.Len))
		if d.Options&pieceFollows == 0 {
			if whole {
				b.Commit(f, int(n))
			} else {
				b.Abandon(f)
			}
			return true
		}
	}
	b.Abandon(f)
	return false
}

// appendFrame appends to the batch the frame of length bytes at UMEM offset addr.
func (q *rxQueue) appendFrame(b *packet.Batch, addr uint64, length uint32) {
	f, header := b.Next()
	n := uint32(copy(header[:rxHeader], q.umem[addr:addr+uint64(length)]))
	f.SetOrigin(q.umemAt + uintptr(addr))
	if length > n {
		b.AddSpan(f, q.umemAt+uintptr(addr)+uintptr(n), length-n)
	}
	b.Commit(f, int(n))
}

func (q *rxQueue) broken(reason string) int {
	q.fault = reason
	return -1
}

// Release returns the received frames to the kernel. It first publishes them on the
// fill ring, and then consumes them on the rx ring.
func (q *rxQueue) Release() {
	if q.next == q.released {
		return
	}
	q.publishFill()
	q.publishConsumed()
	q.wakeFill()
}

func (q *rxQueue) publishFill() {
	q.fill.producer.Store(q.filled) // pairs with the kernel's acquire of fill.producer
}

func (q *rxQueue) publishConsumed() {
	q.released = q.next
	q.rx.consumer.Store(q.next) // pairs with the kernel's acquire of rx.consumer
}

func (q *rxQueue) wakeFill() {
	if q.fill.wantsWakeup() {
		kickRx(q.fd)
	}
}

// Arm adds the socket to the epoll set WaitFD until Disarm. If the socket were always in the set, copy mode
// would lose a tenth of its throughput, because the kernel locks the list of waiters for every sent frame.
// Arm also wakes a driver that waits for free frames, or that has frames to send. It returns true if received
// frames wait.
func (q *rxQueue) Arm() bool {
	if !q.armed {
		q.armed = true
		epollControl(q.wait, unix.EPOLL_CTL_ADD, q.fd)
	}
	q.wakeFill()
	if len(q.tx.slots) > 0 && q.tx.producer.Load() != q.tx.consumer.Load() && q.tx.wantsWakeup() {
		kickTx(q.fd)
	}
	return q.fault == "" && q.rx.producer.Load() != q.next
}

// Disarm removes the socket from the epoll set of WaitFD.
func (q *rxQueue) Disarm() {
	if q.armed {
		q.armed = false
		epollControl(q.wait, unix.EPOLL_CTL_DEL, q.fd)
	}
}

// WaitFD returns the epoll set. It is readable as long as frames wait, so Woken has
// nothing to drain.
func (q *rxQueue) WaitFD() int { return q.wait }
func (q *rxQueue) Woken()      {}

// Polled returns false, because reading the ring needs no system call.
func (q *rxQueue) Polled() bool { return false }

// Fault returns the reason why Recv fails; "": it does not.
func (q *rxQueue) Fault() string { return q.fault }

// Close unmaps the rings and closes the epoll set. The device owns the socket and
// closes it.
func (q *rxQueue) Close() {
	q.rx.unmap()
	q.fill.unmap()
	q.tx.unmap()
	if q.wait >= 0 {
		unix.Close(q.wait)
		q.wait = -1
	}
	q.fault = "closed"
}

// fillAll puts all UMEM frames for receiving of a queue on its new fill ring, from the UMEM offset
// first on. It runs before the socket is bound, because a zero-copy driver takes frames during the
// bind.
func fillAll(fill *ring[uint64], first, frameSize uint64) {
	index := fill.producer.Load()
	for i := range uint64(len(fill.slots)) {
		*fill.slot(index) = first + i*frameSize
		index++
	}
	fill.producer.Store(index) // pairs with the kernel's acquire of fill.producer
}

// recoverIndexes sets the queue's indexes to the position at which the last engine process stopped. The
// package comment describes how.
func (q *rxQueue) recoverIndexes() error {
	size := uint32(len(q.fill.slots))
	q.filled, q.released = q.fill.producer.Load(), q.rx.consumer.Load()
	out := q.filled - q.released
	if out < size || out > 2*size {
		return fmt.Errorf("the rings account for %d receiving frames: expected %d", out, size)
	}
	q.next = q.filled - size
	q.publishConsumed()
	if err := q.discardLent(); err != nil {
		return err
	}
	q.wakeFill() // wakes the driver, because the last engine may have died before it did so
	return nil
}

// discardLent releases the frames that the last engine process has received but not released. It does not
// read them, because one of them may have killed that process.
func (q *rxQueue) discardLent() error {
	q.seen = q.rx.producer.Load()
	lent := q.record.lent.Load() - q.next
	if int32(lent) <= 0 {
		return nil
	}
	if lent > q.seen-q.next {
		return fmt.Errorf("the record says that %d frames were lent, but only %d were received", lent, q.seen-q.next)
	}
	for range lent {
		d := *q.rx.slot(q.next)
		frame := d.Addr &^ (q.frameSize - 1)
		if frame-q.first >= q.bytes {
			return fmt.Errorf("the rx ring has an address outside of the queue's frames")
		}
		*q.fill.slot(q.filled) = frame
		q.filled++
		q.next++
	}
	q.Release()
	return nil
}
