// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"math/rand"
	"testing"
)

// The ranking finds the same quota holder as a linear search, for counts of all
// sizes.
func TestRankingTwin(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	for range 50 {
		var r ranking
		all := make([]rank, 40)
		for range 2000 {
			i := uint32(rng.Intn(len(all)))
			switch n := all[i].count; rng.Intn(4) {
			case 0:
				r.set(all, i, n+1)
			case 1:
				r.set(all, i, n-min(n, 1))
			case 2:
				r.set(all, i, uint32(rng.Intn(MaxConnections+1))>>rng.Intn(27))
			case 3:
				r.set(all, i, 0)
			}
			most, used := uint32(0), uint32(0)
			for k := range all {
				most, used = max(most, all[k].count), used+min(all[k].count, 1)
			}
			h := r.heaviest()
			if r.used != used || (h == none) != (most == 0) {
				t.Fatalf("the ranking counts %d of %d holders; its heaviest is %d", r.used, used, h)
			}
			if h != none && (all[h].count > most || most-all[h].count > most/tierSteps) {
				t.Fatalf("the ranking's heaviest holder has %d, another has %d", all[h].count, most)
			}
		}
	}
}

// A higher count never has a lower tier, and even the largest count has a tier.
func TestTiersRise(t *testing.T) {
	last := uint32(0)
	for n := uint32(0); n <= MaxConnections; n += 1 + n/64 {
		tier := tierOf(n)
		if tier < last || tier >= tiers || n > 0 && tier == 0 {
			t.Fatalf("count %d is in tier %d, below tier %d of a lower count", n, tier, last)
		}
		last = tier
	}
	if tierOf(MaxConnections) >= tiers {
		t.Errorf("the highest count is in tier %d, which does not exist", tierOf(MaxConnections))
	}
}
