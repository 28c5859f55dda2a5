package datapath

// keptBatch is a batch that is not given back yet, for frames of it wait in ports whose
// flush is owed: an engine that dies in between must not have given back what nobody
// was shown.
type keptBatch struct {
	turn  uint64 // pass in which it came
	count uint8  // ports; 0: no batch is kept
	ports [maxKeptFor]uint16
}

// maxKeptFor bounds the ports for which a batch is kept; frames that went to more of
// them wait for nothing.
const maxKeptFor = 4

// release gives the batch in hand back to its queue, or keeps it for as long as its
// frames wait, until the queue's next batch at most.
func (w *Worker) release(q *rxQueue) {
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
		w.giveBack(q)
	case kept.count > 0:
		q.kept = kept
	default:
		q.release(w.now)
	}
}

// streamNS is how long after a full batch the next is expected.
const streamNS = 100_000

// release gives back what the queue has lent; in a stream of full batches the newest
// may go back late (decision 0025).
func (q *rxQueue) release(now uint64) {
	if now < q.lateNS {
		q.keeper.ReleaseLate()
		return
	}
	q.lateNS = 0
	q.rx.Release()
}

// flushFor flushes the ports that still owe that to a batch.
func (w *Worker) flushFor(b *keptBatch) {
	for _, no := range b.ports[:b.count] {
		if p := &w.ports[no]; p.owes(b) {
			w.flush(p, false)
		}
	}
	b.count = 0
}

// owes tells whether frames of a batch may wait in a port.
func (p *txPort) owes(b *keptBatch) bool { return p.tx != nil && p.owedIn != 0 && p.owedIn <= b.turn }

// giveShownBack gives a queue the batch back that was kept, if its frames have been
// shown meanwhile, with those of another queue: so the next one may wait again.
func (w *Worker) giveShownBack(q *rxQueue) {
	for _, no := range q.kept.ports[:q.kept.count] {
		if w.ports[no].owes(&q.kept) {
			return
		}
	}
	if q.kept.count > 0 {
		w.giveBackAlone(q)
	}
}

// giveBack gives a queue all its batches back.
func (w *Worker) giveBack(q *rxQueue) {
	if q.kept.count > 0 {
		w.flushFor(&q.kept)
	}
	q.release(w.now)
}

// giveBackAlone is giveBack where no batch is in hand: a fault is the queue's.
func (w *Worker) giveBackAlone(q *rxQueue) {
	w.visit(q)
	w.giveBack(q)
	w.rxInUse = nil
}

// giveAllBack keeps nothing of any queue.
func (w *Worker) giveAllBack() {
	for at := range w.queues.count {
		w.giveKeptBack(w.queues.at(at))
	}
}

func (w *Worker) giveKeptBack(q *rxQueue) {
	if q.kept.count > 0 || q.lateNS > 0 {
		q.lateNS = 0
		w.giveBackAlone(q)
	}
}
