// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"math/big"
	"math/bits"
	"strconv"
	"strings"
)

// Value128 is an unsigned number of up to 128 bits. Element 0 is the upper half.
type Value128 [2]uint64

// Value64 returns v with an upper half of 0.
func Value64(v uint64) Value128 { return Value128{0, v} }

// Ones returns a value whose n least significant bits are set, n from 0 to 128.
func Ones(n uint) Value128 {
	if n >= 64 {
		return Value128{ones64(n - 64), ^uint64(0)}
	}
	return Value128{0, ones64(n)}
}

func ones64(n uint) uint64 {
	if n >= 64 {
		return ^uint64(0)
	}
	return 1<<n - 1
}

// And returns the bits that both values have.
func (v Value128) And(o Value128) Value128 { return Value128{v[0] & o[0], v[1] & o[1]} }

// Or returns the bits that at least one value has.
func (v Value128) Or(o Value128) Value128 { return Value128{v[0] | o[0], v[1] | o[1]} }

// AndNot returns the bits of v that o does not have.
func (v Value128) AndNot(o Value128) Value128 { return Value128{v[0] &^ o[0], v[1] &^ o[1]} }

// IsZero reports whether no bit is set.
func (v Value128) IsZero() bool { return v[0]|v[1] == 0 }

// Shl returns v shifted left by n bits, n from 0 to 128.
func (v Value128) Shl(n uint) Value128 {
	if n >= 64 {
		return Value128{v[1] << (n - 64), 0}
	}
	return Value128{v[0]<<n | v[1]>>(64-n), v[1] << n}
}

// Shr returns v shifted right by n bits, n from 0 to 128.
func (v Value128) Shr(n uint) Value128 {
	if n >= 64 {
		return Value128{0, v[0] >> (n - 64)}
	}
	return Value128{v[0] >> n, v[1]>>n | v[0]<<(64-n)}
}

// BitLen returns the number of bits needed to write v.
func (v Value128) BitLen() int {
	if v[0] != 0 {
		return 64 + bits.Len64(v[0])
	}
	return bits.Len64(v[1])
}

// prefixLen returns the prefix length of an address mask v of "width" bits, or -1 if v is no prefix mask.
func (v Value128) prefixLen(width uint) int {
	for n := uint(0); n <= width; n++ {
		if v == Ones(width).AndNot(Ones(width-n)) {
			return int(n)
		}
	}
	return -1
}

func (v Value128) hex() string {
	switch {
	case v.IsZero():
		return "0"
	case v[0] == 0:
		return "0x" + strconv.FormatUint(v[1], 16)
	}
	return "0x" + v.big().Text(16)
}

func (v Value128) decimal() string {
	if v[0] == 0 {
		return strconv.FormatUint(v[1], 10)
	}
	return v.big().Text(10)
}

func (v Value128) big() *big.Int {
	n := new(big.Int).SetUint64(v[0])
	return n.Lsh(n, 64).Or(n, new(big.Int).SetUint64(v[1]))
}

// parseNumber parses an unsigned number like ovs-ofctl: hexadecimal with 0x, octal
// with a leading 0, or decimal, with an optional plus sign.
func parseNumber(s string) (Value128, bool) {
	if v, ok := parseDigits(s, 19); ok {
		return Value64(v), true
	}
	s = strings.TrimPrefix(s, "+")
	base := 10
	switch {
	case len(s) > 1 && s[0] == '0' && (s[1] == 'x' || s[1] == 'X'):
		base, s = 16, s[2:]
		if s == "" {
			return Value128{}, true // ovs-ofctl reads a bare 0x as 0
		}
	case len(s) > 1 && s[0] == '0':
		base, s = 8, s[1:]
	}
	if s == "" || len(s) > 128 || strings.ContainsAny(s, "_+-") {
		return Value128{}, false
	}
	n, ok := new(big.Int).SetString(s, base)
	if !ok || n.BitLen() > 128 {
		return Value128{}, false
	}
	return Value128{new(big.Int).Rsh(n, 64).Uint64(), n.Uint64()}, true
}

// leadingDecimal returns the decimal number at the start of s like C's atoi, or 0 if there is none. The
// number may be negative.
func leadingDecimal(s string) int64 {
	digits, negative := strings.CutPrefix(strings.TrimPrefix(s, "+"), "-")
	n := 0
	for n < len(digits) && digits[n] >= '0' && digits[n] <= '9' {
		n++
	}
	v, _ := strconv.ParseInt(digits[:n], 10, 64)
	if negative {
		return -v
	}
	return v
}

// leadingNumber returns the text of the number at the start of s, as C's strtoull reads it. ovs-ofctl ignores
// other text behind the number, for example before the arrow of a load action.
func leadingNumber(s string) string {
	at := 0
	if strings.HasPrefix(s, "+") {
		at++
	}
	digits := "0123456789"
	switch {
	case strings.HasPrefix(s[at:], "0x"), strings.HasPrefix(s[at:], "0X"):
		at, digits = at+2, "0123456789abcdefABCDEF"
	case strings.HasPrefix(s[at:], "0"):
		digits = "01234567"
	}
	for at < len(s) && strings.IndexByte(digits, s[at]) >= 0 {
		at++
	}
	return s[:at]
}

// parseDigits parses a decimal number of at most "limit" digits, without leading zeros. Any number of 19
// digits fits into 64 bits.
func parseDigits(s string, limit int) (v uint64, ok bool) {
	if s == "" || len(s) > limit || s[0] == '0' && len(s) > 1 {
		return 0, false
	}
	for i := range len(s) {
		digit := s[i] - '0'
		if digit > 9 {
			return 0, false
		}
		v = 10*v + uint64(digit)
	}
	return v, true
}

// parseUint parses an unsigned number that is at most limit.
func parseUint(s string, limit uint64) (uint64, bool) {
	v, ok := parseNumber(s)
	if !ok || v[0] != 0 || v[1] > limit {
		return 0, false
	}
	return v[1], true
}

// parseDecimal parses a decimal number that is at most limit. It does not accept hexadecimal or octal
// numbers. Neither does ovs-ofctl for ports and tables.
func parseDecimal(s string, limit uint64) (uint64, bool) {
	v, err := strconv.ParseUint(strings.TrimPrefix(s, "+"), 10, 64)
	return v, err == nil && v <= limit
}
