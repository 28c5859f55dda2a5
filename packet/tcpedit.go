// SPDX-License-Identifier: Apache-2.0

package packet

import "encoding/binary"

// EditTCP calls edit, which may change the TCP header of f and its options, and then updates the TCP
// checksum. end is the offset of the TCP payload. edit must not change ports, data offset and
// checksum.
func (f *Frame) EditTCP(end int, edit func(TCP)) {
	h := f.Header()[f.L4:end]
	before := Sum(h)
	edit(h)
	if !f.partial() { // an unfinished checksum will cover the new header
		f.mendTransport(before, Sum(h))
	}
}

// ReplaceTCP replaces n bytes of the TCP payload, from frame offset editOffset on, by text. It updates
// lengths and checksums. payload is the offset of the TCP payload. It returns false and changes
// nothing if the frame has an unfinished offload, or if the whole frame does not fit into the header
// buffer before and after the change.
func (f *Frame) ReplaceTCP(payload, editOffset, n int, text []byte) bool {
	h := f.Header()
	delta := len(text) - n
	if f.tailLen != 0 || editOffset+n > len(h) || int(f.end)+delta > len(f.buf) || f.Undone() {
		return false
	}
	before, length := Sum(h[payload:]), uint16(len(h)-int(f.L4))
	rest := h[editOffset+n:]
	f.end = uint16(int(f.end) + delta)
	h = f.Header()
	copy(h[editOffset+len(text):], rest)
	copy(h[editOffset:], text)
	f.origin = 0 // the foreign memory still has the old bytes
	f.mendTransport(before, Sum(h[payload:]))
	f.mendTransport(length, length+uint16(delta)) // for the length in the pseudo header
	if ip := f.ipv4(); ip != nil {
		was := uint16(ip.TotalLen())
		ip.SetTotalLen(int(was) + delta)
		ip.SetChecksum(MendChecksum(ip.Checksum(), was, was+uint16(delta)))
	} else {
		ip := f.ipv6()
		ip.SetPayloadLen(ip.PayloadLen() + delta)
	}
	return true
}

// HeaderRoom returns the length in bytes to which the frame's header buffer can grow.
func (f *Frame) HeaderRoom() int { return len(f.buf) - int(f.start) }

// SACKs changes the selective acknowledgements (RFC 2018) in TCP options. It calls edge for the left and the
// right edge of each block, with the edge's sequence number, and replaces that number by the result.
func SACKs(options []byte, edge func(right bool, v uint32) uint32) {
	const sack = 5
	for option, rest := TCPOption(options); option != nil; option, rest = TCPOption(rest) {
		if option[0] != sack {
			continue
		}
		for at := 2; at+8 <= len(option); at += 8 {
			for i, b := range [2][]byte{option[at : at+4], option[at+4 : at+8]} {
				binary.BigEndian.PutUint32(b, edge(i == 1, binary.BigEndian.Uint32(b)))
			}
		}
	}
}

// TCPOption returns the first TCP option (RFC 9293 section 3.1) that is not padding,
// and the options after it. It returns nil if there is none or if it is malformed.
func TCPOption(options []byte) (option, rest []byte) {
	const end, nop = 0, 1
	for len(options) >= 2 && options[0] != end {
		if options[0] == nop {
			options = options[1:]
			continue
		}
		n := int(options[1])
		if n < 2 || n > len(options) {
			break
		}
		return options[:n], options[n:]
	}
	return nil, nil
}
