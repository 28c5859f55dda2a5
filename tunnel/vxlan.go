package tunnel

import "encoding/binary"

// VXLAN is a VXLAN header, 8 bytes (RFC 7348 section 5). It checks nothing.
type VXLAN []byte

const (
	// VXLANLen is the length of the header in bytes.
	VXLANLen = 8
	// VXLANPort is the UDP port that IANA assigned.
	VXLANPort = 4789
	// vxlanValid is the I flag: the VNI is valid. All other bits are reserved,
	// sent as 0 and ignored on receipt.
	vxlanValid = 0x08
)

// Valid tells whether the I flag is set.
func (h VXLAN) Valid() bool { return h[0]&vxlanValid != 0 }

// VNI is the VXLAN network identifier, 24 bits.
func (h VXLAN) VNI() uint32 { return binary.BigEndian.Uint32(h[4:]) >> 8 }

// Set writes the whole header.
func (h VXLAN) Set(vni uint32) {
	binary.BigEndian.PutUint64(h, vxlanValid<<56|uint64(vni&0xffffff)<<8)
}
