// SPDX-License-Identifier: Apache-2.0

package iovec

import "golang.org/x/sys/unix"

// Queue is the common part of queues that receive or send through a file descriptor with readv(2) and
// writev(2). Its mapped memory begins with the vectors of these calls. A worker owns it.
type Queue struct {
	FD      int    // the device owns and closes it
	Mem     []byte // memory outside of the Go heap; nil after Close
	Vectors []Vector
	addr    uintptr // address of Vectors
}

// OpenQueue returns a queue with n bytes of mapped memory, which begin with the given number of
// vectors.
func OpenQueue(fd, vectors, n int) (Queue, error) {
	mem, err := Map(n)
	if err != nil {
		return Queue{}, err
	}
	return Queue{FD: fd, Mem: mem, Vectors: View(mem, vectors), addr: Address(mem)}, nil
}

// Read reads a frame from the queue's file descriptor into the first n vectors. It returns the frame's
// length in bytes.
func (q *Queue) Read(n int) (int, unix.Errno) { return Readv(q.FD, q.addr, n) }

// WriteTo writes the bytes of the first n vectors to the file descriptor fd, which may be another
// queue's.
func (q *Queue) WriteTo(fd, n int) unix.Errno {
	_, errno := Writev(fd, q.addr, n)
	return errno
}

// Close unmaps the memory. Calling Close again does nothing.
func (q *Queue) Close() {
	if q.Mem != nil {
		_ = unix.Munmap(q.Mem)
		q.Mem, q.Vectors = nil, nil
	}
}

// RxQueue implements the methods of port.Rx that are the same for all queues with this property: the file
// descriptor is readable while a frame waits.
type RxQueue struct {
	Queue
	Broken string // reason why Recv fails for good, or ""
}

// Disarm does nothing, because Arm has asked the device for no notifications.
func (q *RxQueue) Disarm() {}

// WaitFD returns the queue's descriptor.
func (q *RxQueue) WaitFD() int { return q.FD }

// Woken does nothing: the descriptor need not be read here, because it is no longer readable once Recv has
// read all frames.
func (q *RxQueue) Woken() {}

// Polled returns true, because a Recv that finds no frame costs a system call. A worker therefore calls
// Recv less often.
func (q *RxQueue) Polled() bool { return true }

// Fault returns the reason why every Recv fails from now on, or "".
func (q *RxQueue) Fault() string { return q.Broken }

// Close unmaps the queue's memory. Every later Recv fails.
func (q *RxQueue) Close() {
	if q.Mem != nil {
		q.Broken = "closed"
	}
	q.Queue.Close()
}

// TxQueue implements the methods of port.Tx that are the same for all queues whose method Send writes the
// frames at once.
type TxQueue struct {
	Queue
	Longest int // length of the longest frame in bytes, including the Ethernet header
}

// Flush does nothing, because Send has already written the frames.
func (q *TxQueue) Flush() {}

// Postpone returns false: there are no frames to write later, because Send has written them.
func (q *TxQueue) Postpone() bool { return false }

// MTU returns the length of the longest frame in bytes, including the Ethernet
// header.
func (q *TxQueue) MTU() int { return q.Longest }
