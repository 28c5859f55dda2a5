// SPDX-License-Identifier: Apache-2.0

package packet

// This file updates the checksum of SCTP (CRC32c, RFC 9260 appendix A) after a change of a port. A CRC
// is linear: the effect of changed bytes depends only on the change and on the number of bytes after
// it. The update therefore does not read the payload.

const castagnoli = 0x82f63b78 // the polynomial of CRC32c, its bits in reverse order

// crcPowers[i] is x to the power of 8<<i modulo the polynomial of the CRC. If 1<<i more bytes follow a
// change of the data, the change's effect on the CRC is multiplied by this value. The powers suffice for
// lengths up to MaxFrameLen.
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

// crcDelta returns the value with which a CRC must be XORed if a 16-bit big-endian word of the data is
// XORed with xorWord. n, below 1<<17, is the number of bytes after the word.
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
