// SPDX-License-Identifier: Apache-2.0

// Package port defines the interface between the datapath and the back ends of ports:
// receive and transmit queues over batches of frames. The back ends vhost, tap,
// afpacket and xsk implement it. Package porttest has an in-memory port for tests.
//
// A queue belongs to one worker. Its methods do not block, allocate or log. They make
// system calls only if the device needs them.
package port

import "weft/packet"

// MaxPorts is the limit of datapath port numbers. Port numbers are 1 to MaxPorts-1
// and index arrays. 0 means no port.
const MaxPorts = 1024

// Rx is a receive queue.
type Rx interface {
	// Recv appends frames to b until b is full or no frame waits. It returns the
	// number of appended frames. The caller has set b.Port. The frames refer to the
	// queue's memory until Release. A negative result means that the queue has failed
	// for good, for example because of a corrupt ring or a removed device. The worker
	// then stops using the queue and reports Fault.
	Recv(b *packet.Batch) int
	// Release lets the queue reuse the memory of all frames received since the last
	// Release. The worker calls it at the end of a batch, after every output has
	// gathered and flushed its frames. If an output has postponed its flush, the
	// worker calls Release of a Keeper only at the end of the next batch.
	Release()
	// Arm asks the other side (the guest or the kernel) for a notification when a
	// frame arrives. Then it checks the queue again. If it returns true, frames are
	// waiting and the worker must not sleep. Disarm cancels the request when the
	// worker is awake again.
	Arm() bool
	Disarm()
	// WaitFD returns the descriptor that becomes readable when the other side
	// notifies the worker, or -1. The queue owns the descriptor. If it is readable,
	// the worker calls Woken to drain it.
	WaitFD() int
	Woken()
	// Polled reports whether Recv costs a system call even if no frame waits. This is
	// true if the frames come from this machine's kernel, as on a tap. The worker
	// then calls Recv only from time to time, or when WaitFD is readable.
	Polled() bool
	// Fault returns the reason why the queue has failed, for the operator. It returns
	// "" for a working queue.
	Fault() string
	// Close frees the mappings and descriptors of the queue. The worker no longer
	// uses the queue.
	Close()
}

// Keeper is an Rx that preserves unreleased frames if the engine dies: the next
// engine receives them again. Outputs of these frames may therefore postpone a flush.
type Keeper interface {
	Rx
	// ReleaseLate is the Release for a worker that expects more frames soon. The
	// queue may leave the newest frames unreleased until the next Release or
	// ReleaseLate. The next engine does not receive released frames again.
	ReleaseLate()
	// MayKeep reports whether the ring is large enough for the other side to continue
	// while some entries stay unreleased. The result never changes.
	MayKeep() bool
}

// EdgeWatched is an Rx whose WaitFD is shared with other owners. Nobody reads the
// descriptor, so it stays readable. The worker therefore watches it edge-triggered
// and does not call Woken.
type EdgeWatched interface {
	Rx
	EdgeWatched()
}

// Placed is a receive or transmit queue that needs to know its worker.
type Placed interface {
	// Place tells the queue the number of its worker in the engine, from 0 on, and an
	// eventfd that wakes up the worker. No worker uses the device during Place.
	Place(worker, wake int)
}

// Tx is a transmit queue.
type Tx interface {
	// Send gathers some frames of the batch b into the queue's own buffers. order has
	// the indexes of these frames in b.Frames. Send returns the number of frames
	// taken from the start of this list; the queue has no room for the rest. It keeps
	// no reference to b. If the device can never send a frame, for example because it
	// is too long, Send sets the frame's Drop and counts it as taken.
	Send(b *packet.Batch, order []uint8) int
	// Flush publishes all frames gathered since the last Flush, with at most one
	// notification of the other side. The worker calls it once, at the end of a
	// batch.
	Flush()
	// Postpone is the Flush for a worker that expects more frames soon. The queue may
	// leave the whole flush to the next Flush or Postpone, which follows within one
	// pass of the worker. Postpone returns true if a flush is still due, and false if
	// nothing is left to flush.
	Postpone() bool
	// MTU returns the length in bytes of the longest frame that the queue accepts,
	// Ethernet header included. For a large frame the limit applies to its segments
	// (packet.Frame.SegmentLen).
	MTU() int
	// Offloads returns the set of offloads that frames given to Send may leave
	// unfinished. The set never changes. The datapath finishes all other offloads
	// before Send.
	Offloads() packet.Offloads
	// Close frees the mappings and descriptors of the queue. The worker no longer
	// uses the queue.
	Close()
}

// TakingTx is a Tx that takes frames one after the other during Send. If the memory of a
// frame faults, the frames before it are taken, and the next Flush delivers them. A Tx
// without this method takes no frame of a Send that a fault has interrupted.
type TakingTx interface {
	Tx
	// Taken returns the number of frames that the last Send has taken from the start
	// of its list. The number is also right if a fault has interrupted Send.
	Taken() int
}

// Device has the queues of an open port in the engine. Control sends a JSON
// specification and descriptors for each port. Each back end has a function Open(spec
// []byte, fds []int) (Device, error), which owns the descriptors, even if it fails.
type Device interface {
	// Rx and Tx return the device's queues. Their number never changes.
	Rx() []Rx
	Tx() []Tx
	// State returns the ring indexes or other state that the next Open needs to
	// continue, in JSON, or nil. The workers no longer use the queues at this time.
	State() []byte
	// Close closes the queues and all descriptors. The workers no longer use the
	// queues.
	Close()
}
