// SPDX-License-Identifier: Apache-2.0

package traffic

// window is the number of sequence numbers, up to the highest one, among which a tally recognizes
// duplicates. A frame before them counts as late.
const window = 1 << 22

// tally counts the frames of one stream by sequence number. The receiving goroutine owns it.
type tally struct {
	received   uint64 // number of distinct frames
	bytes      uint64 // number of bytes of distinct frames
	duplicates uint64
	// number of frames that arrived after a frame with a higher sequence number (RFC
	// 4737 section 3.3)
	reordered uint64
	distance  uint64 // largest distance behind the highest sequence number
	overtaken uint64 // number of frames that arrived too late to be told from duplicates
	next      uint64 // highest received sequence number plus one
	seen      []uint64
}

func newTally() *tally { return &tally{seen: make([]uint64, window/64)} }

func (t *tally) add(seq uint64, size int) {
	switch {
	case seq >= t.next:
		t.skip(seq)
		t.next = seq + 1
	case t.next-seq > window:
		t.overtaken++
		return
	case t.contains(seq):
		t.duplicates++
		return
	default:
		t.reordered++
		t.distance = max(t.distance, t.next-1-seq)
	}
	t.seen[seq%window/64] |= 1 << (seq % 64)
	t.received++
	t.bytes += uint64(size)
}

func (t *tally) contains(seq uint64) bool { return t.seen[seq%window/64]>>(seq%64)&1 != 0 }

func (t *tally) skip(seq uint64) {
	if seq-t.next >= window {
		clear(t.seen)
		return
	}
	for n := t.next; n <= seq; n++ {
		t.seen[n%window/64] &^= 1 << (n % 64)
	}
}

// jitter is the smoothed difference of consecutive transit times in nanoseconds (RFC
// 3550 section 6.4.1).
type jitter struct {
	value   float64
	transit int64
	valid   bool
}

func (j *jitter) add(transit int64) {
	if j.valid {
		d := transit - j.transit
		if d < 0 {
			d = -d
		}
		j.value += (float64(d) - j.value) / 16
	}
	j.transit, j.valid = transit, true
}
