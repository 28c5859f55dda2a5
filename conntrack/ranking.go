// SPDX-License-Identifier: Apache-2.0

package conntrack

import "math/bits"

// A ranking finds the quota holder with the highest count, to within an eighth, without a search. Quota
// holders with similar counts are in one list, called a tier. A change of a count therefore costs only a
// few instructions.

const (
	// tierSteps is the number of tiers between a count and twice that count.
	tierSteps = 8
	// tiers is the number of tiers. It is enough for a count of MaxConnections.
	tiers = 256
)

// rank is the count of one quota holder, and its links to the neighbours in its tier.
type rank struct {
	count      uint32
	prev, next uint32 // 1 + the number of the neighbour in the tier's list; 0: none
	_          uint32
}

// A ranking orders quota holders by their count of connections or expectations. A tier is a range of
// counts; its quota holders form a list. The table's lock guards the ranking.
type ranking struct {
	marks [tiers / 64]uint64 // a bit for each tier that has holders
	first [tiers]uint32      // 1 + the number of the first quota holder in each tier
	used  uint32             // number of holders with a count above 0
	_     uint32
}

// tierOf returns the tier of a count. Larger counts have the same tier or a higher one. Only the count 0
// has tier 0.
func tierOf(count uint32) uint32 {
	if count < tierSteps {
		return count
	}
	e := uint32(bits.Len32(count)) - 1
	return (e-2)*tierSteps + count>>(e-3)%tierSteps
}

// The method set changes the count of quota holder i and moves it to the tier of this count. allRanks has
// the ranks of all quota holders.
func (r *ranking) set(allRanks []rank, i, count uint32) {
	k := &allRanks[i]
	was, is := tierOf(k.count)%tiers, tierOf(count)%tiers
	k.count = count
	if was == is {
		return
	}
	if was == 0 {
		r.used++
	} else {
		r.unlink(allRanks, k, was)
	}
	if is == 0 {
		r.used--
		return
	}
	k.prev, k.next = 0, r.first[is]
	if k.next != 0 {
		allRanks[k.next-1].prev = i + 1
	}
	r.first[is] = i + 1
	r.marks[is/64] |= 1 << (is % 64)
}

func (r *ranking) unlink(ranks []rank, k *rank, tier uint32) {
	if k.next != 0 {
		ranks[k.next-1].prev = k.prev
	}
	if k.prev != 0 {
		ranks[k.prev-1].next = k.next
		return
	}
	if r.first[tier%tiers] = k.next; k.next == 0 {
		r.marks[tier/64%(tiers/64)] &^= 1 << (tier % 64)
	}
}

// heaviest returns a quota holder of the highest tier, or none if all counts are 0.
func (r *ranking) heaviest() uint32 {
	for i := len(r.marks) - 1; i >= 0; i-- {
		if m := r.marks[i]; m != 0 {
			return r.first[(64*i+bits.Len64(m)-1)%tiers] - 1
		}
	}
	return none
}

// holderToEvict returns the quota holder from which a connection or expectation must be evicted, so that
// quota holder i gets one. It is a quota holder of the highest tier, if possible i itself. It returns none
// if all counts are 0.
func (r *ranking) holderToEvict(ranks []rank, i uint32) uint32 {
	h := r.heaviest()
	if h != none && tierOf(ranks[h].count) == tierOf(ranks[i].count) {
		return i
	}
	return h
}

// fairShare returns the number of items that quota holder i keeps even if all others want more. limit is the
// number of all items. The result is an equal part of it less an eighth, because tiers are an eighth wide.
func (r *ranking) fairShare(ranks []rank, i, limit uint32) uint32 {
	used := r.used
	if ranks[i].count == 0 {
		used++
	}
	if used < 2 {
		return limit
	}
	return limit / used * (tierSteps - 1) / tierSteps
}
