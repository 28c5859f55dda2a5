// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"golang.org/x/sys/unix"

	"weft/port"
)

// InHand records the worker's current activity. From it, the watchdog of the control process detects a hung
// worker and the port that the worker serves. It fills one cache line. The worker writes it with plain
// stores. The control process may read it at any time.
type InHand struct {
	// Visit has the bits of a value of the type Visit, which says what receive queue the worker polls. It
	// changes with every poll, so a long pass over many queues does not look like a hung worker.
	Visit uint64
	// Sending has the bits of a value of the type Sending, which says what transmit queue the worker uses,
	// and for which operation; 0: it uses none.
	Sending uint64
	// Asleep is 1 while the worker sleeps, otherwise 0. A sleep takes at most MaxSleepNS.
	Asleep uint64
	// Thread is the kernel's id of the worker's thread; 0: the worker has not started yet, or
	// has ended.
	Thread uint64
	_      [4]uint64
}

// MaxSleepNS is the longest time in nanoseconds for which a worker sleeps. A worker whose InHand.Asleep
// stays 1 for longer has hung.
const MaxSleepNS = maxSleepMS * 1_000_000

// Visit identifies one poll of a receive queue. It packs a counter of polls, the port,
// and the queue's number among the port's receive queues. The port is 0 while the
// worker polls no queue.
type Visit uint64

// Port returns the port of the polled queue; 0: none.
func (v Visit) Port() uint32 { return uint32(v>>16) & 0xffff }

// Queue returns the number of the polled queue among the port's receive queues.
func (v Visit) Queue() int { return int(v & 0xffff) }

// Sending identifies the use of a transmit queue. It packs the port, the queue's number
// among the port's transmit queues, and the operation.
type Sending uint64

const (
	flushing Sending = 1 << (32 + iota)
	awaiting
)

// Port returns the port of the transmit queue; 0: none.
func (s Sending) Port() uint32 { return uint32(s) & 0xffff }

// Flushing reports whether the operation is a flush, which publishes frames and
// notifies the receiver. A flush does not access the memory of the frames' input
// port.
func (s Sending) Flushing() bool { return s&flushing != 0 }

// Awaiting reports whether the worker waits for the lock of the transmit queue.
// Meanwhile it does not access the port's memory.
func (s Sending) Awaiting() bool { return s&awaiting != 0 }

// Queue returns the number of the transmit queue among the port's transmit queues.
func (s Sending) Queue() int { return int(s>>16) & 0xffff }

var _ [1<<16 - port.MaxPorts]struct{} // A port number fits into 16 bits.

// visit records that the worker now uses receive queue q. The watchdog reads this record. After a memory
// fault, it tells which port has caused the fault.
func (r *reception) visit(q *rxQueue) {
	r.rxInUse = q
	r.visits++
	r.inHand.Visit = r.visits<<32 | uint64(q.port)<<16 | uint64(q.number)
}

func (r *reception) visited() {
	r.visits++
	r.inHand.Visit = r.visits << 32
}

// useTx records that the worker uses the transmit queue of port p, and locks the queue if workers share it.
// The operation is flushing, or 0 for a Send. leaveTx ends the use.
func (o *outputs) useTx(p *txPort, operation Sending) {
	on := Sending(p.number)<<16 | Sending(p.port)
	if p.lock != nil {
		o.inHand.Sending = uint64(on | awaiting)
		p.lock.lock()
	}
	o.txInUse = p // set only after locking, because abandon unlocks the queue in txInUse
	o.inHand.Sending = uint64(on | operation)
}

func (o *outputs) leaveTx() {
	if p := o.txInUse; p.lock != nil {
		p.lock.unlock()
	}
	o.txInUse = nil
	o.inHand.Sending = 0
}

func (w *Worker) beginHeartbeat() {
	*w.sh.InHand = InHand{Thread: uint64(unix.Gettid())}
	w.sh.Counters.HeartbeatNS = w.clock()
}
