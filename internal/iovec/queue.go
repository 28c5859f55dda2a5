// SPDX-License-Identifier: Apache-2.0

package iovec

import "golang.org/x/sys/unix"

// Queue is the common part of queues that make one readv or writev a frame: a
// descriptor, and mapped memory that begins with the vectors. The worker owns it.
type Queue struct {
	FD      int    // the device owns and closes it
	Mem     []byte // outside of the Go heap; nil after Close
	Vectors []Vector
	at      uintptr // address of Vectors
}

// OpenQueue maps n bytes of memory that begin with the given number of vectors.
func OpenQueue(fd, vectors, n int) (Queue, error) {
	mem, err := Map(n)
	if err != nil {
		return Queue{}, err
	}
	return Queue{FD: fd, Mem: mem, Vectors: View(mem, vectors), at: Address(mem)}, nil
}

// Read reads from the descriptor into the first n vectors.
func (q *Queue) Read(n int) (int, unix.Errno) { return Readv(q.FD, q.at, n) }

// WriteTo writes the first n vectors to fd, which need not be the queue's own.
func (q *Queue) WriteTo(fd, n int) unix.Errno {
	_, errno := Writev(fd, q.at, n)
	return errno
}

// Close unmaps the memory. A second call does nothing.
func (q *Queue) Close() {
	if q.Mem != nil {
		_ = unix.Munmap(q.Mem)
		q.Mem, q.Vectors = nil, nil
	}
}

// RxQueue has the methods of a port.Rx whose descriptor is readable while a frame
// waits, so that it needs no request for a wake-up.
type RxQueue struct {
	Queue
	Broken string // reason why the queue fails for good, or ""
}

// Disarm does nothing: Arm made no request.
func (q *RxQueue) Disarm() {}

// WaitFD returns the queue's descriptor.
func (q *RxQueue) WaitFD() int { return q.FD }

// Woken does nothing, because reading frames drains the descriptor.
func (q *RxQueue) Woken() {}

// Polled returns true: a Recv that finds nothing costs a system call.
func (q *RxQueue) Polled() bool { return true }

// Fault returns the reason why Recv fails, or "".
func (q *RxQueue) Fault() string { return q.Broken }

// Close unmaps the memory and makes every later Recv fail.
func (q *RxQueue) Close() {
	if q.Mem != nil {
		q.Broken = "closed"
	}
	q.Queue.Close()
}

// TxQueue has the methods of a port.Tx whose Send writes each frame at once.
type TxQueue struct {
	Queue
	Longest int // length of the longest frame in bytes, Ethernet header included
}

// Flush does nothing: Send has already written the frames.
func (q *TxQueue) Flush() {}

// Postpone returns false: there is nothing left to flush.
func (q *TxQueue) Postpone() bool { return false }

// MTU returns the length of the longest frame in bytes, Ethernet header included.
func (q *TxQueue) MTU() int { return q.Longest }
