// SPDX-License-Identifier: Apache-2.0

package datapath

import "weft/packet"

// A batch has a fixed cost, equal to that of ten frames of a known flow: cache lines
// of the ring travel to the guest's core and back, and each stage has fixed work.
// While other queues keep the worker busy, visiting a queue for one or two frames
// costs the other queues more than these frames are worth. The worker therefore does
// not visit such a queue until more frames have gathered. The wait is about as long
// as frames wait anyway in the rings of an overloaded worker.

const (
	// gatherNS is the time in nanoseconds for which a queue with few frames is not
	// visited.
	gatherNS = 30_000
	// gatherBelow is the number of frames below which a batch is not worth its fixed
	// cost.
	gatherBelow = packet.BatchSize * 3 / 4
	// busyPasses is the number of consecutive passes with a full batch after which
	// the worker counts as busy. The bursts of a single guest whose frames circulate
	// are shorter.
	busyPasses = 16
)

// skipGathering reports whether queue q is not visited in this pass, so that more
// frames gather.
func (w *Worker) skipGathering(q *rxQueue) bool {
	return w.fullPasses >= busyPasses && w.now < q.nextNS
}

// scheduleVisit sets the time of the next visit of q. n is the number of frames of
// this visit. A queue that was empty is visited in the next pass, so that its first
// frame does not wait.
func (w *Worker) scheduleVisit(q *rxQueue, n int) {
	if q.nextNS = 0; n > 0 && n < gatherBelow {
		q.nextNS = w.now + gatherNS
	}
}

// countFullPasses counts consecutive passes with a full batch. full tells whether
// some queue had a full batch in this pass.
func (w *Worker) countFullPasses(full bool) {
	if w.fullPasses++; !full {
		w.fullPasses = 0
	}
}
