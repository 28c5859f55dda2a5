// SPDX-License-Identifier: Apache-2.0

package datapath

// keptBatch is a batch that was handled, but whose receive buffers are not released yet. The reason is that
// output ports have postponed the flush of some of its frames. If the engine process dies before the flush,
// the next engine process receives these frames again.
type keptBatch struct {
	turn  uint64             // pass in which the batch was received
	count uint8              // number of entries in ports; 0: no batch is kept
	ports [maxKeptFor]uint16 // output ports that had postponed their flush when the batch ended
}

// maxKeptFor is the largest number of output ports that may postpone their flush of one batch. If more
// of them do, the worker flushes all and releases the batch at once.
const maxKeptFor = 4

// releaseOrKeep ends the batch of queue q. If output ports have postponed the flush of the batch's
// frames, q keeps the batch, at most until the end of its next batch. Otherwise releaseOrKeep
// releases the batch's buffers.
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

// streamNS is the time in nanoseconds after a full batch for which its queue counts as being in a
// stream of full batches.
const streamNS = 100_000

// release releases the queue's receive buffers. Within streamNS after a full batch, the queue may keep the
// newest buffers until the next release (docs/decisions/0025).
func (q *rxQueue) release(now uint64) {
	if now < q.lateNS {
		q.keeper.ReleaseLate()
		return
	}
	q.lateNS = 0
	q.rx.Release()
}

// flushFor flushes all output ports that still postpone the flush of frames of batch b.
func (w *Worker) flushFor(b *keptBatch) {
	for _, no := range b.ports[:b.count] {
		if p := &w.ports[no]; p.owes(b) {
			w.flush(p, false)
		}
	}
	b.count = 0
}

// owes reports whether port p has postponed the flush of frames of batch b and not made it yet.
func (p *txPort) owes(b *keptBatch) bool { return p.tx != nil && p.owedIn != 0 && p.owedIn <= b.turn }

// releaseIfFlushed releases the receive buffers that queue q has kept because of postponed flushes, if all
// these flushes were made.
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

// flushAndRelease makes the postponed flushes for which queue q keeps receive buffers. Then it releases all
// buffers of q.
func (w *Worker) flushAndRelease(q *rxQueue) {
	if q.kept.count > 0 {
		w.flushFor(&q.kept)
	}
	q.release(w.now)
}

// releaseBetweenBatches calls flushAndRelease while the worker handles no batch. It first records q as the
// queue in use, so that q's port counts as the cause of a memory fault.
func (w *Worker) releaseBetweenBatches(q *rxQueue) {
	w.visit(q)
	w.flushAndRelease(q)
	w.rxInUse = nil
}

// releaseAllQueues releases the receive buffers of all queues that have postponed their release. Parked
// queues have none.
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
