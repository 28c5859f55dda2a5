package packet

// Rewrites of the private header. Extraction has set L3, L4 and Proto; a
// rewrite of a header that the frame does not have changes nothing. Checksums
// that cover a changed field are mended (RFC 1624); a UDP checksum of 0, "none",
// stays 0; later fragments have no transport checksum.

// SetEthDst sets the destination address to the low 48 bits.
func (f *Frame) SetEthDst(mac uint64) { Ethernet(f.Header()).SetDst(mac) }

// SetEthSrc sets the source address to the low 48 bits.
func (f *Frame) SetEthSrc(mac uint64) { Ethernet(f.Header()).SetSrc(mac) }

// SetIPv4Src sets the source address, most significant byte first.
func (f *Frame) SetIPv4Src(addr uint32) {}

// SetIPv4Dst sets the destination address, most significant byte first.
func (f *Frame) SetIPv4Dst(addr uint32) {}

// SetIPv6Src sets the source address: upper and lower half.
func (f *Frame) SetIPv6Src(hi, lo uint64) {}

// SetIPv6Dst sets the destination address: upper and lower half.
func (f *Frame) SetIPv6Dst(hi, lo uint64) {}

// SetTOS sets all eight bits of the TOS or traffic class.
func (f *Frame) SetTOS(tos uint8) {}

// SetTTL sets the TTL or hop limit.
func (f *Frame) SetTTL(ttl uint8) {}

// DecTTL takes one off the TTL or hop limit; at 1 and 0 it changes nothing and
// returns DropTTLExpired.
func (f *Frame) DecTTL() DropReason { return DropNone }

// SetTpSrc sets the source port of TCP, UDP or SCTP.
func (f *Frame) SetTpSrc(port uint16) {}

// SetTpDst sets the destination port of TCP, UDP or SCTP.
func (f *Frame) SetTpDst(port uint16) {}
