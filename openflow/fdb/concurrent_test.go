// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"net/netip"
	"sync"
	"testing"
)

// Several goroutines can learn, bind and read addresses concurrently.
func TestLearningFromSeveralWorkers(t *testing.T) {
	m := New(0, 0)
	bound := []Declared{{Port: 9, MAC: 7}}
	const workers, frames = 4, 5000
	var done sync.WaitGroup
	for worker := range uint32(workers) {
		done.Go(func() {
			for i := range uint64(frames) {
				mac := i % 1000
				m.Learn(Learn{Valid: true, Segment: Segment(i % 3), Port: worker + 1, MAC: mac}, i)
				m.Locate(0, 0, mac)
				m.Moved(&Learn{Valid: true, Port: worker + 1, MAC: mac})
			}
		})
	}
	done.Go(func() {
		for i := range 200 {
			m.Declare(bound[:i%2])
			m.Shares()
			m.Change(&Change{Networks: map[Segment]*Network{5: {}}})
			m.Knows(Question{Segment: 5, IP: netip.IPv4Unspecified()})
			m.Forget(uint32(i % workers))
		}
	})
	done.Wait()
	m.Declare(bound)
	if no, ok := m.Locate(0, 0, 7); !ok || no != 9 {
		t.Errorf("the declared address is at %d, %v", no, ok)
	}
	learned := 0
	for _, e := range m.Entries() {
		if e.MAC == 7 && !e.Declared {
			t.Errorf("another port has the declared address: %+v", e)
		}
		if !e.Declared {
			learned++
		}
	}
	if learned != m.Len() || learned == 0 {
		t.Errorf("%d listed, %d counted", learned, m.Len())
	}
}
