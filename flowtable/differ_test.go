package flowtable

import "testing"

// An entry is a frame's only if every bit of every word is, whatever the other
// words hold: a difference in one word may not hide behind bits of the next.
func TestEveryBitDiffers(t *testing.T) {
	var a [baseWords]uint64
	for i := range a {
		a[i] = ^uint64(0)
	}
	if wordsDiffer(&a, &a) != 0 {
		t.Fatal("equal words differ")
	}
	for i := range a {
		for bit := range 64 {
			b := a
			b[i] ^= 1 << bit
			if wordsDiffer(&a, &b) == 0 || wordsDiffer(&b, &a) == 0 {
				t.Fatalf("bit %d of word %d makes no difference", bit, i)
			}
		}
	}
}

// The same of the words that only some keys have.
func TestEveryBitOfMoreDiffers(t *testing.T) {
	c := &Cache{m: Memory{more: make([]exactMore, 1)}}
	var of exactMore
	d := digest{n: uint32(len(of))}
	for i := range of {
		of[i] = ^uint64(0)
	}
	c.m.more[0] = of
	if c.differMore(0, &d, &of) != 0 {
		t.Fatal("equal words differ")
	}
	for i := range of {
		for bit := range 64 {
			c.m.more[0] = of
			c.m.more[0][i] ^= 1 << bit
			if c.differMore(0, &d, &of) == 0 {
				t.Fatalf("bit %d of word %d makes no difference", bit, i)
			}
		}
	}
}
