package datapath

import (
	"golang.org/x/sys/unix"

	"weft/port"
)

// InHand says what a worker is doing, for a watchdog that finds it standing still.
// It is one cache line of the worker's own. Worker writes with plain stores; control
// reads whenever it likes.
type InHand struct {
	// Visit is a Visit: the receive queue whose turn it is. It changes with every
	// visit, so that a long pass over many queues is no stand-still.
	Visit uint64
	// Sending is a Sending: the port whose transmit queue is being called; 0: none.
	Sending uint64
	// Asleep is 1 while the worker waits for a wake-up, at most for MaxSleepNS.
	Asleep uint64
	// Thread is the kernel's id of the worker's thread, 0 until it runs.
	Thread uint64
	_      [4]uint64
}

// MaxSleepNS is how long Asleep is 1 at a stretch.
const MaxSleepNS = maxSleepMS * 1_000_000

// Visit is a count of visits, the port visited and the number of its receive queue;
// port 0 where no queue is in hand.
type Visit uint64

// Port is the port visited, 0 for none.
func (v Visit) Port() uint32 { return uint32(v>>16) & 0xffff }

// Queue is the number among the port's receive queues.
func (v Visit) Queue() int { return int(v & 0xffff) }

// Sending is a port whose transmit queue is being called, the number of that queue,
// and for what.
type Sending uint64

const (
	flushing Sending = 1 << (32 + iota)
	awaiting
)

// Port is the port sent to, 0 for none.
func (s Sending) Port() uint32 { return uint32(s) & 0xffff }

// Flushing says that the queue publishes and notifies: it copies no frame, and so
// touches nothing of the port that the frames came from.
func (s Sending) Flushing() bool { return s&flushing != 0 }

// Awaiting says that another worker has the queue: nothing of the port is touched.
func (s Sending) Awaiting() bool { return s&awaiting != 0 }

// Queue is the number among the port's transmit queues.
func (s Sending) Queue() int { return int(s>>16) & 0xffff }

var _ [1<<16 - port.MaxPorts]struct{} // a port fits into Visit

// visit says that a receive queue is being called from here on.
func (w *Worker) visit(q *rxQueue) {
	w.rxInUse = q
	w.visits++
	w.sh.InHand.Visit = w.visits<<32 | uint64(q.port)<<16 | uint64(q.number)
}

// visited says that the round over the receive queues is over.
func (w *Worker) visited() {
	w.visits++
	w.sh.InHand.Visit = w.visits << 32
}

// useTx begins calls of the transmit queue of a port, under its lock; leaveTx ends
// them.
func (w *Worker) useTx(p *txPort, what Sending) {
	on := Sending(p.number)<<16 | Sending(p.no)
	if p.lock != nil {
		w.sh.InHand.Sending = uint64(on | awaiting)
		p.lock.lock()
	}
	w.txInUse = p // not before: see abandon
	w.sh.InHand.Sending = uint64(on | what)
}

func (w *Worker) leaveTx() {
	if p := w.txInUse; p.lock != nil {
		p.lock.unlock()
	}
	w.txInUse = nil
	w.sh.InHand.Sending = 0
}

// beginHeartbeat names the calling thread, which is the worker's.
func (w *Worker) beginHeartbeat() {
	*w.sh.InHand = InHand{Thread: uint64(unix.Gettid())}
	w.sh.Counters.HeartbeatNS = w.clock()
}
