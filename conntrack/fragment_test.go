// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"math/rand"
	"slices"
	"testing"
)

// slowDatagram is a reference implementation of one incomplete datagram: a map of its bytes.
type slowDatagram struct {
	bytes     map[uint32]bool
	seen      map[[2]uint32]bool
	last      uint32 // 0: the last fragment has not arrived yet
	n         int
	discarded bool
}

func (d *slowDatagram) add(fr *Fragment) FragmentVerdict {
	if d.discarded || d.seen[[2]uint32{fr.From, fr.To}] {
		return FragmentTwice
	}
	bad := d.n == MaxFragments || d.last != 0 && (fr.To > d.last || !fr.More)
	for b := range d.bytes {
		bad = bad || b >= fr.From && b < fr.To || !fr.More && b >= fr.To
	}
	if bad {
		d.discarded = true
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
		d.discarded = true
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
		sender := uint32(rng.Intn(8)) * 16
		fr := Fragment{Key: FragmentKey{ID: id, Proto: 17}, From: sender, To: sender + 16, More: sender < 7*16}
		switch rng.Intn(60) {
		case 0:
			fr.To += 8
		case 1:
			fr.More = !fr.More
		}
		want := slow[id].add(&fr)
		n, got := fast.Add(&fr, slot, 1)
		if got != want {
			t.Fatalf("%+v: verdict %d, want %d", fr, got, want)
		}
		if got == FragmentCompletes {
			if slots := fast.Slots(n, nil); len(slots) != slow[id].n || slices.Index(slots, slot) < 0 {
				t.Fatalf("slots %v, want %d of them", slots, slow[id].n)
			}
		}
		if slow[id].discarded && rng.Intn(3) == 0 {
			fast.Free(n)
			delete(slow, id)
		}
	}
}

// When there are as many incomplete datagrams as allowed, a new one is refused until older ones expire.
func TestFragmentLimits(t *testing.T) {
	var r Fragments
	refused := 0
	const each = 4 * MaxDatagrams / 8
	for port := range uint32(8) {
		for id := range uint32(each) {
			if _, v := r.Add(&Fragment{Key: FragmentKey{Port: port, ID: id}, Sender: port, To: 8, More: true}, id, 0); v == FragmentNoRoom {
				refused++
			}
		}
	}
	if r.Count+refused != 8*each || r.Count < MaxDatagrams/2 {
		t.Fatalf("%d datagrams held, %d refused", r.Count, refused)
	}
	if r.Expired(0, fragmentTimeoutNS) >= 0 {
		t.Fatal("a datagram expired before its timeout")
	}
	for n := r.Expired(0, fragmentTimeoutNS+1); n >= 0; n = r.Expired(0, fragmentTimeoutNS+1) {
		r.Free(n)
	}
	if r.Count != 0 {
		t.Fatalf("%d datagrams left, want 0", r.Count)
	}
}

// One port sends only first fragments, even with equal hashes. Another port can still
// complete its datagrams.
func TestFragmentsOfAFlood(t *testing.T) {
	for _, length := range []uint32{8, 9} { // a second fragment overlaps the first, so the datagram is discarded
		r := Fragments{Seed: 7}
		var unseeded Fragments
		flood := func(id uint32) bool {
			fr := Fragment{Key: FragmentKey{Port: 1, ID: id}, Sender: 1, To: 16, More: true}
			n, v := r.Add(&fr, id, 0)
			if v == FragmentWaits && length == 9 {
				fr.From, fr.To = 8, 8+length
				if _, v := r.Add(&fr, id, 0); v != FragmentBad {
					t.Fatal(v)
				}
				r.Empty(n)
			}
			return v != FragmentNoRoom
		}
		taken := 0
		for id := range uint32(1 << 16) {
			if unseeded.slot(&FragmentKey{Port: 1, ID: id}) < MaxDatagrams/2 && flood(id) {
				taken++
			}
		}
		if taken < MaxDatagrams/4 || taken > MaxDatagrams/2 {
			t.Errorf("unexpected number of datagrams of one port: %d", taken)
		}
		refused := 0
		for id := range uint32(MaxDatagrams / 8) {
			if _, v := r.Add(&Fragment{Key: FragmentKey{Port: 2, ID: id}, Sender: 2, To: 8, More: true}, id, 0); v == FragmentNoRoom {
				refused++
			}
		}
		if refused != 0 {
			t.Errorf("%d of %d datagrams of the other port refused", refused, MaxDatagrams/8)
		}
		for n := r.Expired(0, fragmentTimeoutNS+1); n >= 0; n = r.Expired(0, fragmentTimeoutNS+1) {
			r.Free(n)
		}
		if r.Count != 0 || r.bySender != [MaxSenders]uint16{} || r.chains != [MaxDatagrams]uint16{} {
			t.Errorf("%d datagrams left, by sender %v", r.Count, r.bySender[:3])
		}
	}
}

// Many senders begin more and more datagrams. Each of them gets the same number of
// records, and free records remain for another sender.
func TestFragmentsOfManySenders(t *testing.T) {
	const senders = 15
	r := Fragments{Seed: 7}
	add := func(sender, id uint32, now uint64) FragmentVerdict {
		_, v := r.Add(&Fragment{Key: FragmentKey{Port: sender, ID: id}, Sender: sender, To: 8, More: true}, id, now)
		return v
	}
	id := uint32(0)
	for now := uint64(0); now < 20*fragmentTimeoutNS; now += fragmentTimeoutNS / 100 {
		for n := r.Expired(0, now); n >= 0; n = r.Expired(n+1, now) {
			r.Free(n)
		}
		for sender := range uint32(senders) {
			id++
			add(sender, id, now)
		}
	}
	free := MaxDatagrams - r.Count
	if free < MaxDatagrams/(senders+1)/2 {
		t.Fatalf("%d records free beside %d senders, which hold %v", free, senders, r.bySender[:senders])
	}
	for i := range uint32(free / 2) {
		if v := add(100, i, 20*fragmentTimeoutNS); v != FragmentWaits {
			t.Errorf("datagram %d of %d: verdict %v", i, free/2, v)
		}
	}
}
