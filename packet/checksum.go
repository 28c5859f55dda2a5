// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"math/bits"
)

// This file computes the Internet checksum (RFC 1071). In this package a sum is the ones' complement
// sum of 16-bit big-endian words. A checksum in a header is the inverted sum.

// Sum returns the ones' complement sum over b. If len(b) is odd, the last byte is the upper half of
// a word.
func Sum(b []byte) uint16 {
	// Words of any byte order and width give the same sum (RFC 1071 section 2(B) and
	// 2(C)), up to a final byte swap.
	var acc, c uint64
	if len(b) >= sumLeast && sumByBlocks {
		n := len(b) &^ (sumBlock - 1)
		acc = sumBlocks(&b[0], n)
		b = b[n:]
	}
	for len(b) >= 64 {
		p := (*[64]byte)(b)
		acc, c = bits.Add64(acc, binary.LittleEndian.Uint64(p[0:]), c)
		acc, c = bits.Add64(acc, binary.LittleEndian.Uint64(p[8:]), c)
		acc, c = bits.Add64(acc, binary.LittleEndian.Uint64(p[16:]), c)
		acc, c = bits.Add64(acc, binary.LittleEndian.Uint64(p[24:]), c)
		acc, c = bits.Add64(acc, binary.LittleEndian.Uint64(p[32:]), c)
		acc, c = bits.Add64(acc, binary.LittleEndian.Uint64(p[40:]), c)
		acc, c = bits.Add64(acc, binary.LittleEndian.Uint64(p[48:]), c)
		acc, c = bits.Add64(acc, binary.LittleEndian.Uint64(p[56:]), c)
		b = b[64:]
	}
	var last uint64 // the rest has at most 63 bytes, so the sum does not overflow
	for len(b) >= 8 {
		v := binary.LittleEndian.Uint64(b)
		last += v>>32 + v&0xffffffff
		b = b[8:]
	}
	if len(b) >= 4 {
		last += uint64(binary.LittleEndian.Uint32(b))
		b = b[4:]
	}
	if len(b) >= 2 {
		last += uint64(binary.LittleEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) > 0 {
		last += uint64(b[0])
	}
	acc, c = bits.Add64(acc, last, c)
	acc, c = bits.Add64(acc, 0, c)
	return bits.ReverseBytes16(fold(acc + c))
}

// sumHeader returns the sum over an IPv4 header without options.
func sumHeader(ip *[IPv4Len]byte) uint16 {
	x, y, z := binary.LittleEndian.Uint64(ip[0:]), binary.LittleEndian.Uint64(ip[8:]), binary.LittleEndian.Uint32(ip[16:])
	const half = 1<<32 - 1
	return bits.ReverseBytes16(fold(x>>32 + x&half + y>>32 + y&half + uint64(z)))
}

// CopySum copies src to dst and returns the sum over src, in one pass. dst must be at least as long
// as src, and must not overlap it.
func CopySum(dst, src []byte) uint16 {
	dst = dst[:len(src)]
	if len(src) < sumLeast || !sumByBlocks {
		copy(dst, src)
		return Sum(dst)
	}
	n := len(src) &^ (sumBlock - 1)
	sum := bits.ReverseBytes16(fold(copySumBlocks(&dst[0], &src[0], n)))
	if n == len(src) {
		return sum
	}
	copy(dst[n:], src[n:])
	return AddSums(sum, Sum(dst[n:]))
}

// fold adds the four 16-bit words of v with end-around carry.
func fold(v uint64) uint16 {
	v = v>>32 + v&0xffffffff
	v = v>>32 + v&0xffffffff
	w := uint32(v)
	w = w>>16 + w&0xffff
	w = w>>16 + w&0xffff
	return uint16(w)
}

// Checksum returns the checksum over b, which is the inverted sum.
func Checksum(b []byte) uint16 { return ^Sum(b) }

// AddSums returns the sum over two adjacent byte ranges, whose sums are a and b. The first range
// must have an even length.
func AddSums(a, b uint16) uint16 {
	s := uint32(a) + uint32(b)
	return uint16(s>>16 + s)
}

// SumIPv4 returns the sum over the TCP or UDP pseudo header for IPv4 (RFC 9293, RFC 768). n is
// the length of transport header and payload in bytes.
func SumIPv4(src, dst uint32, proto uint8, n int) uint16 {
	return fold(uint64(src) + uint64(dst) + uint64(proto) + uint64(n))
}

// SumIPv6 returns the sum over the pseudo header for IPv6 (RFC 8200 section 8.1). src and dst have 16
// bytes each. n is the length of transport header and payload in bytes.
func SumIPv6(src, dst []byte, proto uint8, n int) uint16 {
	return fold(uint64(Sum(src[:16])) + uint64(Sum(dst[:16])) + uint64(proto) + uint64(n))
}

// MendChecksum returns a checksum after a change of bytes that it covers (RFC 1624 equation 3). The
// arguments oldSum and newSum are the sums over these bytes before and after the change.
func MendChecksum(checksum, oldSum, newSum uint16) uint16 {
	return ^fold(uint64(^checksum) + uint64(^oldSum) + uint64(newSum))
}

func sum32(v uint32) uint16 { return fold(uint64(v)) }
