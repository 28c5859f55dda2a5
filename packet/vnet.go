// SPDX-License-Identifier: Apache-2.0

package packet

import "encoding/binary"

// VnetLen is the length in bytes of the virtio-net header without the field num_buffers. Taps, and legacy
// devices without mergeable buffers, use this header.
const VnetLen = 10

// Values of fields of the virtio-net header (virtio 1.2 section 5.1.6). The header's fields, with their
// sizes in bytes, are flags 1, gso_type 1, hdr_len 2, gso_size 2, csum_start 2 and csum_offset 2. They
// are little endian.
const (
	vnetNeedsCsum = 1
	vnetDataValid = 2

	vnetTCPv4 = 1
	vnetTCPv6 = 4
	vnetUDP   = 5 // VIRTIO_NET_HDR_GSO_UDP_L4 (USO)
	vnetECN   = 0x80
)

// DecodeVnet sets the Offload of f from the virtio-net header h. allowed is the set of negotiated
// offloads; for any other, DecodeVnet sets f.Drop to DropBadOffload. A header may also claim that the
// checksum is valid. If trusted is true, DecodeVnet believes it: the kernel is trusted, a guest is not.
// It ignores hdr_len and unknown flags (virtio 1.2 section 5.1.6.4.2).
func (f *Frame) DecodeVnet(h *[VnetLen]byte, allowed Offloads, trusted bool) {
	first := binary.LittleEndian.Uint64(h[:8])
	if first&0xffff == 0 {
		return // fast path: nearly every frame
	}
	flags, kind := uint8(first), uint8(first>>8)
	if flags&vnetDataValid != 0 && trusted {
		f.Offload.Flags |= OffloadValid
	}
	if flags&vnetNeedsCsum != 0 {
		f.Offload.Flags |= OffloadPartial
		f.Offload.CsumStart = uint16(first >> 48)
		f.Offload.CsumOffset = binary.LittleEndian.Uint16(h[8:])
		if allowed&TakesPartial == 0 {
			f.Drop = DropBadOffload
		}
	}
	need := Offloads(0)
	switch kind &^ vnetECN {
	case 0:
		return
	case vnetTCPv4:
		f.Offload.GSO, need = GSOTCPv4, TakesTCPv4
	case vnetTCPv6:
		f.Offload.GSO, need = GSOTCPv6, TakesTCPv6
	case vnetUDP:
		f.Offload.GSO, need = GSOUDP, TakesUDP
	default:
		f.Drop = DropBadOffload
		return
	}
	f.Offload.Size = uint16(first >> 32)
	if need&^allowed != 0 {
		f.Drop = DropBadOffload
	}
}

// EncodeVnet writes the virtio-net header for the Offload of f to h. The receiver must accept this
// Offload. h may be in memory that a guest can change, because EncodeVnet does not read it.
func (f *Frame) EncodeVnet(h *[VnetLen]byte) {
	o := &f.Offload
	first, csumOffset := uint64(0), uint16(0)
	if o.Flags&OffloadPartial != 0 {
		first = vnetNeedsCsum | uint64(o.CsumStart)<<48
		csumOffset = o.CsumOffset
	} else if o.Flags&OffloadValid != 0 {
		first = vnetDataValid
	}
	kind := uint64(0)
	switch o.GSO {
	case GSOTCPv4:
		kind = vnetTCPv4
	case GSOTCPv6:
		kind = vnetTCPv6
	case GSOUDP:
		kind = vnetUDP
	}
	if kind != 0 {
		if o.GSO != GSOUDP && f.congestion() != 0 {
			kind |= vnetECN
		}
		first |= kind<<8 | uint64(f.headersLen())<<16 | uint64(o.Size)<<32
	}
	binary.LittleEndian.PutUint64(h[:8], first)
	binary.LittleEndian.PutUint16(h[8:], csumOffset)
}
