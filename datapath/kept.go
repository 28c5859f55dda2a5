// SPDX-License-Identifier: Apache-2.0

package datapath

// keptBatch is a received batch whose buffers are not released yet, because some of its
// frames still wait for the flush of an output port. If the engine dies before the
// flush, the next engine receives the batch again.
type keptBatch struct {
	turn  uint64 // pass in which the batch was received
	count uint8  // number of output ports with an outstanding flush; 0: no batch is kept
	ports [maxKeptFor]uint16
}

// maxKeptFor is the largest number of output ports for whose flush a batch is kept.
// Further ports are flushed at once.
const maxKeptFor = 4

// releaseOrKeep ends the batch of queue q. If output ports have postponed the flush of
// the batch's frames, q keeps the batch unreleased, at most until its next batch.
// Otherwise the batch is released.
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

// streamNS is the time in nanoseconds for which a full batch counts as part of a stream of
// full batches.
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

// flushFor flushes all output ports that have frames of the kept batch b.
func (w *Worker) flushFor(b *keptBatch) {
	for _, no := range b.ports[:b.count] {
		if p := &w.ports[no]; p.owes(b) {
			w.flush(p, false)
		}
	}
	b.count = 0
}

// owes reports whether port p has an outstanding flush of frames of batch b.
func (p *txPort) owes(b *keptBatch) bool { return p.tx != nil && p.owedIn != 0 && p.owedIn <= b.turn }

// releaseIfFlushed releases the kept batch of queue q when all its output ports have
// been flushed.
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

// flushAndRelease flushes the output ports of the kept batch of queue q, and then
// releases all buffers of q.
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

// releaseAllQueues releases the kept batches of all queues. Parked queues have none.
func (w *Worker) releaseAllQueues() {
	for at := range w.queues.awake {
		w.releaseKept(w.queues.queue(at))
	}
}

func (w *Worker) releaseKept(q *rxQueue) {
	if q.kept.count > 0 || q.lateNS > 0 {
		q.lateNS = 0
		w.releaseBetweenBatches(q)
	}
}
