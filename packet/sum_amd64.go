package packet

import "golang.org/x/sys/cpu"

// What the assembly takes, in bytes: multiples of sumBlock, sumLeast at least.
const (
	sumBlock = 32
	sumLeast = 128
)

var sumByBlocks = cpu.X86.HasAVX2

// sumBlocks is the sum over n bytes, a multiple of sumBlock and at least sumLeast, in
// words of the machine's order and not folded.
//
//go:noescape
func sumBlocks(p *byte, n int) uint64

// copySumBlocks copies them too.
//
//go:noescape
func copySumBlocks(dst, src *byte, n int) uint64
