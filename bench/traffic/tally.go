// SPDX-License-Identifier: Apache-2.0

package traffic

// window is how far behind the highest sequence number a frame can be told from a
// duplicate. A frame further behind counts as late, not as received.
const window = 1 << 22

// tally counts the frames of one stream by their sequence numbers, exactly within the
// window. Its receiver owns it.
type tally struct {
	received   uint64 // distinct frames
	bytes      uint64 // bytes of these
	duplicates uint64
	reordered  uint64 // arrived after a higher number (RFC 4737 section 3.3)
	distance   uint64 // greatest distance of these behind the highest number
	late       uint64 // behind the window
	next       uint64 // highest number seen plus one
	seen       []uint64
}

func newTally() *tally { return &tally{seen: make([]uint64, window/64)} }

// add counts a frame.
func (t *tally) add(seq uint64, size int) {
	switch {
	case seq >= t.next:
		t.skip(seq)
		t.next = seq + 1
	case t.next-seq > window:
		t.late++
		return
	case t.has(seq):
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

func (t *tally) has(seq uint64) bool { return t.seen[seq%window/64]>>(seq%64)&1 != 0 }

// skip advances to seq and forgets the numbers that leave the window.
func (t *tally) skip(seq uint64) {
	if seq-t.next >= window {
		clear(t.seen)
		return
	}
	for n := t.next; n <= seq; n++ {
		t.seen[n%window/64] &^= 1 << (n % 64)
	}
}

// jitter is the smoothed difference of transit times in nanoseconds (RFC 3550 section
// 6.4.1).
type jitter struct {
	value   float64
	transit int64
	any     bool
}

func (j *jitter) add(transit int64) {
	if j.any {
		d := transit - j.transit
		if d < 0 {
			d = -d
		}
		j.value += (float64(d) - j.value) / 16
	}
	j.transit, j.any = transit, true
}
