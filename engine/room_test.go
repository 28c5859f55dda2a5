// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"weft/conntrack"
)

// A start with as many records of connections keeps the table and its settings, even if the room
// differs. A start with another number makes a new table, which has the room.
func TestRoomOfTheConnectionTable(t *testing.T) {
	start := func(n int) Start {
		return Start{Cores: []int{0}, Sizes: testSizes, Connections: conntrack.Sizes{Connections: n}}
	}
	memory := func(n int, oldMemory *Memory) *Memory {
		t.Helper()
		m, err := NewMemory(start(n), oldMemory)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	first := memory(100, nil)
	if c := &first.Connections; c.Limit() != 100 || c.Capacity() != 128 {
		t.Errorf("room for %d, %d records; want 100 and 128", c.Limit(), c.Capacity())
	}
	first.Connections.SetLimit(77)
	second := memory(120, first)
	if c := &second.Connections; c.Limit() != 77 || c.Room() != 120 {
		t.Errorf("limit %d, room %d; want 77 and 120", c.Limit(), c.Room())
	}
	second.Connections.SetLimit(0)
	if n := first.Connections.Limit(); n != 120 {
		t.Errorf("limit %d: another table", n)
	}
	third := memory(200, second)
	if c := &third.Connections; c.Limit() != 200 || c.Capacity() != 256 {
		t.Errorf("room for %d, %d records; want 200 and 256", c.Limit(), c.Capacity())
	}
	if _, err := NewMemory(start(63), nil); err == nil {
		t.Error("a table for 63 connections")
	}
}
