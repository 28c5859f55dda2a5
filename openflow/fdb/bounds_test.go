// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"testing"
	"time"
)

// A bridge has a limit and a maximum age of its own, and other bridges do not notice.
func TestBounds(t *testing.T) {
	tab := New(0, 0)
	learn := func(bridge uint8, port uint32, mac uint64, now time.Duration) {
		tab.Learn(Learn{Valid: true, Segment: TrunkOf(bridge), Port: port, MAC: mac}, uint64(now))
	}
	known := func(bridge uint8, mac uint64) bool {
		_, ok := tab.Locate(TrunkOf(bridge), 0, mac)
		return ok
	}
	for i := range uint64(20) {
		learn(1, 1, 100+i, time.Second+time.Duration(i))
		learn(2, 7, 100+i, time.Second+time.Duration(i))
	}
	learn(1, 2, 200, time.Second)
	if n := tab.SetBounds(1, Bounds{Limit: 12, Age: 20 * time.Second}); n != 9 {
		t.Errorf("evicted %d addresses, want 9", n)
	}
	if known(1, 108) || !known(1, 109) || !known(1, 200) || !known(2, 100) {
		t.Error("not the oldest addresses of the bridge's fullest port are gone")
	}
	learn(1, 2, 201, 2*time.Second)
	if known(1, 109) || !known(1, 201) || !known(1, 110) {
		t.Error("a new address did not replace the oldest one of the fullest port")
	}
	learn(1, 2, 110, 3*time.Second)
	if got, want := tab.StatisticsOf(1), (Statistics{Now: 12, Limit: 12, Learned: 22, Evicted: 10, Moved: 1}); got != want {
		t.Errorf("statistics %+v, want %+v", got, want)
	}
	if n := tab.Expire(uint64(22 * time.Second)); n != 11 || !known(1, 110) || !known(2, 100) {
		t.Errorf("expired %d addresses, want 11, all but the newest of the bridge", n)
	}
	if got, want := tab.StatisticsOf(2), (Statistics{Now: 20, Limit: DefaultLimit, Learned: 20}); got != want {
		t.Errorf("statistics of the other bridge %+v, want %+v", got, want)
	}
	tab.ClearStatistics(1)
	if got, want := tab.StatisticsOf(1), (Statistics{Now: 1, Limit: 12}); got != want {
		t.Errorf("cleared statistics %+v, want %+v", got, want)
	}
	tab.SetBounds(1, Bounds{})
	if tab.BoundsOf(1) != (Bounds{}) || tab.Expire(uint64(40*time.Second)) != 0 {
		t.Error("without bounds the address does not have the age of the table")
	}
}
