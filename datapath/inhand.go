// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"golang.org/x/sys/unix"

	"weft/port"
)

// InHand tells what the worker is doing now. A watchdog uses it to find a stuck
// worker. It is one cache line. The worker writes it with plain stores; the control
// process may read it at any time.
type InHand struct {
	// Visit is of type Visit: the receive queue that the worker is visiting. It
	// changes with every visit, so that a long pass over many queues does not look
	// stuck.
	Visit uint64
	// Sending is of type Sending: the port whose transmit queue the worker is
	// calling; 0: none.
	Sending uint64
	// Asleep is 1 while the worker sleeps, which takes at most MaxSleepNS.
	Asleep uint64
	// Thread is the kernel's id of the worker's thread; 0: the thread has not started
	// yet.
	Thread uint64
	_      [4]uint64
}

// MaxSleepNS is the longest time for which Asleep stays 1, in nanoseconds.
const MaxSleepNS = maxSleepMS * 1_000_000

// Visit packs a count of visits, a port, and the number of one of the port's receive
// queues. The port is 0 while the worker visits no queue.
type Visit uint64

// Port returns the port whose queue is being visited; 0: none.
func (v Visit) Port() uint32 { return uint32(v>>16) & 0xffff }

// Queue returns the number of the visited queue among the port's receive queues.
func (v Visit) Queue() int { return int(v & 0xffff) }

// Sending packs the port whose transmit queue the worker is calling, the number of
// that queue, and the kind of call.
type Sending uint64

const (
	flushing Sending = 1 << (32 + iota)
	awaiting
)

// Port returns the port whose transmit queue is being called; 0: none.
func (s Sending) Port() uint32 { return uint32(s) & 0xffff }

// Flushing reports whether the call of the transmit queue is a flush, which publishes
// frames and notifies the receiver. A flush copies no frame, so it does not access
// the memory of the port that the frames came from.
func (s Sending) Flushing() bool { return s&flushing != 0 }

// Awaiting reports whether the worker waits until another worker unlocks the transmit
// queue. Meanwhile it does not access the port's memory.
func (s Sending) Awaiting() bool { return s&awaiting != 0 }

// Queue returns the number of the called queue among the port's transmit queues.
func (s Sending) Queue() int { return int(s>>16) & 0xffff }

var _ [1<<16 - port.MaxPorts]struct{} // compile-time check: a port number fits into the 16 bits of a Visit

// visit records that the worker's next calls go to receive queue q.
func (w *Worker) visit(q *rxQueue) {
	w.rxInUse = q
	w.visits++
	w.sh.InHand.Visit = w.visits<<32 | uint64(q.port)<<16 | uint64(q.number)
}

// visited records that the worker has visited all receive queues of this pass.
func (w *Worker) visited() {
	w.visits++
	w.sh.InHand.Visit = w.visits << 32
}

// useTx locks the transmit queue of a port and records the kind of call that follows.
// leaveTx ends the call and unlocks the queue.
func (w *Worker) useTx(p *txPort, what Sending) {
	on := Sending(p.number)<<16 | Sending(p.no)
	if p.lock != nil {
		w.sh.InHand.Sending = uint64(on | awaiting)
		p.lock.lock()
	}
	w.txInUse = p // txInUse is set only once p is locked, because abandon unlocks the queue that txInUse names
	w.sh.InHand.Sending = uint64(on | what)
}

func (w *Worker) leaveTx() {
	if p := w.txInUse; p.lock != nil {
		p.lock.unlock()
	}
	w.txInUse = nil
	w.sh.InHand.Sending = 0
}

// beginHeartbeat records the id of the calling thread, which is the worker's thread,
// and the first heartbeat.
func (w *Worker) beginHeartbeat() {
	*w.sh.InHand = InHand{Thread: uint64(unix.Gettid())}
	w.sh.Counters.HeartbeatNS = w.clock()
}
