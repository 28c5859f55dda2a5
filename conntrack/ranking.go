package conntrack

import "math/bits"

// A ranking finds the holder that has most of something, to within an eighth, without
// a search: holders whose counts are about the same are linked in a tier. Counting one
// more or less costs a few instructions, and relinking where the tier changes.

const (
	// tierSteps are the tiers between a count and its double.
	tierSteps = 8
	// tiers are enough for a count of MaxConnections.
	tiers = 256
)

// rank is one holder's place. The zero rank has nothing, and is in no tier.
type rank struct {
	count      uint32
	prev, next uint32 // in the tier; number of a holder, plus one
	_          uint32
}

// ranking is guarded by the table's lock.
type ranking struct {
	marks [tiers / 64]uint64 // tiers that have holders
	first [tiers]uint32      // number of a holder, plus one
	used  uint32             // holders that have something
	_     uint32
}

// tierOf is the tier of a count: higher for more, and 0 for 0 alone.
func tierOf(count uint32) uint32 {
	if count < tierSteps {
		return count
	}
	e := uint32(bits.Len32(count)) - 1
	return (e-2)*tierSteps + count>>(e-3)%tierSteps
}

// set gives holder i of all a count.
func (r *ranking) set(all []rank, i, count uint32) {
	k := &all[i]
	was, is := tierOf(k.count)%tiers, tierOf(count)%tiers
	k.count = count
	if was == is {
		return
	}
	if was == 0 {
		r.used++
	} else {
		r.unlink(all, k, was)
	}
	if is == 0 {
		r.used--
		return
	}
	k.prev, k.next = 0, r.first[is]
	if k.next != 0 {
		all[k.next-1].prev = i + 1
	}
	r.first[is] = i + 1
	r.marks[is/64] |= 1 << (is % 64)
}

func (r *ranking) unlink(all []rank, k *rank, tier uint32) {
	if k.next != 0 {
		all[k.next-1].prev = k.prev
	}
	if k.prev != 0 {
		all[k.prev-1].next = k.next
		return
	}
	if r.first[tier%tiers] = k.next; k.next == 0 {
		r.marks[tier/64%(tiers/64)] &^= 1 << (tier % 64)
	}
}

// heaviest is a holder of the highest tier, none if nobody has anything.
func (r *ranking) heaviest() uint32 {
	for i := len(r.marks) - 1; i >= 0; i-- {
		if m := r.marks[i]; m != 0 {
			return r.first[(64*i+bits.Len64(m)-1)%tiers] - 1
		}
	}
	return none
}

// payer is the holder that makes room for i, none if nobody has anything: a heaviest
// one, and i itself if nobody is in a higher tier.
func (r *ranking) payer(all []rank, i uint32) uint32 {
	h := r.heaviest()
	if h != none && tierOf(all[h].count) == tierOf(all[i].count) {
		return i
	}
	return h
}

// fairShare is what each of the holders has at least, of limit, if all want more than
// there is: an equal part but for what a tier is wide. i counts as one of them.
func (r *ranking) fairShare(all []rank, i, limit uint32) uint32 {
	used := r.used
	if all[i].count == 0 {
		used++
	}
	if used < 2 {
		return limit
	}
	return limit / used * (tierSteps - 1) / tierSteps
}
