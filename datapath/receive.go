package datapath

import (
	"weft/packet"
	"weft/port"
)

// maxQueues bounds the receive queues of one worker.
const maxQueues = 1024

// rxQueue is one receive queue. Worker owns.
type rxQueue struct {
	rx     port.Rx
	port   uint32
	slot   uint16 // index in the table, which epoll returns
	number uint16 // among the device's receive queues
	waitFD int32
	edge   bool   // waitFD is watched for edges, see port.EdgeWatched
	polled bool   // Recv costs a system call: only when it may be worth it
	ready  bool   // may be readable: see lookForReady; else it was read to the end
	tunnel bool   // an uplink: frames are decapsulated
	debtNS uint64 // see fair.go
	nextNS uint64 // clock of the next visit, see gather.go
	fuses  bool   // frames are sought among the connections of zone first, see fuse.go
	zone   uint16
	keeper port.Keeper // rx, if a batch of it may be kept, see kept.go; else nil
	kept   keptBatch
	lateNS uint64    // clock until which what it has lent may go back late; 0: at once
	agreed agreement // of the frames fused last
}

// queueTable holds the receive queues: slots that stay where they are, and the
// order in which they are visited.
type queueTable struct {
	count  int
	polled int // queues with polled set
	deaf   int // queues without a WaitFD
	slots  [maxQueues]rxQueue
	order  [maxQueues]uint16
}

func (t *queueTable) at(i int) *rxQueue { return &t.slots[t.order[i]] }

// add takes a free slot; nil if there is none.
func (t *queueTable) add(q rxQueue) *rxQueue {
	for i := range t.slots {
		if s := &t.slots[i]; s.rx == nil {
			*s = q
			s.slot = uint16(i)
			t.order[t.count] = s.slot
			t.count++
			t.tally(s, 1)
			return s
		}
	}
	return nil
}

// remove frees the slot of queue number i in the order.
func (t *queueTable) remove(i int) {
	q := t.at(i)
	t.tally(q, -1)
	copy(t.order[i:t.count], t.order[i+1:t.count])
	t.count--
	*q = rxQueue{}
}

func (t *queueTable) tally(q *rxQueue, by int) {
	if q.polled {
		t.polled += by
	}
	if q.waitFD < 0 {
		t.deaf += by
	}
}

// receive takes a batch from q all the way through, and returns the number of
// frames, negative if q is broken and was removed.
func (w *Worker) receive(q *rxQueue) int {
	if q.polled && !q.ready {
		return 0
	}
	w.giveShownBack(q)
	b := &w.batch
	b.Reset()
	b.Port = q.port
	w.cursor, w.live, w.undone = 0, 0, 0
	w.beginTracks()
	w.visit(q)
	if w.taps.on {
		w.tapBegin()
	}
	n := q.rx.Recv(b)
	if n < 0 {
		reason := q.rx.Fault()
		b.Reset()
		w.rxInUse = nil
		w.failPort(q.port, reason)
		return -1
	}
	q.ready = n > 0 // so that a stream is not kept waiting for the next look
	if n == 0 {
		// It may have thrown away something that made no frame.
		w.giveBack(q)
		w.rxInUse = nil
		return 0
	}
	w.countReceived(n)
	w.live = allOf(n)
	w.more = n == packet.BatchSize && q.keeper != nil && !w.taps.on // what a trace shows of a batch is its own
	q.lateNS = 0
	if w.more {
		q.lateNS = w.now + streamNS
	}
	if w.taps.on {
		w.tapReceived()
	}
	tunneled := uint32(0)
	if q.tunnel {
		tunneled = w.decapsulate()
	}
	before := w.costs()
	w.classify(tunneled)
	w.execute()
	w.finish()
	w.charge(q, n, before)
	return n
}

// allOf is the set of the first n frames of a batch.
func allOf(n int) uint32 { return uint32(1<<n - 1) }

func (w *Worker) countReceived(n int) {
	bytes := uint64(0)
	for i := range w.batch.Frames[:n] {
		bytes += uint64(w.batch.Frames[i].Len())
	}
	w.sh.Counters.Frames += uint64(n)
	w.sh.Counters.Batches++
	p := &w.sh.Ports[w.batch.Port%port.MaxPorts]
	p.RxPackets += uint64(n)
	p.RxBytes += bytes
}

// drop counts a frame that reached no output.
func (w *Worker) drop(f *packet.Frame, why packet.DropReason) {
	if w.taps.on {
		w.tapDrop(f, why)
	}
	w.dropFrom(f.InPort, why)
}

func (w *Worker) dropFrom(inPort uint32, why packet.DropReason) {
	w.sh.Counters.Drops[why]++
	w.sh.Ports[inPort%port.MaxPorts].RxDrops[why]++
}
