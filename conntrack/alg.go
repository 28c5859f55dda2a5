// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bytes"
	"net/netip"

	"weft/packet"
)

// This file has the application layer gateways (ALGs) of FTP (RFC 959, RFC 2428) and TFTP (RFC 1350). An
// FTP control connection or a TFTP request announces a second connection, which then gets ct_state +rel
// (related). A gateway accepts an announcement only if it names the sender's own address. Otherwise a host
// could open a path to another host. If the FTP control connection has NAT, shift.go rewrites the
// announcement.

// ALG is a kind of application layer gateway. A gateway finds the further connections that a connection
// announces, such as the data connections of FTP.
type ALG uint8

// Kinds of gateways. ALGNone: no gateway.
const (
	ALGNone ALG = iota
	ALGFTP
	ALGTFTP
)

// maxCommand is the number of payload bytes that the FTP gateway reads. It finds an announcement only if
// the announcement begins with the first of these bytes and ends within them.
const maxCommand = 120

// announce passes frame x to the gateway (FTP or TFTP) of connection n. dir is the direction of the frame.
// Without a gateway, or if the connection no longer has generation g, announce does nothing and returns
// true. It returns false if the caller must drop the frame: NAT translates connection n, and another
// connection has already announced the same translated address and port. The new connection would then
// reach the wrong client. Without NAT, both connections announce the same host, so no frame is dropped.
func (tr *Tracker) announce(x *trackedFrame, n, g uint32, dir uint8) (ok bool) {
	t := tr.Table
	var v view
	if !t.read(n, g, &v) || x.frame.L4 == 0 {
		return true
	}
	e := tr.expectationOf(&v, n, dir)
	switch {
	case v.flags&connTFTP != 0 && dir == 0: // TFTP request; the server answers from another port
		e.dstPort, e.announced = v.tuples[1].dstPort(), v.tuples[0].srcPort()
		return t.expect(&e, x.now) || !e.translated
	case v.flags&(connFTP|connTranslated) == connFTP: // FTP without NAT; with NAT see shift.go
		if a, ok := readOwn(payloadOf(x.batch, x.frame), &v, dir); ok {
			e.dstPort, e.announced = a.port, a.port
			t.expect(&e, x.now)
		}
	}
	return true
}

// expectationOf returns the expectation (the entry for an announced connection) that an announcement on
// connection n creates. dir is the direction of the frame with the announcement, and v a copy of connection
// n. The caller sets the ports of the expectation.
func (tr *Tracker) expectationOf(v *view, n uint32, dir uint8) expectation {
	other := v.tuples[1-dir&1].tuple(v.addresses(1 - dir&1))
	e := expectation{src: other.Src, dst: other.Dst, zone: other.Zone, proto: other.Proto, announcer: dir, sender: tr.sender,
		translated: v.flags&connTranslated != 0, parent: Ref{n, v.born}}
	if other.IPv6 {
		e.ipv6 = 1
	}
	return e
}

// readOwn reads an FTP announcement from the text "line", which the side "dir" of connection v sent.
// ok is false unless the text announces the sender's own address.
func readOwn(line []byte, v *view, dir uint8) (a announced, ok bool) {
	if len(line) == 0 {
		return a, false
	}
	own := v.tuples[dir&1].tuple(v.addresses(dir))
	a, ok = readFTP(line, dir == 1)
	if a.address.IsValid() && (a.address.Is6() != own.IPv6 || addrWords(a.address) != own.Src) {
		return a, false
	}
	return a, ok && a.port != 0
}

// payloadOf returns the first bytes of the TCP payload of frame f, at most maxCommand.
func payloadOf(b *packet.Batch, f *packet.Frame) []byte {
	h := f.Header()
	at := int(f.L4) + packet.TCP(h[f.L4:]).HeaderLen()
	if at >= f.Len() {
		return nil
	}
	b.Pullup(f, min(at+maxCommand, f.Len()))
	if h = f.Header(); at >= len(h) {
		return nil
	}
	return h[at:min(at+maxCommand, len(h))]
}

// translationOfParent chooses the NAT of a related connection. Its parent is the FTP or TFTP connection
// that has announced it. If the parent has NAT, the translated frames of the related connection have the
// addresses that the announcing host uses on the parent connection, and the announced port. The results are
// replyTuple (the tuple of the answers) and the flags of the new connection. ok is false if the parent has
// no NAT. The caller holds the table's lock.
func (tr *Tracker) translationOfParent(p *probe, nat *NAT, g *newConn, replyTuple *probe, now uint64) (flags uint16, ok bool) {
	t, n := tr.Table, g.related.Number
	if g.related.Generation == 0 || nat.Kind == NATNone {
		return 0, false
	}
	up := &t.conns[n]
	if up.generation()&1 == 0 || up.born != g.related.Generation || up.flags&connTranslated == 0 {
		return 0, false
	}
	long := t.longOf(n, g.announcer)
	announcer := up.tuples[g.announcer&1].tuple(&long)
	plain := p.words.tuple(&p.long)
	want := plain
	want.Src, want.Dst, want.DstPort = announcer.Dst, announcer.Src, g.announced
	tr.search.begin(tr.sender.holder(p.zone()), now)
	defer tr.search.end()
	// If another connection has the tuple already, choosePort changes the source port.
	if *replyTuple, ok = tr.choosePort(p, &NAT{Kind: NATSrc}, &plain, want, now); !ok {
		return connClash, true
	}
	return flagsOf(&plain, replyTuple), true
}

// announced is the content of an FTP announcement: an address and a port.
type announced struct {
	address    netip.Addr // an invalid address stands for the connection's own
	port       uint16
	start, end int  // line[start:end] holds address and port
	between    byte // separator in EPRT and reply 229; 0: PORT or reply 227
}

// readFTP reads a client's PORT or EPRT command, or a server's reply 227 or 229. It
// does not use netip's parser, which would allocate memory.
func readFTP(line []byte, reply bool) (a announced, ok bool) {
	end := bytes.IndexByte(line, '\r')
	if end < 5 {
		return a, false // no end of line within maxCommand bytes
	}
	line = line[:end]
	a.start, a.end = 5, end
	switch {
	case !reply && bytes.EqualFold(line[:5], []byte("PORT ")):
		ok = a.readSix(line)
	case !reply && bytes.EqualFold(line[:5], []byte("EPRT ")):
		ok = a.readExtended(line, true)
	case reply && string(line[:4]) == "227 ":
		a.start = 4
		for a.start < end && digit(line[a.start]) == 10 {
			a.start++
		}
		for a.end > a.start && digit(line[a.end-1]) == 10 {
			a.end--
		}
		ok = a.readSix(line)
	case reply && string(line[:4]) == "229 ":
		a.start = bytes.IndexByte(line, '(') + 1
		if a.end = bytes.IndexByte(line, ')'); a.start > 0 && a.end >= a.start {
			ok = a.readExtended(line, false)
		}
	}
	return a, ok
}

// readSix reads an address and a port in the form h1,h2,h3,h4,p1,p2 (RFC 959).
func (a *announced) readSix(line []byte) bool {
	var v [6]byte
	fields := fields{line[a.start:a.end], ','}
	for i := range v {
		text, last := fields.nextField()
		n, ok := decimal(text, 0xff)
		if !ok || last != (i == len(v)-1) {
			return false
		}
		v[i] = byte(n)
	}
	a.address, a.port = netip.AddrFrom4([4]byte(v[:4])), uint16(v[4])<<8|uint16(v[5])
	return true
}

// readExtended reads an address and a port in the form |family|address|port| (RFC
// 2428). In a reply the first two fields are empty.
func (a *announced) readExtended(line []byte, full bool) bool {
	if a.end-a.start < 5 {
		return false
	}
	if a.between = line[a.start]; a.between < '!' || a.between > '~' {
		return false
	}
	fields := fields{line[a.start+1 : a.end], a.between}
	family, _ := fields.nextField()
	address, _ := fields.nextField()
	port, last := fields.nextField()
	n, ok := decimal(port, 0xffff)
	if rest, _ := fields.nextField(); !ok || last || len(rest) != 0 || fields.between != 0 {
		return false
	}
	a.port = uint16(n)
	if full {
		a.address, ok = readAddress(address)
		return ok && len(family) == 1 && (family[0] == '2') == a.address.Is6()
	}
	return len(family)+len(address) == 0
}

// fields is the rest of a text of fields, from which nextField removes the first field. The byte "between"
// separates the fields. It becomes 0 when the last field is removed.
type fields struct {
	text    []byte
	between byte
}

// nextField returns the next field of the text. isLast is true if no field follows.
func (f *fields) nextField() (text []byte, isLast bool) {
	end := bytes.IndexByte(f.text, f.between)
	if end < 0 {
		text, f.text, f.between = f.text, nil, 0
		return text, true
	}
	text, f.text = f.text[:end], f.text[end+1:]
	return text, false
}

// digit returns the value of a decimal digit, or 10 for any other character.
func digit(c byte) uint { return min(uint(c-'0'), 10) }

// decimal reads a decimal number of at most five digits. ok is false if the text is not such a
// number, or if the number exceeds limit.
func decimal(text []byte, limit uint) (n uint, ok bool) {
	if len(text) == 0 || len(text) > 5 {
		return 0, false
	}
	for _, c := range text {
		if digit(c) == 10 {
			return 0, false
		}
		n = n*10 + digit(c)
	}
	return n, n <= limit
}

// readAddress reads the text of an IPv4 or IPv6 address (RFC 4291 section 2.2).
func readAddress(text []byte) (netip.Addr, bool) {
	if bytes.IndexByte(text, ':') < 0 {
		var v [4]byte
		fields := fields{text, '.'}
		for i := range v {
			text, last := fields.nextField()
			n, ok := decimal(text, 0xff)
			if !ok || last != (i == len(v)-1) || len(text) > 1 && text[0] == '0' {
				return netip.Addr{}, false
			}
			v[i] = byte(n)
		}
		return netip.AddrFrom4(v), true
	}
	var v [16]byte
	n, gap := 0, -1 // number of address bytes read so far, and number of bytes before "::"
	if string(text[:min(2, len(text))]) == "::" {
		gap, text = 0, text[2:]
	}
	for len(text) > 0 {
		end := bytes.IndexByte(text, ':')
		if end < 0 {
			end = len(text)
		}
		group, ok := hexadecimal(text[:end])
		if !ok || n == len(v) {
			return netip.Addr{}, false
		}
		v[n], v[n+1] = byte(group>>8), byte(group)
		n += 2
		switch text = text[end:]; {
		case len(text) == 0:
		case len(text) > 1 && text[1] != ':':
			text = text[1:]
		case len(text) > 1 && gap < 0:
			gap, text = n, text[2:]
		default:
			return netip.Addr{}, false
		}
	}
	if gap >= 0 && n < len(v) {
		behind := len(v) - (n - gap)
		copy(v[behind:], v[gap:n])
		clear(v[gap:behind])
	} else if gap >= 0 || n < len(v) {
		return netip.Addr{}, false
	}
	return netip.AddrFrom16(v), true
}

// hexadecimal reads one 16-bit group of an IPv6 address.
func hexadecimal(text []byte) (n uint, ok bool) {
	if len(text) == 0 || len(text) > 4 {
		return 0, false
	}
	for _, c := range text {
		d := digit(c)
		if c |= 0x20; c >= 'a' && c <= 'f' {
			d = uint(c-'a') + 10
		} else if d == 10 {
			return 0, false
		}
		n = n<<4 | d
	}
	return n, true
}
