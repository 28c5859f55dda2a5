// SPDX-License-Identifier: Apache-2.0

package packet_test

import (
	"bytes"
	"math/rand"
	"testing"

	"weft/packet"
	"weft/packet/packettest"
)

// checkShape does random calls of Push, Pull, Trim and Pullup on a frame. It compares the frame with a slice
// on which it does the same.
func checkShape(t *testing.T, a *packettest.Arena, seed int64) {
	rng := rand.New(rand.NewSource(seed))
	var b packet.Batch
	a.Reset()
	a.Add(&b, randomBytes(rng, 300), 100, 50) // spans of another frame before it
	want := randomBytes(rng, 1+rng.Intn(600))
	f := a.Add(&b, want, rng.Intn(packet.MaxHeader), rng.Intn(120))
	for range 20 {
		n := rng.Intn(1 + 2*rng.Intn(1+len(want)))
		header := len(f.Header())
		switch rng.Intn(4) {
		case 0:
			if h := f.Push(n % 24); h != nil {
				rng.Read(h[:n%24])
				want = append(append([]byte(nil), h[:n%24]...), want...)
			}
		case 1:
			if ok := f.Pull(n); ok != (n <= header) {
				t.Fatalf("seed %d: Pull(%d) of a header of %d: %v", seed, n, header, ok)
			} else if ok {
				want = want[n:]
			}
		case 2:
			b.Trim(f, n)
			want = want[:min(n, len(want))]
		case 3:
			ok := b.Pullup(f, n)
			if n > len(want) && ok || ok && len(f.Header()) < n || !ok && len(f.Header()) != header {
				t.Fatalf("seed %d: Pullup(%d) of %d bytes: %v, header %d, was %d", seed, n, len(want), ok, len(f.Header()), header)
			}
		}
		if f.Len() != len(want) || !bytes.Equal(packettest.Bytes(&b, f), want) {
			t.Fatalf("seed %d: frame and twin differ", seed)
		}
	}
	var got []byte
	for c := b.Cursor(f); len(got) < len(want); {
		piece := make([]byte, 1+rng.Intn(90))
		n := c.Read(piece)
		got = append(got, piece[:n]...)
		if n == 0 {
			break
		}
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("seed %d: the cursor read something else", seed)
	}
}

func TestFrameShape(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	for seed := range int64(5000) {
		checkShape(t, a, seed)
	}
}

func FuzzFrameShape(f *testing.F) {
	f.Add(int64(1))
	a := packettest.NewArena(f, 1<<16)
	f.Fuzz(func(t *testing.T, seed int64) { checkShape(t, a, seed) })
}

// Pullup can fill all of the header buffer's space, but no more.
func TestPullupLimit(t *testing.T) {
	a := packettest.NewArena(t, 1<<16)
	var b packet.Batch
	f := a.Add(&b, make([]byte, 1000), packet.InnerHeader, 7)
	if !b.Pullup(f, packet.MaxHeader) || len(f.Header()) != packet.MaxHeader {
		t.Fatal("MaxHeader bytes refused")
	}
	if b.Pullup(f, packet.MaxHeader+1) {
		t.Fatal("more than MaxHeader bytes granted")
	}
}

// Drop reasons have different names.
func TestDropReasonNames(t *testing.T) {
	seen := map[string]bool{"": true}
	for r := range packet.DropReasons {
		name := packet.DropReason(r).String()
		if seen[name] {
			t.Errorf("reason %d: name %q missing or taken", r, name)
		}
		seen[name] = true
	}
}
