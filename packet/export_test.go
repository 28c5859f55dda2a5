package packet

// CRCDelta lets the tests compare it with hash/crc32.
var CRCDelta = crcDelta

// WithoutBlocks runs f with sums in Go only.
func WithoutBlocks(f func()) {
	setSumByBlocks(false)
	defer setSumByBlocks(true)
	f()
}
