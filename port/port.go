// Package port is what the datapath knows of a port: receive and transmit
// queues over batches. The back ends (vhost, tap, xsk) implement it;
// porttest has an in-memory one.
//
// A queue belongs to one worker. Nothing here blocks, allocates, logs or, but
// for what a device forces, enters the kernel.
package port

import "weft/packet"

// MaxPorts bounds datapath port numbers: they run from 1 to MaxPorts-1 and
// index arrays. 0 is no port.
const MaxPorts = 1024

// Rx is a queue frames are received from.
type Rx interface {
	// Recv appends frames to b until b is full or none is waiting, and returns
	// how many it appended. The caller has set b.Port. Frames borrow the
	// queue's memory until Release. A negative result says that the queue is
	// broken for good (a hostile ring, a device that went away): the worker
	// stops using it and reports Fault.
	Recv(b *packet.Batch) int
	// Release gives back all that Recv has lent since the last Release. The
	// worker calls it at the end of a batch, after every output has gathered and
	// shown its frames; of a Keeper, where outputs have postponed that, at the end of
	// the batch that follows.
	Release()
	// Arm asks the other side for a wake-up when a frame comes, and then looks
	// once more: true says that frames are waiting, so the worker must not
	// sleep. Disarm takes the wish back when the worker is awake again.
	Arm() bool
	Disarm()
	// WaitFD is the descriptor that becomes readable on a wake-up, -1 if none.
	// The queue owns it. Woken is called when it was seen readable, to drain it.
	WaitFD() int
	Woken()
	// Polled tells whether Recv costs a system call even when nothing waits: frames
	// come from this machine's kernel (a tap). The worker then calls it now and
	// then, or when WaitFD is readable.
	Polled() bool
	// Fault names what broke the queue, for the operator; "" if it is whole.
	Fault() string
	// Close frees what the queue holds: mappings, and the descriptors that it
	// was made with. The worker has stopped using it.
	Close()
}

// Keeper is an Rx whose frames a successor receives again while they are not
// released, so that outputs may postpone to show them.
type Keeper interface {
	Rx
	// ReleaseLate is Release where more frames are about to come: the queue may leave
	// the newest to a Release or ReleaseLate that follows. A successor receives none
	// of them again.
	ReleaseLate()
	// MayKeep tells whether there are enough for the other side to go on with
	// meanwhile. It does not change.
	MayKeep() bool
}

// EdgeWatched is an Rx whose WaitFD others own as well. Nobody reads it, so that it stays
// readable: the worker watches for edges, and does not call Woken.
type EdgeWatched interface {
	Rx
	EdgeWatched()
}

// Placed is a queue, of either direction, that knows the worker that calls it.
type Placed interface {
	// Place takes the worker's number in the engine, from 0 on, and an own event that
	// wakes the worker. Nobody uses the device during Place.
	Place(worker, wake int)
}

// Tx is a queue frames are sent to.
type Tx interface {
	// Send gathers the frames b.Frames[i], for each i in order, into the
	// queue's own buffers and returns how many it took, always the first of
	// them; the rest found no room. It keeps no reference to b. A frame the
	// device can never take (too long) gets its Drop set and counts as taken.
	Send(b *packet.Batch, order []uint8) int
	// Flush publishes what Send has gathered since the last Flush, with at most
	// one wake-up of the other side. The worker calls it once, at the end of a
	// batch.
	Flush()
	// Postpone is Flush where more frames are about to come: the queue may leave
	// all of it to the Flush or Postpone that follows within the next pass. It
	// reports whether it did; otherwise nothing is left to do.
	Postpone() bool
	// MTU is the length of the longest frame taken, Ethernet header included; of a
	// large frame, that of its segments counts (packet.Frame.SegmentLen).
	MTU() int
	// Offloads is what frames given to Send may have left to do. It does not
	// change; the datapath does everything else before.
	Offloads() packet.Offloads
	// Close as in Rx.
	Close()
}

// Device is a port's queues as the engine opens them, from what control has
// set up and sent: a specification in JSON and the descriptors it names. Each
// back end has Open(spec []byte, fds []int) (Device, error), which owns the
// descriptors from then on, also when it fails.
type Device interface {
	// Rx and Tx are the device's queues. Their number does not change.
	Rx() []Rx
	Tx() []Tx
	// State tells, in JSON, what a later Open needs to go on where this one
	// stopped (ring indexes); nil if nothing. No worker uses the queues any more.
	State() []byte
	// Close closes the queues and all descriptors. No worker uses them any more.
	Close()
}
