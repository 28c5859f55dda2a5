// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"bytes"
	"fmt"
	"testing"

	"weft/internal/shm"
	"weft/packet"
)

// writeHeader writes the right virtio-net header at every alignment, and no other
// byte.
func TestWriteHeader(t *testing.T) {
	mem := shm.Private[byte](4 * cacheLine)
	for _, size := range []int{10, 12} {
		want := make([]byte, size)
		if size == 12 {
			want[10] = 1
		}
		before := map[string][]byte{"zero": make([]byte, size), "right": want}
		for at := range size {
			one := bytes.Clone(want)
			one[at] ^= 0x80
			before[fmt.Sprint("byte ", at)] = one
		}
		for at := cacheLine; at < 2*cacheLine; at++ {
			for name, b := range before {
				for i := range mem {
					mem[i] = 0xa5
				}
				copy(mem[at:], b)
				writeHeader(packet.Address(mem)+uintptr(at), uint32(size))
				if !bytes.Equal(mem[at:at+size], want) {
					t.Fatalf("%d bytes at %d, %s before: %x, want %x", size, at, name, mem[at:at+size], want)
				}
				for i, v := range mem {
					if (i < at || i >= at+size) && v != 0xa5 {
						t.Fatalf("%d bytes at %d: byte %d changed", size, at, i)
					}
				}
			}
		}
	}
}
