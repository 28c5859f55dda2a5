// SPDX-License-Identifier: Apache-2.0

// Package port defines the datapath's interface to a port: receive and transmit
// queues over batches of frames. The back ends vhost, tap, afpacket and xsk implement
// it. Package porttest has an in-memory port for tests.
//
// A queue belongs to one worker. Its methods do not block, allocate or log. They
// enter the kernel only if the device needs it.
package port

import "weft/packet"

// MaxPorts is the limit of datapath port numbers. They run from 1 to MaxPorts-1 and
// index arrays. 0 means no port.
const MaxPorts = 1024

// Rx is a receive queue.
type Rx interface {
	// Recv appends frames to b until b is full or no frame waits, and returns the
	// number of frames appended. The caller has set b.Port. Frames borrow the queue's
	// memory until Release. A negative result means that the queue is broken for
	// good, for example by a corrupt ring or a removed device. The worker then stops
	// using the queue and reports Fault.
	Recv(b *packet.Batch) int
	// Release ends the loan of all frames received since the last Release. The worker
	// calls it at the end of a batch, after every output has gathered and flushed its
	// frames. If an output has postponed its flush, the worker calls Release of a
	// Keeper at the end of the next batch.
	Release()
	// Arm asks the other side for a wake-up when a frame comes, then checks the queue
	// again. If it returns true, frames are waiting and the worker must not sleep.
	// Disarm cancels the request when the worker is awake again.
	Arm() bool
	Disarm()
	// WaitFD returns the descriptor that becomes readable on a wake-up, or -1. The
	// queue owns it. The worker calls Woken to drain it when it is readable.
	WaitFD() int
	Woken()
	// Polled reports whether Recv costs a system call even if no frame waits. This is
	// so if frames come from this machine's kernel (a tap). The worker then calls
	// Recv only now and then, or when WaitFD is readable.
	Polled() bool
	// Fault returns what broke the queue, for the operator, or "" for a working
	// queue.
	Fault() string
	// Close frees the mappings and descriptors of the queue. The worker no longer
	// uses it.
	Close()
}

// Keeper is an Rx that does not lose unreleased frames if the engine dies: the next
// engine receives them again. Outputs of its frames may therefore postpone a flush.
type Keeper interface {
	Rx
	// ReleaseLate is a Release for a worker that expects more frames soon. The queue
	// may leave the newest frames to the next Release or ReleaseLate. Released frames
	// are not received again by the next engine.
	ReleaseLate()
	// MayKeep reports whether the queue has enough entries for the other side to go
	// on while some stay unreleased. The result never changes.
	MayKeep() bool
}

// EdgeWatched is an Rx whose WaitFD has other owners as well. Nobody reads the
// descriptor, so it stays readable. The worker therefore watches it edge-triggered
// and does not call Woken.
type EdgeWatched interface {
	Rx
	EdgeWatched()
}

// Placed is a receive or transmit queue that needs to know its worker.
type Placed interface {
	// Place sets the worker's number in the engine, from 0 on, and an eventfd that
	// wakes the worker. No worker uses the device during Place.
	Place(worker, wake int)
}

// Tx is a transmit queue.
type Tx interface {
	// Send gathers the frames b.Frames[i], for each i in order, into the queue's own
	// buffers. It returns the number of frames taken from the start of order; the
	// rest found no room. It keeps no reference to b. A frame that the device can
	// never send, for example one that is too long, gets its Drop set and counts as
	// taken.
	Send(b *packet.Batch, order []uint8) int
	// Flush publishes all frames gathered since the last Flush, with at most one
	// wake-up of the other side. The worker calls it once, at the end of a batch.
	Flush()
	// Postpone is a Flush for a worker that expects more frames soon. The queue may
	// leave the whole flush to the next Flush or Postpone, which follows within one
	// pass. Postpone returns true if it did so, and false if nothing is left to
	// flush.
	Postpone() bool
	// MTU returns the length in bytes of the longest frame taken, Ethernet header
	// included. The limit applies to the segments of a large frame
	// (packet.Frame.SegmentLen).
	MTU() int
	// Offloads returns the set of offloads that frames given to Send may leave
	// undone. The set never changes. The datapath does everything else before Send.
	Offloads() packet.Offloads
	// Close frees the mappings and descriptors of the queue. The worker no longer
	// uses it.
	Close()
}

// Device has the queues of a port as the engine opens them. Control sends a JSON
// specification and the descriptors that it names. Each back end has Open(spec
// []byte, fds []int) (Device, error), which owns the descriptors, also if it fails.
type Device interface {
	// Rx and Tx return the device's queues. Their number never changes.
	Rx() []Rx
	Tx() []Tx
	// State returns, in JSON, the ring indexes or other state that the next Open
	// needs to continue, or nil. No worker uses the queues any more.
	State() []byte
	// Close closes the queues and all descriptors. No worker uses the queues any
	// more.
	Close()
}
