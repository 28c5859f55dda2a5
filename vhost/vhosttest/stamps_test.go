// SPDX-License-Identifier: Apache-2.0

package vhosttest

import (
	"math/rand/v2"
	"testing"
)

// stamps.note agrees with a simple map about late and repeated frames.
func TestStamps(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		s, came, top := &stamps{}, map[uint64]bool{}, uint64(0)
		for range 20_000 {
			stamp := top
			switch r.IntN(10) {
			case 0:
				stamp += r.Uint64N(300)
			case 1:
				stamp -= min(stamp, r.Uint64N(1000))
			}
			again, late := s.note(stamp)
			wantAgain := came[stamp]
			if wantLate := stamp < top && !wantAgain; again != wantAgain || late != wantLate {
				t.Fatalf("seed %d, stamp %d of %d: again %v, late %v; expected %v, %v", seed, stamp, top, again, late, wantAgain, wantLate)
			}
			came[stamp] = true
			top = max(top, stamp+1)
		}
		if again, _ := s.note(top - 1); !again {
			t.Fatal("the last frame does not count as repeated")
		}
		if again, late := s.note(top + 1_000_000); again || late {
			t.Fatal("a stamp far ahead counts as repeated or late")
		}
		if again, _ := s.note(0); !again {
			t.Fatal("a stamp older than the window does not count as repeated")
		}
		if again, late := s.note(top + 999_999); again || !late {
			t.Fatal("a skipped stamp that arrives afterwards does not count as late")
		}
	}
}
