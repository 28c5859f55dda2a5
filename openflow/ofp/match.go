// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	of "weft/openflow"
)

// matchOXM is the type number of a match that consists of OXM fields (OpenFlow 1.5,
// 7.2.3.1).
const matchOXM = 1

// appendMatch appends a match with its header and padding, for OpenFlow 1.3 and later.
func appendMatch(b []byte, m *of.Match, v Version, tlvs *of.TLVMap) []byte {
	start := len(b)
	b = append(b, 0, matchOXM, 0, 0)
	b = of.AppendMatch(b, m, v, tlvs)
	be.PutUint16(b[start+2:], uint16(len(b)-start))
	return pad(b, start)
}

// appendNXM appends a match as NXM fields with padding, as Nicira's messages for OpenFlow 1.0 have it. It
// also returns the length of the fields in bytes, without the padding.
func appendNXM(b []byte, m *of.Match, tlvs *of.TLVMap) ([]byte, uint16) {
	start := len(b)
	b = of.AppendMatch(b, m, v10, tlvs)
	n := len(b) - start
	return pad(b, start), uint16(n)
}

// match reads a match of OpenFlow 1.3 and later, with its header and padding.
func (r *reader) match() (of.Match, error) { return r.matchAs(of.DecodeMatch) }

func (r *reader) matchAs(decode func([]byte, *of.TLVMap) (of.Match, error)) (of.Match, error) {
	kind, n := r.u16(), int(r.u16())
	if r.short || n < 4 || n-4 > len(r.b) {
		return of.Match{}, coded(of.ErrMatchBadLen, "a match has a wrong length")
	}
	if kind != matchOXM {
		return of.Match{}, coded(of.ErrMatchBadType, "match of type %d: expected OXM", kind)
	}
	fields := r.take(n - 4)
	r.take(min((8-n%8)%8, len(r.b)))
	return decode(fields, r.tlvs)
}

// Class and number of the NXM field NXM_NX_COOKIE.
const (
	cookieClass  = 1
	cookieNumber = 30
)

// nxm reads a match of NXM fields with a length of n bytes. NXM_NX_COOKIE is not a field of frames; it
// selects flows by their cookie. So nxm returns its value and mask as separate results.
func (r *reader) nxm(n int) (m of.Match, cookie, mask uint64, err error) {
	if n > len(r.b) {
		return m, 0, 0, coded(of.ErrMatchBadLen, "a match has a wrong length")
	}
	fields := r.padded(n)
	var rest []byte
	for at := 0; at+4 <= len(fields); {
		size := 4 + int(fields[at+3])
		if at+size > len(fields) {
			break
		}
		one := fields[at : at+size]
		if be.Uint16(one) == cookieClass && one[2]>>1 == cookieNumber {
			switch masked := one[2]&1 != 0; {
			case masked && size == 20:
				cookie, mask = be.Uint64(one[4:]), be.Uint64(one[12:])
			case !masked && size == 12:
				cookie, mask = be.Uint64(one[4:]), ^uint64(0)
			default:
				return m, 0, 0, coded(of.ErrMatchBadLen, "a cookie has a wrong length")
			}
			rest = append(append(rest, fields[:at]...), fields[at+size:]...)
			fields, rest = rest, nil
			continue
		}
		at += size
	}
	m, err = of.DecodeMatch(fields, r.tlvs)
	return m, cookie & mask, mask, err
}
