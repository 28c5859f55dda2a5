// SPDX-License-Identifier: Apache-2.0

package packet

import "encoding/binary"

// EtherTypeNSH is the EtherType of the network service header (NSH).
const EtherTypeNSH = 0x894f

// Lengths of an NSH in bytes, and its metadata (MD) types (RFC 8300 section 2.2). An NSH of type 1 has four
// context headers of 32 bits. One of type 2 has any number of them, also none, of variable length.
const (
	NSHBaseLen = 8
	NSHType1   = 1
	NSHType2   = 2
	nshType1   = NSHBaseLen + 16
)

// Next protocols of an NSH (RFC 8300 section 2.2).
const (
	NSHNextIPv4     = 1
	NSHNextIPv6     = 2
	NSHNextEthernet = 3
	NSHNextNSH      = 4
	NSHNextMPLS     = 5
)

// NSH is a network service header: base header, service path header and context headers (RFC 8300
// section 2).
type NSH []byte

// Version returns the version; RFC 8300 defines only 0.
func (h NSH) Version() uint8 { return h[0] >> 6 }

// HeaderLen returns the length of the whole header in bytes.
func (h NSH) HeaderLen() int { return int(h[1]&0x3f) * 4 }

// HasValidLen reports whether the length in the header is possible for its MD type.
func (h NSH) HasValidLen() bool {
	if h.MDType() == NSHType1 {
		return h.HeaderLen() == nshType1
	}
	return h.HeaderLen() >= NSHBaseLen
}

// MDType returns the metadata type, which says what context headers follow.
func (h NSH) MDType() uint8 { return h[2] & 0xf }

// NSHFields are the fields in the first 8 bytes of an NSH, without version and length, as a flowtable.Key
// has them. With their sizes in bits, from the most significant bits on: flags 8 | TTL 8 | MD type 8 | next
// protocol 8 | service path identifier 24 | service index 8. The flags are O and U.
type NSHFields uint64

// Number of the lowest bit of each field in NSHFields, and masks of the fields that are narrower in the
// header.
const (
	NSHFlagsShift  = 56
	NSHTTLShift    = 48
	NSHMDTypeShift = 40
	NSHNextShift   = 32
	NSHSPIShift    = 8
	nshFlags       = 0x3
	nshTTL         = 0x3f
)

// Fields returns the fields in the first 8 bytes of the header.
func (h NSH) Fields() NSHFields {
	first := uint64(binary.BigEndian.Uint16(h))
	return NSHFields(first>>12&nshFlags<<NSHFlagsShift | first>>6&nshTTL<<NSHTTLShift | uint64(h.MDType())<<NSHMDTypeShift |
		uint64(binary.BigEndian.Uint32(h[3:7]))<<8 | uint64(h[7]))
}

// write writes the first 8 bytes of the header. length is the length of the whole header in bytes.
func (h NSH) write(v NSHFields, length int) {
	first := uint64(v)>>NSHFlagsShift&nshFlags<<12 | uint64(v)>>NSHTTLShift&nshTTL<<6 | uint64(length/4)
	binary.BigEndian.PutUint16(h, uint16(first))
	h[2] = uint8(v>>NSHMDTypeShift) & 0xf
	binary.BigEndian.PutUint32(h[3:], uint32(v>>8))
	h[7] = uint8(v)
}

// nsh returns the header buffer from the NSH on, and the offset of the EtherType before it. It returns
// nil if the frame has no NSH. It does not check the length in the NSH, because extraction has checked
// it.
func (f *Frame) nsh() (NSH, int) {
	h, at := f.Header(), f.typeOffset()
	if at < 0 || at+2+NSHBaseLen > len(h) || binary.BigEndian.Uint16(h[at:]) != EtherTypeNSH {
		return nil, 0
	}
	return h[at+2:], at
}

// newLen returns the length in bytes of a new NSH. For MD type 1, this includes the context headers. For
// MD type 2, a new NSH has none.
func (v NSHFields) newLen() int {
	if uint8(v>>NSHMDTypeShift) == NSHType1 {
		return nshType1
	}
	return NSHBaseLen
}

// EncapNSH prepends an Ethernet header with addresses 0, and an NSH with the fields v. It returns
// DropNoHeadroom and changes nothing if the headroom is too small.
func (f *Frame) EncapNSH(v NSHFields) DropReason {
	length := v.newLen()
	h := f.Push(EthernetLen + length)
	if h == nil {
		return DropNoHeadroom
	}
	f.hideInner()
	clear(h[:EthernetLen+length])
	binary.BigEndian.PutUint16(h[12:], EtherTypeNSH)
	NSH(h[EthernetLen:]).write(v, length)
	return DropNone
}

// PushNSH inserts an NSH with the fields v after the Ethernet header and its VLAN tags, and sets the
// EtherType. It returns DropNoHeadroom and changes nothing if the headroom is too small.
func (f *Frame) PushNSH(v NSHFields) DropReason {
	at, length := f.typeOffset(), v.newLen()
	if at < 0 {
		return DropNone
	}
	h := f.Push(length)
	if h == nil {
		return DropNoHeadroom
	}
	f.hideInner()
	copy(h[:at], h[length:])
	binary.BigEndian.PutUint16(h[at:], EtherTypeNSH)
	clear(h[at+2 : at+2+length])
	NSH(h[at+2:]).write(v, length)
	return DropNone
}

// DecapNSH removes the outer Ethernet header with its VLAN tags, and the NSH. It returns a drop reason if no
// whole Ethernet header follows the NSH in the header buffer. It changes nothing if the frame has no NSH.
func (f *Frame) DecapNSH() DropReason {
	h, at := f.nsh()
	switch {
	case h == nil:
		return DropNone
	case at+2+h.HeaderLen()+EthernetLen > f.Len():
		return DropRuntFrame
	case h.HeaderLen()+EthernetLen > len(h):
		return DropDeepHeader
	}
	f.Pull(at + 2 + h.HeaderLen())
	return DropNone
}

// PopNSH removes the NSH and sets the EtherType. It returns a drop reason if the NSH does not fit into the
// header buffer. It changes nothing if the frame has no NSH.
func (f *Frame) PopNSH(etherType uint16) DropReason {
	h, at := f.nsh()
	if h == nil {
		return DropNone
	}
	length, all := h.HeaderLen(), f.Header()
	if length > len(h) {
		return DropDeepHeader
	}
	copy(all[length:], all[:at])
	f.Pull(length)
	binary.BigEndian.PutUint16(f.Header()[at:], etherType)
	return DropNone
}

// SetNSHFields sets those bits of the NSH's fields to v that are set in mask, if the frame has an NSH.
func (f *Frame) SetNSHFields(v, mask NSHFields) {
	if h, _ := f.nsh(); h != nil {
		h.write(h.Fields()&^mask|v&mask, h.HeaderLen())
	}
}

// SetNSHContext sets context header n, from 0 to 3, if the frame has an NSH of MD type 1.
func (f *Frame) SetNSHContext(n int, v uint32) {
	if h, _ := f.nsh(); h != nil && h.MDType() == NSHType1 && len(h) >= nshType1 {
		binary.BigEndian.PutUint32(h[NSHBaseLen+4*n:], v)
	}
}
