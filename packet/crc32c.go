// SPDX-License-Identifier: Apache-2.0

package packet

// This file updates the checksum of SCTP (RFC 9260 appendix A). The checksum is a CRC,
// which is linear: the effect of changed bytes depends only on the change and on the
// number of bytes after it. A changed port therefore needs no new pass over the
// payload.

const castagnoli = 0x82f63b78 // bits reflected

// crcPowers[i] is x to the power of 8<<i modulo the polynomial: the effect of 1<<i
// zero bytes. It covers lengths up to MaxFrameLen.
var crcPowers = func() (p [17]uint32) {
	p[0] = 1 << (31 - 8)
	for i := 1; i < len(p); i++ {
		p[i] = crcMultiply(p[i-1], p[i-1])
	}
	return p
}()

// crcMultiply multiplies two polynomials modulo the CRC's polynomial. Bit 31 is the
// constant term.
func crcMultiply(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a>>31 != 0 {
			product ^= b
		}
		b = b>>1 ^ castagnoli&-(b&1)
	}
	return product
}

// crcDelta returns the change of a CRC if a 16-bit big-endian word is XORed with
// xorWord. The word is n bytes before the end; n < 1<<17.
func crcDelta(xorWord uint16, n int) uint32 {
	crc := uint32(xorWord>>8 | xorWord<<8)
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
