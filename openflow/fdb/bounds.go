// SPDX-License-Identifier: Apache-2.0

package fdb

import "time"

// Bounds limits the learned MAC addresses of one bridge, as other_config:mac-table-size and mac-aging-time
// do in Open vSwitch. With the zero value, only the limits of the whole Table apply.
type Bounds struct {
	Limit int           // largest number of learned MAC addresses, at most DefaultLimit; 0: that of the Table
	Age   time.Duration // time after which an unused address expires; 0: that of the Table
}

// LeastLimit, LeastAge and MostAge are the smallest and largest values that Open vSwitch accepts for a
// bridge's Bounds (mac_learning_set_max_entries and normalize_idle_time). The largest Limit is DefaultLimit.
const (
	LeastLimit = 10
	LeastAge   = 15 * time.Second
	MostAge    = 3600 * time.Second
)

// Statistics counts the learned MAC addresses of one bridge.
type Statistics struct {
	Now     int // addresses in the table
	Limit   int // largest number of addresses
	Learned uint64
	Expired uint64 // unused for the maximum age
	Evicted uint64 // removed to make room
	Moved   uint64 // learned behind another port or remote
}

// bridge has the bounds and counters of one bridge. Table.mu guards it.
type bridge struct {
	limit int // Bounds.Limit; 0: none
	ageNS uint64
	Statistics
}

// bridges has the bounds and counters of each bridge. The index is the bridge's number.
type bridges [1 << (32 - bridgeAt)]bridge

func (t *Table) bridgeOf(s Segment) *bridge { return &t.bridges[s.Bridge()] }

// age returns the time in nanoseconds after which an unused address of the segment expires.
func (t *Table) age(s Segment) uint64 {
	if own := t.bridgeOf(s).ageNS; own != 0 {
		return own
	}
	return t.ageNS
}

// BoundsOf returns the bounds of a bridge.
func (t *Table) BoundsOf(number uint8) Bounds {
	t.mu.RLock()
	defer t.mu.RUnlock()
	b := t.bridgeOf(TrunkOf(number))
	return Bounds{Limit: b.limit, Age: time.Duration(b.ageNS)}
}

// SetBounds changes the bounds of a bridge. It evicts addresses beyond a smaller limit, and returns
// their number.
func (t *Table) SetBounds(number uint8, bounds Bounds) (evicted int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := TrunkOf(number)
	b := t.bridgeOf(s)
	b.limit, b.ageNS = bounds.Limit, uint64(bounds.Age)
	for b.limit != 0 && b.Now > b.limit {
		t.evict(t.fullest(nil, s))
		evicted++
	}
	return evicted
}

// StatisticsOf returns the counters of a bridge.
func (t *Table) StatisticsOf(number uint8) Statistics {
	t.mu.RLock()
	defer t.mu.RUnlock()
	b := t.bridgeOf(TrunkOf(number))
	s := b.Statistics
	if s.Limit = b.limit; s.Limit == 0 {
		s.Limit = t.limit
	}
	return s
}

// ClearStatistics sets the counters of a bridge to 0. The addresses stay.
func (t *Table) ClearStatistics(number uint8) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.bridgeOf(TrunkOf(number))
	b.Statistics = Statistics{Now: b.Now}
}
