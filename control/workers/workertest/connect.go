// SPDX-License-Identifier: Apache-2.0

package workertest

import (
	"testing"

	"weft/conntrack"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/packet"
)

// Connect adds n connections to a connection table, as a worker does.
func Connect(t testing.TB, table *conntrack.Memory, n int) {
	t.Helper()
	tracker := conntrack.NewTracker(conntrack.Open(*table, 1), 1)
	for i := range n {
		var b packet.Batch
		var key flowtable.Key
		var metas [packet.BatchSize]conntrack.Meta
		frame, header := b.Next()
		size := copy(header[:], []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0,
			0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
			byte(i >> 8), byte(i), 0, 9, 0, 8, 0, 0})
		b.Commit(frame, size)
		if reason := flowtable.Extract(&b, frame, &key); reason != packet.DropNone {
			t.Fatal(reason)
		}
		tracker.Forget(^uint32(0))
		tracker.Process(&b, []uint8{0}, &metas, &conntrack.Request{Commit: true}, clock.Monotonic())
	}
}
