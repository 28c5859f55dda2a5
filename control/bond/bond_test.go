// SPDX-License-Identifier: Apache-2.0

package bond

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// rig is a bond with a clock that only the test advances.
type rig struct {
	t      *testing.T
	bond   Bond
	config Config
	now    time.Time
	links  []Link
}

func newRig(t *testing.T, config Config, members int) *rig {
	r := &rig{t: t, config: config, now: time.Unix(1000, 0)}
	for n := range members {
		r.links = append(r.links, Link{Number: uint32(n + 1)})
	}
	return r
}

// step advances the clock and sets the links that are up. It checks the active member and the
// enabled members.
func (r *rig) step(pause time.Duration, up string, active uint32, enabled string) {
	r.t.Helper()
	r.now = r.now.Add(pause)
	for i := range r.links {
		r.links[i].Up = slices.Contains([]byte(up), byte('1'+i))
	}
	r.bond.Step(r.now, r.config, r.links)
	got := ""
	for _, m := range r.bond.Show(r.now) {
		if m.Enabled {
			got += fmt.Sprint(m.Number)
		}
	}
	if r.bond.Active() != active || got != enabled {
		r.t.Errorf("up %s: active %d, enabled %s; want %d, %s", up, r.bond.Active(), got, active, enabled)
	}
}

func TestActiveBackup(t *testing.T) {
	r := newRig(t, Config{}, 3)
	r.step(0, "", 0, "")
	r.step(0, "23", 2, "23")
	r.step(0, "123", 2, "123") // the active member stays
	r.step(0, "13", 1, "13")
	r.step(0, "", 0, "")
	r.step(0, "3", 3, "3")
	r.config.Primary = 2
	r.step(0, "123", 2, "123")
	if !r.bond.SetActive(1) || r.bond.SetActive(9) {
		t.Error("the operator's choice")
	}
	r.step(0, "123", 1, "123")
	r.step(0, "23", 2, "23")
	r.step(0, "123", 2, "123") // the choice has ended with its member
	if !r.bond.Enable(2, false) || r.bond.Enable(9, true) {
		t.Error("disable-member")
	}
	r.step(0, "123", 1, "13")
	r.bond.Enable(2, true)
	r.step(0, "123", 2, "123")
	r.links = r.links[:1]
	r.step(0, "1", 1, "1")
}

// A change of a link takes effect after its delay, unless the link returns before. The first
// link takes effect at once, because without it the bond would have none.
func TestDelays(t *testing.T) {
	const second = time.Second
	r := newRig(t, Config{UpDelay: 10 * second, DownDelay: 3 * second}, 2)
	r.step(0, "12", 1, "1")
	r.step(9*second, "12", 1, "1")
	r.step(0, "1", 1, "1")
	r.step(5*second, "12", 1, "1") // counts from anew
	if m := r.bond.Show(r.now)[1]; !m.Pending || m.Left != 10*second || !m.Up {
		t.Errorf("%+v", m)
	}
	r.step(10*second, "12", 1, "12")
	r.step(0, "2", 1, "12")
	r.step(2*second, "12", 1, "12")
	r.step(0, "2", 1, "12")
	r.step(3*second, "2", 2, "2")
	r.step(0, "", 2, "2")
	r.step(second, "1", 2, "2")
	r.step(2*second, "1", 1, "1") // nothing else is up, so the rest of the delay does not count
}

// Every bucket has an enabled member, and members have equal shares. A member that is disabled
// moves no bucket of the others.
func TestBuckets(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 7))
		var b Bond
		var links []Link
		for n := range 1 + r.Uint32N(8) {
			links = append(links, Link{Number: n + 1, Up: r.IntN(2) == 0})
		}
		for range 30 {
			before := b.Table()
			flipped := &links[r.IntN(len(links))]
			flipped.Up = !flipped.Up
			b.Step(time.Unix(0, 0), Config{Mode: BalanceSLB}, links)
			up := slices.DeleteFunc(slices.Clone(links), func(l Link) bool { return !l.Up })
			has := map[uint32]int{}
			for i, number := range b.Table() {
				has[number]++
				if before[i] != number && !flipped.Up && before[i] != flipped.Number && before[i] != 0 {
					t.Fatalf("seed %d: bucket %d moves from %d to %d, and %d went", seed, i, before[i], number, flipped.Number)
				}
			}
			if len(up) == 0 {
				if has[0] != Buckets || b.Active() != 0 {
					t.Fatalf("seed %d: no link, but %v, active %d", seed, has, b.Active())
				}
				continue
			}
			for _, l := range up {
				if n := has[l.Number]; n < Buckets/len(up)-len(up) || n > (Buckets+len(up)-1)/len(up) {
					t.Fatalf("seed %d: %d of %d members has %d buckets: %v", seed, l.Number, len(up), n, has)
				}
				delete(has, l.Number)
			}
			if mine := up[0].Number; !b.Migrate(7, mine) || b.Step(time.Unix(0, 0), Config{Mode: BalanceSLB}, links) || b.Table()[7] != mine {
				t.Fatalf("seed %d: a migrated bucket does not stay", seed)
			}
			if len(has) != 0 || b.Active() == 0 {
				t.Fatalf("seed %d: buckets of disabled members %v, active %d", seed, has, b.Active())
			}
		}
	}
}
