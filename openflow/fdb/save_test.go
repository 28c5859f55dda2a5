// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"fmt"
	"math/rand"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// A restored table equals the saved one, without the addresses that have expired or that an
// operator has declared since.
func TestSaveMACTwin(t *testing.T) {
	for seed := range int64(20) {
		rng := rand.New(rand.NewSource(seed))
		table := New(64, time.Minute)
		now := uint64(1e12)
		for range 300 {
			now += uint64(rng.Intn(1e9))
			l := Learn{Valid: true, Segment: Segment(rng.Intn(3)), VLAN: uint16(rng.Intn(2)), Port: uint32(rng.Intn(5)),
				MAC: uint64(rng.Intn(50)), Tunnel: rng.Intn(2) == 0, Announced: rng.Intn(2) == 0}
			if rng.Intn(3) == 0 {
				l.IP = netip.AddrFrom4([4]byte{10, 0, 0, byte(rng.Intn(30))})
			}
			if l.Port == 4 {
				l.Remote = netip.AddrFrom4([4]byte{192, 0, 2, byte(rng.Intn(3))})
			}
			table.Learn(l, now)
		}
		now += uint64(rng.Intn(60e9))
		saved := table.Saved()
		other := New(64, time.Minute)
		other.Declare([]Declared{{Port: 9, MAC: 7}})
		n := other.Restore(saved, now)
		table.Declare([]Declared{{Port: 9, MAC: 7}})
		table.Expire(now)
		if want, got := sorted(table), sorted(other); n != len(got) || !slices.Equal(want, got) {
			t.Fatalf("seed %d: restored %d\n%v\nwant\n%v", seed, n, got, want)
		}
		if other.Restore(saved, now) != 0 {
			t.Fatalf("seed %d: restored twice", seed)
		}
		// Expire finds addresses through the lists by age, so restored addresses must
		// be in these lists.
		other.Expire(now + uint64(time.Hour))
		if other.Len() != 0 || len(other.segments) != 0 || len(other.neighbours.entries) != 0 {
			t.Fatalf("seed %d: %d addresses stay after they have expired", seed, other.Len())
		}
	}
}

func sorted(t *Table) (list []string) {
	for _, s := range t.Saved() {
		list = append(list, fmt.Sprintf("%+v", s))
	}
	slices.Sort(list)
	return list
}

// Restore respects the limits, and skips invalid entries and entries from the future.
func TestRestoreKeepsLimits(t *testing.T) {
	var list []Saved
	for i := range 100 {
		list = append(list, Saved{Learn{Valid: true, Port: 1, MAC: uint64(i)}, 5, 0},
			Saved{Learn{Valid: true, Port: 1, MAC: uint64(i), IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}, 5, 0})
	}
	list = append(list, Saved{Learn{Valid: true, Port: 2, MAC: 1000}, 50, 0}, Saved{Learn{Port: 2, MAC: 1001}, 5, 0})
	table := New(16, time.Minute)
	if n := table.Restore(list, 10); n != 16 || table.Len() != 8 || len(table.neighbours.entries) != 8 {
		t.Errorf("%d restored, %d MAC and %d IP addresses; want 8 of each", n, table.Len(), len(table.neighbours.entries))
	}
}
