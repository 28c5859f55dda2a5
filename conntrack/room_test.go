// SPDX-License-Identifier: Apache-2.0

package conntrack

import "testing"

// A table has as many records as its number of connections, rounded up to a power of two. It accepts
// only as many connections as SetRoom allows.
func TestRoomBetweenPowersOfTwo(t *testing.T) {
	for n, want := range map[int]int{64: 64, 65: 128, 100: 128, 3_000_000: 1 << 22, MaxConnections: MaxConnections} {
		if s := (Sizes{Connections: n}); !s.Valid() || s.Records() != want {
			t.Errorf("%d connections: valid %v, %d records, want %d", n, s.Valid(), s.Records(), want)
		}
	}
	for _, n := range []int{-1, 0, 63, MaxConnections + 1} {
		if (Sizes{Connections: n}).Valid() {
			t.Errorf("%d connections are valid", n)
		}
	}
	m := newMemory(t, 100)
	if m.Capacity() != 128 || m.Limit() != 128 {
		t.Fatalf("capacity %d, limit %d before the room is set", m.Capacity(), m.Limit())
	}
	m.SetRoom(Sizes{Connections: 100})
	for _, c := range []struct{ limit, want int }{{0, 100}, {10, 10}, {100, 100}, {120, 100}, {0, 100}} {
		if m.SetLimit(uint32(c.limit)); m.Limit() != c.want || m.Room() != 100 {
			t.Errorf("limit %d: %d of %d, want %d of 100", c.limit, m.Limit(), m.Room(), c.want)
		}
	}
	r := newRigOf(t, Open(m, 1))
	for i := range 110 {
		r.port = uint32(i % 2)
		r.send(udpFrame("10.0.0.1:"+port(i+1), server, 4), commit)
	}
	if m.Count() != 100 {
		t.Errorf("%d connections, want 100", m.Count())
	}
}
