// SPDX-License-Identifier: Apache-2.0

package vhosttest

import (
	"math/rand/v2"
	"testing"
)

// stamps agree with a map for frames that are lost, late or repeated.
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
			t.Fatal("the last frame is not known")
		}
		if again, late := s.note(top + 1_000_000); again || late {
			t.Fatal("a jump ahead")
		}
		if again, _ := s.note(0); !again {
			t.Fatal("a frame from before the window counts as come")
		}
		if again, late := s.note(top + 999_999); again || !late {
			t.Fatal("what a jump left out is late")
		}
	}
}
