// SPDX-License-Identifier: Apache-2.0

package datapath

// keptBatch is a received batch whose buffers are not released yet, because frames of
// the batch wait in output ports with a postponed flush. If the engine dies before
// the flush, the next engine receives the batch again. A batch must therefore not be
// released before its frames are published.
type keptBatch struct {
	turn  uint64 // pass in which the batch was received
	count uint8  // number of output ports that the batch waits for; 0: no batch is kept
	ports [maxKeptFor]uint16
}

// maxKeptFor is the largest number of output ports that a kept batch waits for. If
// its frames wait in more ports, releaseOrKeep flushes the other ports at once.
const maxKeptFor = 4

// releaseOrKeep ends the batch of queue q. If frames of the batch wait in ports with
// a postponed flush, q keeps the batch until these ports are flushed, at most until
// q's next batch. Otherwise the batch is released.
func (w *Worker) releaseOrKeep(q *rxQueue) {
	kept := keptBatch{turn: w.turn}
	late := q.kept.count > 0
	for _, no := range w.touched.ports[:w.touched.count] {
		p := &w.ports[no]
		switch {
		case p.owedIn == 0 || p.tx == nil:
		case late || kept.count == maxKeptFor:
			late = true
			w.flush(p, false)
		default:
			kept.ports[kept.count%maxKeptFor] = no
			kept.count++
		}
	}
	switch {
	case late:
		w.flushFor(&kept)
		w.flushAndRelease(q)
	case kept.count > 0:
		q.kept = kept
	default:
		q.release(w.now)
	}
}

// streamNS is the time in nanoseconds within which another batch is expected after a
// full one.
const streamNS = 100_000

// release releases all buffers that the worker has borrowed from the queue. In a
// stream of full batches the queue may release the newest buffers later (decision
// 0025).
func (q *rxQueue) release(now uint64) {
	if now < q.lateNS {
		q.keeper.ReleaseLate()
		return
	}
	q.lateNS = 0
	q.rx.Release()
}

// flushFor flushes the ports in which frames of the kept batch may wait, and empties
// the batch's list of ports.
func (w *Worker) flushFor(b *keptBatch) {
	for _, no := range b.ports[:b.count] {
		if p := &w.ports[no]; p.owes(b) {
			w.flush(p, false)
		}
	}
	b.count = 0
}

// owes reports whether frames of the kept batch may wait in the port for a flush.
func (p *txPort) owes(b *keptBatch) bool { return p.tx != nil && p.owedIn != 0 && p.owedIn <= b.turn }

// releaseIfFlushed releases the batch that q keeps, if all ports that it waits for
// have been flushed meanwhile with frames of other queues. q may then keep its next
// batch.
func (w *Worker) releaseIfFlushed(q *rxQueue) {
	for _, no := range q.kept.ports[:q.kept.count] {
		if w.ports[no].owes(&q.kept) {
			return
		}
	}
	if q.kept.count > 0 {
		w.releaseBetweenBatches(q)
	}
}

// flushAndRelease flushes the ports that q's kept batch waits for, and then releases
// all buffers of q.
func (w *Worker) flushAndRelease(q *rxQueue) {
	if q.kept.count > 0 {
		w.flushFor(&q.kept)
	}
	q.release(w.now)
}

// releaseBetweenBatches calls flushAndRelease while no batch is in hand. It records q
// as visited, so that a memory fault detaches q's port.
func (w *Worker) releaseBetweenBatches(q *rxQueue) {
	w.visit(q)
	w.flushAndRelease(q)
	w.rxInUse = nil
}

// releaseAllQueues releases the kept batches of all queues.
func (w *Worker) releaseAllQueues() {
	for at := range w.queues.count {
		w.releaseKept(w.queues.at(at))
	}
}

func (w *Worker) releaseKept(q *rxQueue) {
	if q.kept.count > 0 || q.lateNS > 0 {
		q.lateNS = 0
		w.releaseBetweenBatches(q)
	}
}
