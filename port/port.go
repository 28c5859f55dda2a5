// SPDX-License-Identifier: Apache-2.0

// Package port defines the interface between the datapath and the back ends of ports:
// receive and transmit queues over batches of frames. The back ends are vhost, tap,
// afpacket and xsk.
//
// A queue belongs to one worker. Its methods do not block, allocate or log. They make
// system calls only if the device needs them.
package port

import "weft/packet"

// MaxPorts limits datapath port numbers to the range from 1 to MaxPorts-1. Port numbers
// are used as indexes of arrays; 0 means no port.
const MaxPorts = 1024

// Rx is a receive queue.
type Rx interface {
	// Recv appends frames to b until b is full or no frame waits, and returns their
	// number. The caller has set b.Port. The frames refer to the queue's memory until
	// Release. A negative result means that the queue has failed for good, for
	// example because of a corrupt ring or a removed device. The worker then stops
	// using the queue and reports Fault.
	Recv(b *packet.Batch) int
	// Release lets the queue reuse the memory of all received frames. The worker calls Release at the end of a
	// batch, after every output has copied and published the frames. If the queue is a Keeper, the worker may
	// call it at the end of the next batch instead.
	Release()
	// Arm requests a notification of the next frame from the guest or the kernel, and
	// then checks the queue once more. If Arm returns true, the worker must not sleep.
	// Disarm cancels the request.
	Arm() bool
	Disarm()
	// WaitFD returns the descriptor that is readable after a notification, or -1. The
	// queue owns the descriptor. The worker then calls Woken to drain it.
	WaitFD() int
	Woken()
	// Polled reports whether Recv costs a system call even if no frame waits, as on a
	// tap. The worker then calls Recv only from time to time, or when WaitFD is
	// readable.
	Polled() bool
	// Fault returns the reason why the queue has failed, as a text for the operator; "": it has not failed.
	Fault() string
	// Close frees the mappings and descriptors of the queue. The caller makes sure that
	// no worker uses the queue any more.
	Close()
}

// Keeper is an Rx that does not lose unreleased frames if the engine process dies: the next engine process
// receives them again. Outputs may therefore postpone the publication of frames from a Keeper.
type Keeper interface {
	Rx
	// ReleaseLate is called instead of Release if more frames will follow soon. The
	// queue may keep the newest frames unreleased until the next Release or
	// ReleaseLate.
	ReleaseLate()
	// MayKeep reports whether the ring is long enough for postponed releases. The
	// result never changes.
	MayKeep() bool
}

// Prefetcher is an Rx that can prefetch frames of its next batch into the CPU cache.
type Prefetcher interface {
	Rx
	// Prefetch prefetches a few more of the frames that the last Recv has found but not returned. It
	// does not read the guest's memory, so it cannot fault. The worker calls it between the stages of
	// another queue's batch.
	Prefetch()
}

// Counted is a polled Rx that can tell without a system call whether frames wait.
type Counted interface {
	Rx
	// Waits reports whether the next Recv probably finds a frame. It misses a few frames, so
	// the worker also looks at WaitFD from time to time.
	Waits() bool
}

// EdgeWatched is an Rx whose WaitFD is shared with other processes. Nobody reads the descriptor, so it
// stays readable. The worker watches it edge-triggered and does not call Woken.
type EdgeWatched interface {
	Rx
	EdgeWatched()
}

// Placed is a receive or transmit queue that needs to know which worker uses it.
type Placed interface {
	// Place tells the queue the number of its worker, from 0 on, and the eventfd that
	// wakes up this worker. No worker uses the device during Place.
	Place(worker, wake int)
}

// Tx is a transmit queue.
type Tx interface {
	// Send copies frames of b into the queue's own buffers. order lists the indexes of these frames in b. Send
	// returns how many frames it has taken from the start of the list; the queue has no room for the others.
	// Send keeps no reference to b. A frame that can never be sent, for example because it is too long, gets
	// Drop set and counts as taken.
	Send(b *packet.Batch, order []uint8) int
	// Flush makes all frames that Send has copied visible to the receiver, with at most one notification. The
	// worker calls it once, at the end of a batch.
	Flush()
	// Postpone is called instead of Flush if more frames will follow soon. The queue may leave the work of this
	// Flush to the next Flush or Postpone, within one pass of the worker. Postpone reports whether it has done
	// so.
	Postpone() bool
	// MTU returns the length in bytes of the longest frame that the queue accepts,
	// Ethernet header included. The limit applies to the segments of a large frame.
	MTU() int
	// Offloads returns the offloads that frames for Send may leave unfinished. The
	// set never changes.
	Offloads() packet.Offloads
	// Close frees the mappings and descriptors of the queue. The caller makes sure that
	// no worker uses the queue any more.
	Close()
}

// TakingTx is a Tx that takes frames one by one. If a memory fault interrupts its Send, the frames
// before the faulty one count as taken, and the next Flush delivers them. Any other Tx has taken no
// frame of an interrupted Send.
type TakingTx interface {
	Tx
	// Taken returns the number of frames that the last Send has taken, even if a fault
	// interrupted it.
	Taken() int
}

// ForeignTx is a Tx that writes to memory of another process, which can make Send slow. The time of a slow
// Send counts for the port of the Tx, and not for the sender of the frames.
type ForeignTx interface {
	Tx
	// Foreign does nothing. A queue with this method counts as one whose Send may be slow.
	Foreign()
}

// Device has the queues of an open port in the engine process. For each port, the control process sends a
// specification in JSON, and descriptors. The package of each kind of port has a function Open(spec []byte,
// fds []int) (Device, error), which owns the descriptors, even if it fails.
type Device interface {
	// Rx and Tx return the device's queues. Their number never changes.
	Rx() []Rx
	Tx() []Tx
	// State returns the state in JSON that the next Open needs to continue, or nil.
	// The caller makes sure that no worker uses the queues meanwhile.
	State() []byte
	// Close closes the queues and all descriptors. The caller makes sure that no worker
	// uses the queues any more.
	Close()
}

// Offloaded is an Rx of a port whose known flows the kernel may forward (package offload). The worker adds
// the kernel's counts of these flows to its own.
type Offloaded interface {
	Rx
	// TakeCounts returns what the kernel has counted in a megaflow slot since the last call for this slot.
	TakeCounts(slot uint32) OffloadCounts
	// OffloadSlots returns the number of slots that may have counts. They are the slots from 0 on.
	OffloadSlots() uint32
	// NextOffloaded returns the first slot, from the slot "from" on, that has a flow in the kernel. In a slot
	// without a flow the kernel counts nothing more, but the slot may still have earlier counts.
	NextOffloaded(from uint32) (slot uint32, found bool)
}

// OffloadCounts counts the frames of a flow that the kernel has sent to port Out. It covers the time between
// two calls of TakeCounts for the flow's slot.
type OffloadCounts struct {
	Packets, Bytes uint64
	UsedNS         uint64 // time of the last frame (CLOCK_MONOTONIC)
	Out            uint32 // port to which the kernel sent the frames
	Tunnel         uint32 // port of the tunnel that the frames crossed; 0: none
	Growth         int16  // bytes that a frame gained on its way to the output, negative if it lost some
	Outer          uint32 // length in bytes of the tunnel's headers, which the tunnel's port does not count
	Received       bool   // the frames came out of the tunnel, and Bytes does not have the tunnel's headers
	Tracked        bool   // the megaflow has only tracked the frames, and another one counts them for the ports
}
