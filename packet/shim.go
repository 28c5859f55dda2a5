// SPDX-License-Identifier: Apache-2.0

package packet

import "encoding/binary"

// A shim is the 32 bits behind the EtherType, after extraction. For MPLS it is a label
// stack entry (RFC 3032 section 2.1). For PBB it is an I-TAG (IEEE 802.1ah-2008 section
// 9.7). If the frame has no such header, a rewrite changes nothing.

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

// typeOffset returns the offset of the EtherType behind the VLAN tags, or behind the
// LLC and SNAP headers of an 802.3 frame (RFC 1042). It returns -1 if the header buffer
// ends before it.
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

// shim returns the header buffer from the shim on, and the offset of the EtherType; nil:
// the frame has none.
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

// SetShim sets the label stack entry or the I-TAG.
func (f *Frame) SetShim(v uint32) {
	if shim, _ := f.shim(); shim != nil {
		binary.BigEndian.PutUint32(shim, v)
	}
}

// hideInner makes rewrites ignore the network and transport headers, which are behind a new
// header. A frame with an unfinished offload keeps their offsets, which finishing needs.
func (f *Frame) hideInner() {
	if !f.Undone() {
		f.L3, f.L4, f.Proto = 0, 0, 0
		return
	}
	f.Flags |= FrameHidden
}

// PushMPLS inserts a label stack entry behind the VLAN tags and sets the EtherType.
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

// PopMPLS removes the outermost label stack entry and sets the EtherType.
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

// PushPBB prepends an Ethernet header with the frame's addresses and an I-TAG.
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

// EncapMPLS prepends an Ethernet header with addresses 0 and a label stack entry.
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

// DecapMPLS removes the outer Ethernet header with its VLAN tags, and the outermost label
// stack entry. It drops a frame that has no whole Ethernet header behind the entry. It
// does not change a frame without a label stack entry.
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

// PopPBB removes the outer Ethernet header with its VLAN tags, and the I-TAG. It drops a
// frame that has no whole Ethernet header behind them.
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
