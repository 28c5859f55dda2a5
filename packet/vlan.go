// SPDX-License-Identifier: Apache-2.0

package packet

import "encoding/binary"

// PushVLAN inserts a VLAN tag (IEEE 802.1Q) after the source address. It returns
// DropNoHeadroom and changes nothing if the headroom is too small.
func (f *Frame) PushVLAN(tpid, tci uint16) DropReason {
	h := f.Push(4)
	if h == nil {
		return DropNoHeadroom
	}
	copy(h[:12], h[4:16])
	binary.BigEndian.PutUint16(h[12:], tpid)
	binary.BigEndian.PutUint16(h[14:], tci)
	return DropNone
}

// PopVLAN removes the outermost VLAN tag. It returns false if the frame has none.
func (f *Frame) PopVLAN() bool {
	h := f.Header()
	if !tagged(h) {
		return false
	}
	copy(h[4:16], h[:12])
	return f.Pull(4)
}

// SetVLAN sets the TCI of the outermost VLAN tag. It returns false if the frame has none.
func (f *Frame) SetVLAN(tci uint16) bool {
	h := f.Header()
	if !tagged(h) {
		return false
	}
	binary.BigEndian.PutUint16(h[14:], tci)
	return true
}

func tagged(h []byte) bool { return len(h) >= 18 && IsVLAN(Ethernet(h).Type()) }

// IsVLAN reports whether an EtherType is the TPID of a VLAN tag: customer tag
// (0x8100) or service tag (0x88a8).
func IsVLAN(etherType uint16) bool {
	return etherType == EtherTypeVLAN || etherType == EtherTypeSVLAN
}
