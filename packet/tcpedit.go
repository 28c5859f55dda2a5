package packet

import "encoding/binary"

// EditTCP has edit change the TCP header of f, options included, which lie in the
// private header up to offset end, and mends its checksum. edit leaves ports, data
// offset and checksum alone.
func (f *Frame) EditTCP(end int, edit func(TCP)) {
	h := f.Header()[f.L4:end]
	before := Sum(h)
	edit(h)
	if !f.partial() { // else it will be summed when the checksum is finished
		f.mendTransport(before, Sum(h))
	}
}

// ReplaceTCP puts text in the place of the n bytes at offset at of the frame,
// which are in its TCP payload, beginning at offset payload; what follows moves,
// and lengths and checksums of the headers follow. It reports false, having
// changed nothing, where the frame does not lie in its private header as a whole
// or would not after: a checksum cannot be mended for bytes nobody holds; and where
// anything is left to do, for the place of that may be among what moves.
func (f *Frame) ReplaceTCP(payload, at, n int, text []byte) bool {
	h := f.Header()
	delta := len(text) - n
	if f.tailLen != 0 || at+n > len(h) || int(f.end)+delta > len(f.buf) || f.Undone() {
		return false
	}
	before, length := Sum(h[payload:]), uint16(len(h)-int(f.L4))
	rest := h[at+n:]
	f.end = uint16(int(f.end) + delta)
	h = f.Header()
	copy(h[at+len(text):], rest)
	copy(h[at:], text)
	f.origin = 0 // where it came from, other bytes lie
	f.mendTransport(before, Sum(h[payload:]))
	f.mendTransport(length, length+uint16(delta)) // of the pseudo header
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

// HeaderRoom is how long the private header can become.
func (f *Frame) HeaderRoom() int { return len(f.buf) - int(f.start) }

// SACKs calls edge with every edge of the blocks of selective acknowledgement
// (RFC 2018) among options, and puts what it returns in its place.
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

// TCPOption is the first of TCP options (RFC 9293 section 3.1) that is more than
// padding, its kind and length included, and what follows it; nil where there is
// none, or what is there is malformed.
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
