// SPDX-License-Identifier: Apache-2.0

package packet

import "golang.org/x/sys/cpu"

// The assembly sums multiples of sumBlock bytes, at least sumLeast bytes.
const (
	sumBlock = 32
	sumLeast = 128
)

var sumByBlocks = cpu.X86.HasAVX2

// sumBlocks returns the unfolded sum over n bytes in the machine's byte order. n is a
// multiple of sumBlock and at least sumLeast.
//
//go:noescape
func sumBlocks(p *byte, n int) uint64

// copySumBlocks copies n bytes and returns their sumBlocks.
//
//go:noescape
func copySumBlocks(dst, src *byte, n int) uint64
