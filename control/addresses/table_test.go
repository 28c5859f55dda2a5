// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"sync"
	"testing"

	"weft/control/limits"
	"weft/openflow/fdb"
	"weft/openflow/xlate"
)

// Several goroutines can learn, bind and read addresses concurrently.
func TestLearningFromSeveralWorkers(t *testing.T) {
	m := New()
	bound := xlate.PortInfo{No: 9, Binding: &xlate.Binding{Hosts: []xlate.BoundHost{{MAC: 7}}}}
	const workers, frames = 4, 5000
	var done sync.WaitGroup
	for worker := range uint32(workers) {
		done.Go(func() {
			for i := range uint64(frames) {
				mac := i % 1000
				m.Learn(fdb.Learn{Valid: true, Segment: fdb.Segment(i % 3), Port: worker + 1, MAC: mac}, i)
				m.MAC(0, 0, mac)
				m.Moved(&fdb.Learn{Valid: true, Port: worker + 1, MAC: mac})
			}
		})
	}
	done.Go(func() {
		for i := range 200 {
			m.Declare([]xlate.PortInfo{bound}[:i%2])
			m.LimitRows(func(limits.Row) {})
			m.Forget(uint32(i % workers))
		}
	})
	done.Wait()
	m.Declare([]xlate.PortInfo{bound})
	if no, ok := m.MAC(0, 0, 7); !ok || no != 9 {
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

// A restored table lacks only the saved addresses that no longer fit their port.
func TestSavedAddressesAreRestored(t *testing.T) {
	const segment, now = fdb.Segment(1), 1000
	before := New()
	for port := range uint32(3) {
		before.Learn(fdb.Learn{Valid: true, Segment: segment, Port: port + 1, MAC: uint64(port + 1)}, now)
	}
	data, err := before.Save(map[uint32]string{1: "a", 2: "b"}) // port 3 has no name
	if err != nil {
		t.Fatal(err)
	}
	after := New()
	n, err := after.Restore(data, now+1, func(port string, l *fdb.Learn) bool { return port == "a" && l.Port == 1 })
	if n != 1 || err != nil || after.Len() != 1 {
		t.Errorf("restored %d, %v; the table has %d addresses, want 1", n, err, after.Len())
	}
	if port, ok := after.MAC(segment, 0, 1); port != 1 || !ok {
		t.Errorf("address 1 is at port %d, %v", port, ok)
	}
	if n, err := New().Restore(nil, now, nil); n != 0 || err != nil {
		t.Errorf("without a file: %d, %v", n, err)
	}
	if _, err := New().Restore(data[:len(data)/2], now, nil); err == nil {
		t.Error("half a file is restored without an error")
	}
}
