// SPDX-License-Identifier: Apache-2.0

package packet

var CRCDelta = crcDelta

// WithoutBlocks calls f. Until f returns, sums are computed in Go instead of assembly.
func WithoutBlocks(f func()) {
	setSumByBlocks(false)
	defer setSumByBlocks(true)
	f()
}
