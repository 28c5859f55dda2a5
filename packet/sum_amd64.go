// SPDX-License-Identifier: Apache-2.0

package packet

import "golang.org/x/sys/cpu"

// Limits for the number of bytes that the functions in assembly sum. It must be a multiple of sumBlock
// and at least sumLeast.
const (
	sumBlock = 32
	sumLeast = 128
)

var sumByBlocks = cpu.X86.HasAVX2

// sumBlocks returns the sum over the n bytes at p as little-endian words, not yet folded to 16 bits. n is a
// multiple of sumBlock and at least sumLeast.
//
//go:noescape
func sumBlocks(p *byte, n int) uint64

// copySumBlocks copies n bytes from src to dst and returns the same sum over them as sumBlocks.
//
//go:noescape
func copySumBlocks(dst, src *byte, n int) uint64
