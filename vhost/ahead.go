// SPDX-License-Identifier: Apache-2.0

package vhost

import "weft/packet"

// This file prefetches the frames of a transmit ring's next batch while the worker is busy with another
// queue. A frame of 64 bytes takes two cache lines, which come from the guest's core. A core can have few
// requests for cache lines in flight (16 on Intel's processors). If the worker requested the lines of a
// whole batch at once, it would stop until most of them have arrived. It therefore requests the lines of a
// few frames at a time, and does other work until they arrive (docs/decisions/0041).

// aheadFrames is the number of frames that one call of Prefetch prefetches. Their 14 cache lines are two
// fewer than the requests that a core can have in flight. A worker calls Prefetch five times in a batch.
const aheadFrames = 7

// ahead is the state of the batch that a receive queue will take next.
type ahead struct {
	peeked  int // number of valid elements of ring.heads; the first one is the next chain to take
	fetched int // number of these chains whose frames were prefetched
}

// peekAhead copies the first descriptors of the next batch into ring.heads. It does nothing if the driver
// had made less than a whole batch available when the avail index was last read, or if the ring is packed.
// Recv calls it instead of Prefetch, because it reads guest memory: a fault of the guest's memory must
// happen while the worker serves this queue.
func (q *rx) peekAhead() {
	if q.packed || q.availCount-q.takenCount < packet.BatchSize {
		return
	}
	q.peeked = q.peek(packet.BatchSize)
	q.prefetchAvail(packet.BatchSize)
}

// Prefetch implements port.Prefetcher. It prefetches up to aheadFrames frames of the next batch.
func (q *rx) Prefetch() {
	if n := min(aheadFrames, q.peeked-q.fetched); n > 0 {
		q.prefetchHeads(q.fetched, q.fetched+n)
		q.fetched += n
	}
}

// prefetchHeads prefetches the first bytes of the frames whose descriptors are heads[from:to].
func (q *rx) prefetchHeads(from, to int) {
	prefetchRead(&q.heads[from], to-from, q.cached.base-uintptr(q.cached.guest), q.firstReadByte())
}

// peekFrames reads the first descriptors of the next n chains and prefetches their frames. It skips
// descriptors that peekAhead has already read, and frames that Prefetch has already prefetched. It returns
// the number of valid descriptors, as peek does.
func (q *rx) peekFrames(n int) int {
	known := q.ahead
	if q.ahead = (ahead{}); n > known.peeked {
		n, known.fetched = q.peek(n), 0
	}
	if known.fetched < n {
		q.prefetchHeads(known.fetched, n)
	}
	return n
}
