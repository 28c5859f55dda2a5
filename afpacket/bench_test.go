// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"testing"
	"time"

	"weft/internal/testnet"
	"weft/packet"
)

// The benchmarks compare a ring with sockets that need one system call for each frame. The device is a
// tap.

var benchKinds = []struct {
	name string
	cfg  Config
}{{"ring", Config{Dev: "t0"}}, {"no ring", Config{Dev: "t0", NoRing: "asked for"}}}

func BenchmarkEmptyLook(b *testing.B) {
	for _, kind := range benchKinds {
		b.Run(kind.name, func(b *testing.B) {
			testnet.New(b).Do(func() {
				rx, batch := newTapUplink(b, kind.cfg).dev.Rx()[0], new(packet.Batch)
				for b.Loop() {
					rx.Recv(batch)
				}
			})
		})
	}
}

// BenchmarkReceive reports the time of Recv and Release for each frame.
func BenchmarkReceive(b *testing.B) {
	for _, kind := range benchKinds {
		for _, frames := range []int{1, packet.BatchSize} {
			b.Run(kind.name+"/"+map[bool]string{true: "alone", false: "batch"}[frames == 1], func(b *testing.B) {
				testnet.New(b).Do(func() {
					tap, batch := newTapUplink(b, kind.cfg), new(packet.Batch)
					rx, took, received := tap.dev.Rx()[0], time.Duration(0), 0
					for b.Loop() {
						for range frames {
							tap.write(b, gsoNone)
						}
						batch.Reset()
						start := time.Now()
						received += rx.Recv(batch)
						rx.Release()
						took += time.Since(start)
					}
					if received != b.N*frames {
						b.Fatalf("received %d frames, want %d", received, b.N*frames)
					}
					b.ReportMetric(float64(took.Nanoseconds())/float64(received), "ns/frame")
				})
			})
		}
	}
}
