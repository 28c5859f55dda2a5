// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"golang.org/x/sys/unix"

	"weft/port"
)

// InHand is what a worker is doing now, for a watchdog that finds the worker stuck.
// It is one cache line that the worker owns: it writes with plain stores, and control
// reads at any time.
type InHand struct {
	// Visit holds a Visit: the receive queue that the worker is visiting. It changes
	// with every visit, so that a long pass over many queues does not look stuck.
	Visit uint64
	// Sending holds a Sending: the port whose transmit queue is being called; 0:
	// none.
	Sending uint64
	// Asleep is 1 while the worker waits for a wake-up, for at most MaxSleepNS.
	Asleep uint64
	// Thread is the kernel's id of the worker's thread, 0 before the thread runs.
	Thread uint64
	_      [4]uint64
}

// MaxSleepNS is the longest time in ns for which Asleep stays 1.
const MaxSleepNS = maxSleepMS * 1_000_000

// Visit packs a count of visits, the visited port and the number of the receive
// queue. The port is 0 while no queue is visited.
type Visit uint64

// Port returns the visited port, 0 for none.
func (v Visit) Port() uint32 { return uint32(v>>16) & 0xffff }

// Queue returns the number of the queue among the port's receive queues.
func (v Visit) Queue() int { return int(v & 0xffff) }

// Sending packs the port whose transmit queue is being called, the number of that
// queue, and the kind of call.
type Sending uint64

const (
	flushing Sending = 1 << (32 + iota)
	awaiting
)

// Port returns the port sent to, 0 for none.
func (s Sending) Port() uint32 { return uint32(s) & 0xffff }

// Flushing reports whether the queue publishes and notifies. A flush copies no frame,
// so it touches no memory of the port that the frames came from.
func (s Sending) Flushing() bool { return s&flushing != 0 }

// Awaiting reports whether the worker waits for another worker to unlock the queue.
// Meanwhile it touches no memory of the port.
func (s Sending) Awaiting() bool { return s&awaiting != 0 }

// Queue returns the number of the queue among the port's transmit queues.
func (s Sending) Queue() int { return int(s>>16) & 0xffff }

var _ [1<<16 - port.MaxPorts]struct{} // a port number fits into the 16 bits of a Visit

// visit records that the worker calls receive queue q from now on.
func (w *Worker) visit(q *rxQueue) {
	w.rxInUse = q
	w.visits++
	w.sh.InHand.Visit = w.visits<<32 | uint64(q.port)<<16 | uint64(q.number)
}

// visited records that the round over the receive queues has ended.
func (w *Worker) visited() {
	w.visits++
	w.sh.InHand.Visit = w.visits << 32
}

// useTx locks the transmit queue of a port and records that it is being called for
// the purpose what. leaveTx ends the call.
func (w *Worker) useTx(p *txPort, what Sending) {
	on := Sending(p.number)<<16 | Sending(p.no)
	if p.lock != nil {
		w.sh.InHand.Sending = uint64(on | awaiting)
		p.lock.lock()
	}
	w.txInUse = p // only after locking: abandon unlocks the queue in txInUse
	w.sh.InHand.Sending = uint64(on | what)
}

func (w *Worker) leaveTx() {
	if p := w.txInUse; p.lock != nil {
		p.lock.unlock()
	}
	w.txInUse = nil
	w.sh.InHand.Sending = 0
}

// beginHeartbeat records the id of the calling thread, which is the worker's, and
// writes the first heartbeat.
func (w *Worker) beginHeartbeat() {
	*w.sh.InHand = InHand{Thread: uint64(unix.Gettid())}
	w.sh.Counters.HeartbeatNS = w.clock()
}
