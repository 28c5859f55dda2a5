// SPDX-License-Identifier: Apache-2.0

package datapath

// keptBatch is a received batch whose buffers are not released yet. Frames of the
// batch still wait for the flush of an output port. If the engine dies before the
// flush, the next engine receives the batch again.
type keptBatch struct {
	turn  uint64 // pass in which the batch was received
	count uint8  // number of unflushed output ports; 0: no batch is kept
	ports [maxKeptFor]uint16
}

// maxKeptFor is the largest number of unflushed output ports of a kept batch. Further
// ports are flushed at once.
const maxKeptFor = 4

// releaseOrKeep ends the batch of queue q. If output ports postponed their flush of
// the batch's frames, q keeps the batch, at most until its next batch. Otherwise the
// batch is released.
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

// streamNS is the time in nanoseconds within which a full batch is followed by
// another.
const streamNS = 100_000

// release releases the queue's buffers. In a stream of full batches it may postpone
// the newest buffers (decision 0025).
func (q *rxQueue) release(now uint64) {
	if now < q.lateNS {
		q.keeper.ReleaseLate()
		return
	}
	q.lateNS = 0
	q.rx.Release()
}

// flushFor flushes all output ports of the kept batch.
func (w *Worker) flushFor(b *keptBatch) {
	for _, no := range b.ports[:b.count] {
		if p := &w.ports[no]; p.owes(b) {
			w.flush(p, false)
		}
	}
	b.count = 0
}

// owes reports whether port p has not flushed since batch b was received.
func (p *txPort) owes(b *keptBatch) bool { return p.tx != nil && p.owedIn != 0 && p.owedIn <= b.turn }

// releaseIfFlushed releases q's kept batch once all its output ports were flushed.
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

// flushAndRelease flushes the output ports of q's kept batch, then releases all
// buffers of q.
func (w *Worker) flushAndRelease(q *rxQueue) {
	if q.kept.count > 0 {
		w.flushFor(&q.kept)
	}
	q.release(w.now)
}

// releaseBetweenBatches calls flushAndRelease and attributes any memory fault to q's
// port.
func (w *Worker) releaseBetweenBatches(q *rxQueue) {
	w.visit(q)
	w.flushAndRelease(q)
	w.rxInUse = nil
}

func (w *Worker) releaseAllQueues() {
	for at := range w.queues.count {
		w.releaseKept(w.queues.queue(at))
	}
}

func (w *Worker) releaseKept(q *rxQueue) {
	if q.kept.count > 0 || q.lateNS > 0 {
		q.lateNS = 0
		w.releaseBetweenBatches(q)
	}
}
