// SPDX-License-Identifier: Apache-2.0

package datapath

import "weft/packet"

// A batch costs as much as ten frames of a known flow, whatever its size: cache lines
// of the ring travel to the guest's core and back, and each stage has fixed work.
// While other queues keep the worker busy, a queue with a frame or two at each visit
// costs them more than its frames do. So the worker leaves such a queue alone until
// frames have gathered, for about as long as frames wait anyway in the rings of an
// overloaded worker.

const (
	// gatherNS is the time for which a queue is not visited.
	gatherNS = 30_000
	// gatherBelow is the number of frames from which on a batch is worth its fixed
	// cost.
	gatherBelow = packet.BatchSize * 3 / 4
	// busyPasses is the number of consecutive passes with a full batch after which
	// the worker counts as busy. It exceeds the bursts of a single guest whose frames
	// circulate.
	busyPasses = 16
)

// skipGathering reports whether q gathers frames and is not visited in this pass.
func (w *Worker) skipGathering(q *rxQueue) bool {
	return w.fullPasses >= busyPasses && w.now < q.nextNS
}

// scheduleVisit sets the next visit of q, which had n frames. An empty queue is
// visited in the next pass, so that its first frame does not wait.
func (w *Worker) scheduleVisit(q *rxQueue, n int) {
	if q.nextNS = 0; n > 0 && n < gatherBelow {
		q.nextNS = w.now + gatherNS
	}
}

// countFullPasses ends a pass; full says that some queue had a full batch.
func (w *Worker) countFullPasses(full bool) {
	if w.fullPasses++; !full {
		w.fullPasses = 0
	}
}
