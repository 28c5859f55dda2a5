// SPDX-License-Identifier: Apache-2.0

package packet_test

import (
	"bytes"
	"math/rand"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"weft/packet"
)

const (
	trainOuter = 42 // length of the outer headers, which are zeros here
	trainVXLAN = 8
)

// checkTrain merges the datagrams of a train into large frames and cuts these again. The segments must be the
// original datagrams. If one datagram is corrupt, no large frame may contain it.
func checkTrain(t *testing.T, mem []byte, seed int64) (joined int) {
	rng := rand.New(rand.NewSource(seed))
	s := randomStream(rng)
	for s.udp || len(s.eth) > 18 {
		s = randomStream(rng)
	}
	size := 1 + rng.Intn(1400)
	flags := byte(0x10)
	if rng.Intn(4) == 0 {
		flags = byte(rng.Intn(256))
	}
	frames := s.cut(randomBytes(rng, size+1+rng.Intn(size*40)), size, flags)
	hurt := -1
	if rng.Intn(2) == 0 {
		hurt = rng.Intn(len(frames))
		at := rng.Intn(len(frames[hurt]))
		frames[hurt][at] ^= 1 << rng.Intn(8)
	}
	var train []byte
	for _, f := range frames {
		train = append(append(train, make([]byte, trainVXLAN)...), f...)
	}
	copy(mem, train)
	datagram := trainVXLAN + len(frames[0])
	for at := 0; at < len(train); {
		var b packet.Batch
		f, h := b.Next()
		left := len(train) - at
		n := copy(h[trainOuter:192], train[at:at+min(datagram, left)])
		taken := int(b.JoinTrain(f, trainOuter+n, trainOuter, trainOuter+trainVXLAN, packet.Address(mem[at:]), uintptr(left), uintptr(datagram)))
		if taken == 0 {
			if b.N != 0 || f.TailLen() != 0 && b.SpansLeft() != packet.MaxSpans {
				t.Fatalf("seed %d: a frame of a train that was not joined", seed)
			}
			at += min(datagram, left)
			continue
		}
		f.L3, f.L4, f.Proto = uint16(trainOuter+trainVXLAN+s.l3()), uint16(trainOuter+trainVXLAN+s.l4()), packet.ProtoTCP
		got, first := segments(&b, f, false), at/datagram
		if len(got) < 2 {
			t.Fatalf("seed %d: %d segments joined", seed, len(got))
		}
		for i, g := range got {
			want := slices.Concat(make([]byte, trainOuter+trainVXLAN), frames[first+i])
			if !bytes.Equal(g, want) {
				t.Fatalf("seed %d: datagram %d of %d comes back as\n% x\nnot\n% x", seed, first+i, len(frames), g[:120], want[:120])
			}
		}
		at += taken
		joined += len(got)
	}
	if hurt < 0 && flags == 0x10 && joined != len(frames) {
		t.Fatalf("seed %d: %d of %d sound segments joined", seed, joined, len(frames))
	}
	return joined
}

func trainMemory(t testing.TB) []byte {
	mem, err := unix.Mmap(-1, 0, 1<<17, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return mem
}

func TestJoinTrain(t *testing.T) {
	mem, joined := trainMemory(t), 0
	for seed := range seeds(1500) {
		joined += checkTrain(t, mem, seed)
	}
	if joined == 0 {
		t.Error("nothing was ever joined")
	}
}

func FuzzJoinTrain(f *testing.F) {
	f.Add(int64(1))
	mem := trainMemory(f)
	f.Fuzz(func(t *testing.T, seed int64) { checkTrain(t, mem, seed) })
}
