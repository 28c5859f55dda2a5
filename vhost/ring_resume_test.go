// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"encoding/binary"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// advanceUsed adds to the used index, which may wrap around, and does not change the flags before it.
func TestAdvanceUsed(t *testing.T) {
	fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	size := 4 * os.Getpagesize()
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	const off, flags = 8200, 0xabcd
	skip, length, err := checkFile(RegionSpec{MmapOffset: off, Size: 4}, fd)
	if err != nil {
		t.Fatal(err)
	}
	p := partCopy{fd: fd, offset: off, skip: int(skip), length: int(length)}
	for _, c := range []struct{ index, n uint16 }{{0, 0}, {0, 1}, {0xff, 3}, {0xfffe, 0x7fff}, {7, 0xffff}} {
		word := make([]byte, 4)
		binary.LittleEndian.PutUint16(word, flags)
		binary.LittleEndian.PutUint16(word[2:], c.index)
		if _, err := unix.Pwrite(fd, word, off); err != nil {
			t.Fatal(err)
		}
		if err := p.advanceUsed(c.n); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Pread(fd, word, off); err != nil {
			t.Fatal(err)
		}
		if got := binary.LittleEndian.Uint16(word[2:]); got != c.index+c.n || binary.LittleEndian.Uint16(word) != flags {
			t.Errorf("%d + %d is %d, with the flags %x", c.index, c.n, got, word[:2])
		}
	}
}
