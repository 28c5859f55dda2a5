package shm

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What lies in a region is there before and after Collapse, for those who have it
// mapped too, whether or not the kernel has huge pages; a piece is where one can be.
func TestCollapse(t *testing.T) {
	const n = 2*hugePage/8 + 1000
	lay := func(mem []byte) (l Layout, small, large []uint64) {
		l.Mem = mem
		Carve[byte](&l, 1)
		small = CarveHuge[uint64](&l, 100)
		large = CarveHuge[uint64](&l, n)
		return l, small, large
	}
	measure, _, _ := lay(nil)
	r, err := Create("huge-test", measure.Off)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fd, err := unix.FcntlInt(uintptr(r.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	other, err := Open(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l, small, large := lay(r.Bytes())
	_, _, seen := lay(other.Bytes())
	if l.Off != measure.Off || l.Off > hugePage+8*n {
		t.Fatalf("%d bytes laid out, %d measured", l.Off, measure.Off)
	}
	if at := uintptr(unsafe.Pointer(&small[0])) % hugePage; at != 64 {
		t.Errorf("a small piece begins at %d", at)
	}
	for _, s := range [][]uint64{large, seen} {
		if at := uintptr(unsafe.Pointer(&s[0])) % hugePage; at != 0 {
			t.Errorf("a large piece begins %d bytes into a huge page", at)
		}
	}
	for i := 0; i < n; i += 100 {
		large[i] = uint64(i)
	}
	for _, s := range [][]uint64{small, large, nil} {
		if err := Collapse(s); err != nil {
			t.Logf("no huge pages: %v", err)
		}
	}
	for i := range n {
		want := uint64(0)
		if i%100 == 0 {
			want = uint64(i)
		}
		if large[i] != want || seen[i] != want {
			t.Fatalf("word %d: %d and %d, want %d", i, large[i], seen[i], want)
		}
	}
	seen[1] = 5
	if large[1] != 5 {
		t.Error("the two mappings have come apart")
	}
}

// A region of any size can be mapped and unmapped, its neighbours untouched.
func TestMapSizes(t *testing.T) {
	for _, size := range []int{1, 5000, hugePage - 1, hugePage, hugePage + 1} {
		r, err := Create("size-test", size)
		if err != nil {
			t.Fatal(err)
		}
		mem := r.Bytes()
		if len(mem) < size || uintptr(unsafe.Pointer(&mem[0]))%hugePage != 0 {
			t.Errorf("%d bytes at %p for %d", len(mem), mem, size)
		}
		mem[0], mem[len(mem)-1] = 1, 1
		if err := r.Close(); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}
