// SPDX-License-Identifier: Apache-2.0

package packet

import "encoding/binary"

// This file rewrites MPLS and PBB headers. A shim is the 32 bits after the EtherType. For MPLS it is the
// outermost label stack entry (RFC 3032 section 2.1). For PBB it is the I-TAG (IEEE 802.1ah-2008 section
// 9.7). A rewrite changes nothing if the frame has no such header.

// ShimLen is the length of a shim in bytes.
const ShimLen = 4

// EtherTypes of frames with a shim.
const (
	EtherTypeMPLS          = 0x8847
	EtherTypeMPLSMulticast = 0x8848
	EtherTypePBB           = 0x88e7
)

// IsMPLS reports whether an EtherType means MPLS.
func IsMPLS(etherType uint16) bool {
	return etherType == EtherTypeMPLS || etherType == EtherTypeMPLSMulticast
}

// typeOffset returns the offset of the EtherType after the VLAN tags, or after the LLC and SNAP headers of
// an 802.3 frame (RFC 1042). It returns -1 if the header buffer does not have the EtherType.
func (f *Frame) typeOffset() int {
	h := f.Header()
	at := 12
	for at+VLANLen+2 <= len(h) && IsVLAN(binary.BigEndian.Uint16(h[at:])) {
		at += VLANLen
	}
	if at+2 <= len(h) && binary.BigEndian.Uint16(h[at:]) < 0x600 {
		at += 8
	}
	if at+2 > len(h) {
		return -1
	}
	return at
}

// shim returns the header buffer from the shim on, and the offset of the EtherType before it. It returns nil
// if the frame has no shim.
func (f *Frame) shim() ([]byte, int) {
	h, at := f.Header(), f.typeOffset()
	if at < 0 || at+2+ShimLen > len(h) {
		return nil, 0
	}
	if t := binary.BigEndian.Uint16(h[at:]); !IsMPLS(t) && t != EtherTypePBB {
		return nil, 0
	}
	return h[at+2:], at
}

// SetShim sets the outermost label stack entry or the I-TAG to v.
func (f *Frame) SetShim(v uint32) {
	if shim, _ := f.shim(); shim != nil {
		binary.BigEndian.PutUint32(shim, v)
	}
}

// hideInner is called when an MPLS, PBB or NSH header is put before the network and transport headers.
// It sets L3 and L4 to 0, so that later rewrites do not change these headers. But if a checksum is
// partial or the frame is large, L3 and L4 are still needed to finish this work. hideInner then leaves
// them and sets the flag FrameHidden.
func (f *Frame) hideInner() {
	if !f.Undone() {
		f.L3, f.L4, f.Proto = 0, 0, 0
		return
	}
	f.Flags |= FrameHidden
}

// PushMPLS inserts a label stack entry after the VLAN tags and sets the EtherType. It returns DropNoHeadroom
// and changes nothing if the headroom is too small.
func (f *Frame) PushMPLS(etherType uint16, entry uint32) DropReason {
	at := f.typeOffset()
	if at < 0 {
		return DropNone
	}
	h := f.Push(ShimLen)
	if h == nil {
		return DropNoHeadroom
	}
	f.hideInner()
	copy(h[:at], h[ShimLen:])
	binary.BigEndian.PutUint16(h[at:], etherType)
	binary.BigEndian.PutUint32(h[at+2:], entry)
	return DropNone
}

// PopMPLS removes the outermost label stack entry and sets the EtherType of what follows it.
func (f *Frame) PopMPLS(etherType uint16) {
	shim, at := f.shim()
	if shim == nil {
		return
	}
	h := f.Header()
	if !IsMPLS(binary.BigEndian.Uint16(h[at:])) {
		return
	}
	copy(h[ShimLen:], h[:at])
	f.Pull(ShimLen)
	binary.BigEndian.PutUint16(f.Header()[at:], etherType)
}

// PushPBB prepends an Ethernet header with the frame's own addresses, and an I-TAG. It returns DropNoHeadroom
// and changes nothing if the headroom is too small.
func (f *Frame) PushPBB(tag uint32) DropReason {
	h := f.Push(EthernetLen + ShimLen)
	if h == nil {
		return DropNoHeadroom
	}
	f.hideInner()
	copy(h[:12], h[EthernetLen+ShimLen:])
	binary.BigEndian.PutUint16(h[12:], EtherTypePBB)
	binary.BigEndian.PutUint32(h[EthernetLen:], tag)
	return DropNone
}

// EncapMPLS prepends an Ethernet header with addresses 0, and a label stack entry. It returns DropNoHeadroom
// and changes nothing if the headroom is too small.
func (f *Frame) EncapMPLS(etherType uint16, entry uint32) DropReason {
	h := f.Push(EthernetLen + ShimLen)
	if h == nil {
		return DropNoHeadroom
	}
	f.hideInner()
	clear(h[:12])
	binary.BigEndian.PutUint16(h[12:], etherType)
	binary.BigEndian.PutUint32(h[EthernetLen:], entry)
	return DropNone
}

// DecapMPLS removes the outer Ethernet header with its VLAN tags, and the outermost label stack entry. It
// returns DropRuntFrame if no whole Ethernet header follows the entry in the header buffer. It does not
// change a frame without a label stack entry.
func (f *Frame) DecapMPLS() DropReason {
	shim, at := f.shim()
	if shim == nil || !IsMPLS(binary.BigEndian.Uint16(f.Header()[at:])) {
		return DropNone
	}
	if len(shim) < ShimLen+EthernetLen {
		return DropRuntFrame
	}
	f.Pull(at + 2 + ShimLen)
	return DropNone
}

// PopPBB removes the outer Ethernet header with its VLAN tags, and the I-TAG. It returns DropRuntFrame if no
// whole Ethernet header follows in the header buffer. It does not change a frame without an I-TAG.
func (f *Frame) PopPBB() DropReason {
	shim, at := f.shim()
	if shim == nil || IsMPLS(binary.BigEndian.Uint16(f.Header()[at:])) {
		return DropNone
	}
	if len(shim) < ShimLen+EthernetLen {
		return DropRuntFrame
	}
	f.Pull(at + 2 + ShimLen)
	return DropNone
}
