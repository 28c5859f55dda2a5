// SPDX-License-Identifier: Apache-2.0

package packet_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math/rand"
	"testing"

	"weft/packet"
)

// slowSum computes the sum word by word, as in RFC 1071 section 4.1.
func slowSum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		w := uint32(b[i]) << 8
		if i+1 < len(b) {
			w |= uint32(b[i+1])
		}
		sum += w
		if sum > 0xffff {
			sum -= 0xffff
		}
	}
	return uint16(sum)
}

func checkSum(t *testing.T, b []byte) {
	t.Helper()
	if got, want := packet.Sum(b), slowSum(b); got != want {
		t.Fatalf("Sum of %d bytes = %#x, want %#x\n%x", len(b), got, want, b)
	}
	dst := make([]byte, len(b)+1)
	if got, want := packet.CopySum(dst, b), slowSum(b); got != want || !bytes.Equal(dst[:len(b)], b) || dst[len(b)] != 0 {
		t.Fatalf("CopySum of %d bytes = %#x, want %#x, or a copy that is not one\n%x", len(b), got, want, b)
	}
	packet.WithoutBlocks(func() {
		if got, want := packet.Sum(b), slowSum(b); got != want {
			t.Fatalf("Sum in Go of %d bytes = %#x, want %#x\n%x", len(b), got, want, b)
		}
	})
	if half := len(b) / 4 * 2; packet.AddSums(packet.Sum(b[:half]), packet.Sum(b[half:])) != slowSum(b) {
		t.Fatalf("AddSums of %d and %d bytes is not the sum of all\n%x", half, len(b)-half, b)
	}
}

func TestSum(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	for n := range 600 {
		b := make([]byte, n)
		checkSum(t, b)
		for i := range b {
			b[i] = 0xff
		}
		checkSum(t, b) // every addition carries
		rng.Read(b)
		checkSum(t, b)
	}
}

// MendChecksum returns the same checksum as a new computation over all bytes after the change.
func TestMendChecksum(t *testing.T) {
	rng := rand.New(rand.NewSource(2))
	b := make([]byte, 40)
	for range 20000 {
		rng.Read(b)
		if rng.Intn(4) == 0 {
			clear(b[4:]) // sums near 0 and 0xffff
		}
		checksum := packet.Checksum(b)
		before := slowSum(b[8:16])
		binary.BigEndian.PutUint64(b[8:], [...]uint64{0, ^uint64(0), rng.Uint64()}[rng.Intn(3)])
		got := packet.MendChecksum(checksum, before, slowSum(b[8:16]))
		if want := ^slowSum(b); got != want {
			t.Fatalf("mended %#x, want %#x\n%x", got, want, b)
		}
	}
}

// The assembly sums a frame of MaxFrameLen bytes without overflow.
func TestSumOfLargest(t *testing.T) {
	b := make([]byte, packet.MaxFrameLen)
	for i := range b {
		b[i] = 0xff
	}
	for _, at := range []int{0, 1, 13} {
		checkSum(t, b[at:])
	}
}

func FuzzSum(f *testing.F) {
	f.Add([]byte{1, 2, 3})
	f.Add(make([]byte, 100))
	f.Fuzz(func(t *testing.T, b []byte) { checkSum(t, b) })
}

func FuzzCRC32C(f *testing.F) {
	f.Add([]byte("a payload of some length"), uint16(1), uint16(0x8000))
	table := crc32.MakeTable(crc32.Castagnoli)
	f.Fuzz(func(t *testing.T, b []byte, offset, change uint16) {
		if len(b) < 2 {
			return
		}
		i := int(offset) % (len(b) - 1)
		before := crc32.Checksum(b, table)
		binary.BigEndian.PutUint16(b[i:], binary.BigEndian.Uint16(b[i:])^change)
		if got := before ^ packet.CRCDelta(change, len(b)-i-2); got != crc32.Checksum(b, table) {
			t.Fatalf("crc32c %#x, want %#x", got, crc32.Checksum(b, table))
		}
	})
}

func BenchmarkSum1500(b *testing.B) {
	data, dst := make([]byte, 1500), make([]byte, 1500)
	b.Run("sum", func(b *testing.B) {
		b.SetBytes(1500)
		for b.Loop() {
			packet.Sum(data)
		}
	})
	b.Run("copysum", func(b *testing.B) {
		b.SetBytes(1500)
		for b.Loop() {
			packet.CopySum(dst, data)
		}
	})
}
