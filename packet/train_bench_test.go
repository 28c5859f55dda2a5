// SPDX-License-Identifier: Apache-2.0

package packet_test

import (
	"math/rand"
	"testing"

	"weft/packet"
)

// BenchmarkTrain merges a train of 45 datagrams into a large frame and cuts it again. This is what two hosts,
// the receiver and the sender, do for 64 KiB of data.
func BenchmarkTrain(b *testing.B) {
	rng := rand.New(rand.NewSource(1))
	s := randomStream(rng)
	for s.udp || s.v6 || len(s.eth) > 14 || s.ext != nil {
		s = randomStream(rng)
	}
	const size = 1448
	mem := trainMemory(b)
	frames := s.cut(randomBytes(rng, 45*size), size, 0x10)
	n := 0
	for _, f := range frames {
		n += trainVXLAN + copy(mem[n+trainVXLAN:], f)
	}
	datagram := trainVXLAN + len(frames[0])
	batch := new(packet.Batch)
	join := func(b *testing.B) *packet.Frame {
		batch.Reset()
		f, h := batch.Next()
		m := copy(h[trainOuter:192], mem[:datagram])
		if taken := batch.JoinTrain(f, trainOuter+m, trainOuter, trainOuter+trainVXLAN, packet.Address(mem), uintptr(n), uintptr(datagram)); int(taken) != n {
			b.Fatalf("%d of %d bytes joined", taken, n)
		}
		f.L3, f.L4, f.Proto = uint16(trainOuter+trainVXLAN+s.l3()), uint16(trainOuter+trainVXLAN+s.l4()), packet.ProtoTCP
		return f
	}
	b.Run("join", func(b *testing.B) {
		b.SetBytes(int64(n))
		for b.Loop() {
			join(b)
		}
	})
	b.Run("cut", func(b *testing.B) {
		f := join(b)
		segment := make([]byte, packet.Headroom+datagram+trainOuter)
		b.SetBytes(int64(n))
		for b.Loop() {
			for s := batch.Segments(f); !s.Done(); {
				s.Write(segment, true)
			}
		}
	})
}
