package datapath

import "weft/packet"

// A batch costs as much as ten frames of a known flow do, whatever it has: lines of the
// ring that go to the guest's core and back, a look at each stage. Where others keep the
// worker busy, a queue with a frame or two at each visit costs them more than its frames
// do. So it is left to gather some, for about as long as frames wait anyway in the rings
// of a worker that has more of them than it can take.

const (
	// gatherNS is how long a queue is not visited.
	gatherNS = 30_000
	// gatherBelow is the number of frames from which on a batch is worth its cost.
	gatherBelow = packet.BatchSize * 3 / 4
	// busyPasses are the passes in a row with a full batch that make a worker one that
	// others keep busy: more than the bursts of a guest whose frames go round.
	busyPasses = 16
)

// letGather tells whether q is not to be visited in this pass.
func (w *Worker) letGather(q *rxQueue) bool {
	return w.fullPasses >= busyPasses && w.now < q.nextNS
}

// note sets the next visit of q, which had n frames. One that had none is looked at
// again at once: its first frame waits for nothing.
func (w *Worker) note(q *rxQueue, n int) {
	if q.nextNS = 0; n > 0 && n < gatherBelow {
		q.nextNS = w.now + gatherNS
	}
}

// noteFull ends a pass: full tells that a queue had a full batch.
func (w *Worker) noteFull(full bool) {
	if w.fullPasses++; !full {
		w.fullPasses = 0
	}
}
