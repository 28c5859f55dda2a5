// SPDX-License-Identifier: Apache-2.0

package packet

import "golang.org/x/sys/cpu"

// Lengths in bytes that the assembly takes: multiples of sumBlock, at least sumLeast.
const (
	sumBlock = 32
	sumLeast = 128
)

var sumByBlocks = cpu.X86.HasAVX2

// sumBlocks returns the sum over n bytes in words of the machine's byte order, not
// folded. n is a multiple of sumBlock and at least sumLeast.
//
//go:noescape
func sumBlocks(p *byte, n int) uint64

// copySumBlocks is sumBlocks that also copies the bytes.
//
//go:noescape
func copySumBlocks(dst, src *byte, n int) uint64
