package conntrack

import (
	"math/rand"
	"slices"
	"testing"
)

// Twin: a map of bytes.
type slowDatagram struct {
	bytes map[uint32]bool
	seen  map[[2]uint32]bool
	last  uint32 // 0: not there yet
	n     int
	over  bool
}

func (d *slowDatagram) add(fr *Fragment) FragmentVerdict {
	if d.over || d.seen[[2]uint32{fr.From, fr.To}] {
		return FragmentTwice
	}
	bad := d.n == MaxFragments || d.last != 0 && (fr.To > d.last || !fr.More)
	for b := range d.bytes {
		bad = bad || b >= fr.From && b < fr.To || !fr.More && b >= fr.To
	}
	if bad {
		d.over = true
		return FragmentBad
	}
	for b := fr.From; b < fr.To; b++ {
		d.bytes[b] = true
	}
	d.seen[[2]uint32{fr.From, fr.To}] = true
	d.n++
	if !fr.More {
		d.last = fr.To
	}
	if d.last != 0 && len(d.bytes) == int(d.last) {
		d.over = true
		return FragmentCompletes
	}
	return FragmentWaits
}

func TestFragmentsTwin(t *testing.T) {
	for seed := range int64(2000) {
		tryFragments(t, seed)
	}
}

func FuzzFragments(f *testing.F) {
	for seed := range int64(10) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) { tryFragments(t, seed) })
}

func tryFragments(t *testing.T, seed int64) {
	rng := rand.New(rand.NewSource(seed))
	var fast Fragments
	slow := map[uint32]*slowDatagram{}
	for slot := range uint32(150) {
		id := uint32(rng.Intn(3))
		if slow[id] == nil {
			slow[id] = &slowDatagram{bytes: map[uint32]bool{}, seen: map[[2]uint32]bool{}}
		}
		from := uint32(rng.Intn(8)) * 16
		fr := Fragment{Key: FragmentKey{ID: id, Proto: 17}, From: from, To: from + 16, More: from < 7*16}
		switch rng.Intn(60) {
		case 0:
			fr.To += 8
		case 1:
			fr.More = !fr.More
		}
		want := slow[id].add(&fr)
		n, got := fast.Add(&fr, slot, 1)
		if got != want {
			t.Fatalf("%+v: %d, twin %d", fr, got, want)
		}
		if got == FragmentCompletes {
			if slots := fast.Slots(n, nil); len(slots) != slow[id].n || slices.Index(slots, slot) < 0 {
				t.Fatalf("slots %v of %d", slots, slow[id].n)
			}
		}
		if slow[id].over && rng.Intn(3) == 0 {
			fast.Free(n)
			delete(slow, id)
		}
	}
}

// Datagrams beyond the limit are refused, and time makes room.
func TestFragmentLimits(t *testing.T) {
	var r Fragments
	refused := 0
	for id := range uint32(4 * MaxDatagrams) {
		if _, v := r.Add(&Fragment{Key: FragmentKey{ID: id}, To: 8, More: true}, id, 0); v == FragmentNoRoom {
			refused++
		}
	}
	if r.Count+refused != 4*MaxDatagrams || r.Count < MaxDatagrams/2 {
		t.Fatalf("%d held, %d refused", r.Count, refused)
	}
	if r.Expired(FragmentTimeoutNS) >= 0 {
		t.Fatal("too early")
	}
	for n := r.Expired(FragmentTimeoutNS + 1); n >= 0; n = r.Expired(FragmentTimeoutNS + 1) {
		r.Free(n)
	}
	if r.Count != 0 {
		t.Fatalf("%d left", r.Count)
	}
}
