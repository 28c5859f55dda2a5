package packet

// The checksum of SCTP (RFC 9260 appendix A) is a CRC, and a CRC is linear: what
// a change of some bytes does to it depends on those bytes and on how many
// follow, not on the rest. So ports can be rewritten without the payload.

const castagnoli = 0x82f63b78 // reflected

// crcPowers[i] is x to the power of 8<<i, modulo the polynomial: the change
// that 1<<i zero bytes make. 17 of them cover MaxFrameLen.
var crcPowers = func() (p [17]uint32) {
	p[0] = 1 << (31 - 8)
	for i := 1; i < len(p); i++ {
		p[i] = crcMultiply(p[i-1], p[i-1])
	}
	return p
}()

// crcMultiply multiplies two polynomials whose bit 31 is the coefficient of 1.
func crcMultiply(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a>>31 != 0 {
			product ^= b
		}
		b = b>>1 ^ castagnoli&-(b&1)
	}
	return product
}

// crcDelta is what must be added (XOR) to a CRC after a 16-bit big-endian word,
// n bytes before the end, changed by the bits of change. n < 1<<17.
func crcDelta(change uint16, n int) uint32 {
	crc := uint32(change>>8 | change<<8)
	for range 16 {
		crc = crc>>1 ^ castagnoli&-(crc&1)
	}
	for i := 0; n > 0 && i < len(crcPowers); i++ {
		if n&1 != 0 {
			crc = crcMultiply(crc, crcPowers[i])
		}
		n >>= 1
	}
	return crc
}
