// SPDX-License-Identifier: Apache-2.0

package packet

// CRCDelta is exported to compare it with hash/crc32.
var CRCDelta = crcDelta

// WithoutBlocks runs f with the sums in Go instead of assembly.
func WithoutBlocks(f func()) {
	setSumByBlocks(false)
	defer setSumByBlocks(true)
	f()
}
