// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"testing"

	"weft/port"
	"weft/port/porttest"
)

// Every receive queue belongs to one worker, and every worker has a transmit queue. A transmit queue
// has a lock only if several workers share it.
func TestAssign(t *testing.T) {
	for workers := 1; workers <= 5; workers++ {
		for queues := 1; queues <= 7; queues++ {
			d := porttest.New(queues, porttest.Options{Slots: 1, SlotBytes: 64})
			rxOwners, txUsers := map[port.Rx]int{}, map[port.Tx]int{}
			all := assign(3, workers, d.Rx(), d.Tx())
			for w, q := range all {
				for _, rx := range q.Rx {
					rxOwners[rx]++
				}
				if q.Tx == nil || q.Port != 3 {
					t.Fatalf("worker %d of %d, %d queues: %+v", w, workers, queues, q)
				}
				txUsers[q.Tx]++
				if len(q.Rx) > 0 && slices.Index(d.Rx(), q.Rx[0]) != slices.Index(d.Tx(), q.Tx) {
					t.Fatalf("worker %d of %d, %d queues: receives on a queue other than the one on which it sends", w, workers, queues)
				}
			}
			for _, rx := range d.Rx() {
				if rxOwners[rx] != 1 {
					t.Fatalf("%d workers, %d queues: a queue has %d owners", workers, queues, rxOwners[rx])
				}
			}
			for i, q := range all {
				if (q.Lock != nil) != (txUsers[q.Tx] > 1) {
					t.Fatalf("worker %d of %d, %d queues: lock %v", i, workers, queues, q.Lock)
				}
				for _, other := range all {
					if other.Tx == q.Tx && other.Lock != q.Lock {
						t.Fatal("workers that share a queue have different locks")
					}
				}
			}
			d.Close()
		}
	}
	if all := assign(1, 2, nil, nil); len(all) != 2 || all[0].Tx != nil {
		t.Fatalf("%+v", all)
	}
	// Ports with one queue each are spread over all workers.
	d := porttest.New(1, porttest.Options{})
	defer d.Close()
	if len(assign(1, 2, d.Rx(), nil)[1].Rx) != 1 || len(assign(2, 2, d.Rx(), nil)[0].Rx) != 1 {
		t.Fatal("ports with one queue are all on one worker")
	}
}
