// SPDX-License-Identifier: Apache-2.0

package control

import (
	"weft/conntrack"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/packet"
)

// connect adds n connections to the shared connection table, as a worker does.
func (f *fakes) connect(n int) {
	f.t.Helper()
	tracker := conntrack.NewTracker(conntrack.Open(*f.d.pipeline.Workers().Connections(), 1), 1)
	for i := range n {
		var b packet.Batch
		var key flowtable.Key
		var metas [packet.BatchSize]conntrack.Meta
		frame, header := b.Next()
		size := copy(header[:], []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0,
			0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
			byte(i >> 8), byte(i), 0, 9, 0, 8, 0, 0})
		b.Commit(frame, size)
		if why := flowtable.Extract(&b, frame, &key); why != packet.DropNone {
			f.t.Fatal(why)
		}
		tracker.Forget(^uint32(0))
		tracker.Process(&b, []uint8{0}, &metas, &conntrack.Request{Commit: true}, clock.Monotonic())
	}
}
