package traffic

// window is how far behind the highest sequence number a frame may come and still
// be told from a second copy. What comes later yet is counted as late, not as
// received: nobody knows whether it is a copy.
const window = 1 << 22

// tally counts the frames of one stream by their sequence numbers, exactly within
// the window. Its receiver owns it.
type tally struct {
	received   uint64 // different ones
	bytes      uint64 // of them
	duplicates uint64
	reordered  uint64 // came after one of a higher number (RFC 4737 section 3.3)
	distance   uint64 // of them: furthest behind the highest number seen
	late       uint64 // beyond the window
	next       uint64 // one more than the highest seen
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

// skip forgets the numbers a window before next to seq, whose place those come into.
func (t *tally) skip(seq uint64) {
	if seq-t.next >= window {
		clear(t.seen)
		return
	}
	for n := t.next; n <= seq; n++ {
		t.seen[n%window/64] &^= 1 << (n % 64)
	}
}

// jitter is the smoothed difference of transit times (RFC 3550 section 6.4.1), in
// nanoseconds.
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
