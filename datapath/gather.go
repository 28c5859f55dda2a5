// SPDX-License-Identifier: Apache-2.0

package datapath

import "weft/packet"

// This file lets frames accumulate in receive queues. A batch has a fixed cost that equals the cost
// of ten frames of a known flow: cache lines of the ring move between cores, and each
// stage has fixed work. A busy worker therefore skips a queue with few frames until
// more have arrived. The delay is about as long as frames wait in the rings of an
// overloaded worker anyway.

const (
	// gatherNS is the time in nanoseconds for which a busy worker skips a queue after a batch of few
	// frames.
	gatherNS = 30_000
	// gatherBelow is the batch size below which a queue counts as having few frames.
	gatherBelow = packet.BatchSize * 3 / 4
	// busyPasses is the number of consecutive passes of the worker's loop with a full batch after which a worker
	// counts as busy. A burst of a single guest fills fewer passes.
	busyPasses = 16
)

// skips reports whether this pass of the worker's loop skips queue q so that more frames arrive first.
func (p *pacing) skips(q *rxQueue, now uint64) bool {
	return p.fullPasses >= busyPasses && now < q.nextNS
}

// scheduleVisit sets the time until which a busy worker skips queue q, which has just been polled. n is the
// number of frames of this poll. An empty queue is polled again in the next pass of the worker's loop.
func (q *rxQueue) scheduleVisit(n int, now uint64) {
	q.nextNS = 0
	if n == 0 {
		return
	}
	q.usedNS = now
	if n < gatherBelow {
		q.nextNS = now + gatherNS
	}
}

// countFullPasses counts consecutive passes of the worker's loop in which some queue had a full batch.
func (p *pacing) countFullPasses(full bool) {
	if p.fullPasses++; !full {
		p.fullPasses = 0
	}
}
