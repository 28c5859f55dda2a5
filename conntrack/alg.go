package conntrack

import (
	"bytes"
	"net/netip"
	"strconv"
	"strings"

	"weft/packet"
)

// Application layer gateways: control connections of FTP (RFC 959, RFC 2428) and
// requests of TFTP (RFC 1350) announce connections, which are related to theirs.
// Only announcements of the two ends themselves count, so that nobody opens a way
// to a third. What is announced within is not translated.

// ALG names a gateway.
type ALG uint8

// Gateways.
const (
	ALGNone ALG = iota
	ALGFTP
	ALGTFTP
)

const (
	// MaxExpectations bounds the connections announced and not begun; a further one
	// replaces the one that would expire first.
	MaxExpectations = 256
	// expectationNS is how long one is expected.
	expectationNS = 120_000_000_000
	// maxCommand is how much of a segment of FTP is read: commands and replies that
	// matter are shorter, and stand at its beginning.
	maxCommand = 120
)

// expectation is a connection that may begin: from any port of Src to DstPort of
// Dst. Guarded by the table's lock.
type expectation struct {
	src, dst  [2]uint64
	expiresNS uint64 // 0: free
	dstPort   uint16
	zone      uint16
	proto     uint8
	ipv6      uint8
	_         [2]byte
	parent    Ref // as it began
	_         [8]byte
}

// announce reads what f, a valid frame of connection n in direction dir, tells
// its gateway, if the connection is of generation g and has one.
func (tr *Tracker) announce(b *packet.Batch, f *packet.Frame, n, g uint32, dir uint8, now uint64) {
	t := tr.Table
	var v view
	if !t.read(n, g, &v) || v.flags&(connFTP|connTFTP) == 0 || f.L4 == 0 {
		return
	}
	o := v.tuples[0].tuple(v.addresses(0))
	e := expectation{zone: o.Zone, proto: o.Proto, parent: Ref{n, v.born}}
	if o.IPv6 {
		e.ipv6 = 1
	}
	if v.flags&connTFTP != 0 {
		if dir == 0 { // a request: answered from another port
			e.src, e.dst, e.dstPort = o.Dst, o.Src, o.SrcPort
			t.expect(&e, now)
		}
		return
	}
	line := payloadOf(b, f)
	if len(line) == 0 {
		return
	}
	// Passive: the client will call the server; active: the other way round.
	e.src, e.dst = o.Src, o.Dst
	if dir == 0 {
		e.src, e.dst = o.Dst, o.Src
	}
	address, port, ok := readFTP(line, dir == 1)
	if !ok || port == 0 || address.IsValid() && (address.Is6() != o.IPv6 || AddrWords(address) != e.dst) {
		return
	}
	e.dstPort = port
	t.expect(&e, now)
}

// payloadOf is the beginning of f's TCP payload.
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

// expect adds an expectation.
func (t *Table) expect(e *expectation, now uint64) {
	e.expiresNS = now + expectationNS
	t.lock()
	defer t.unlock()
	at := 0
	for i := range t.expectations {
		x := &t.expectations[i]
		if x.expiresNS < t.expectations[at].expiresNS {
			at = i
		}
		if x.dst == e.dst && x.src == e.src && x.dstPort == e.dstPort && x.zone == e.zone && x.proto == e.proto && x.ipv6 == e.ipv6 {
			at = i
			break
		}
	}
	t.expectations[at] = *e
	t.head.expecting.Store(1)
}

// expected finds the expectation that p fulfils, and removes it if take is set.
func (t *Table) expected(p *probe, now uint64, take bool) (parent Ref, ok bool) {
	if t.head.expecting.Load() == 0 {
		return parent, false
	}
	k := p.words.tuple(&p.long)
	t.lock()
	defer t.unlock()
	left := uint32(0)
	for i := range t.expectations {
		x := &t.expectations[i]
		if x.expiresNS == 0 {
			continue
		}
		if up := &t.conns[x.parent.Number%uint32(len(t.conns))]; x.expiresNS < now || up.generation()&1 == 0 || up.born != x.parent.Generation {
			x.expiresNS = 0
			continue
		}
		left = 1
		if x.dstPort == k.DstPort && x.zone == k.Zone && x.proto == k.Proto && (x.ipv6 != 0) == k.IPv6 && x.src == k.Src && x.dst == k.Dst {
			if take {
				x.expiresNS = 0
			}
			return x.parent, true
		}
	}
	t.head.expecting.Store(left)
	return parent, false
}

// readFTP reads PORT and EPRT of a client, or the replies 227 and 229 of a
// server. An invalid address is the one the connection has.
func readFTP(line []byte, reply bool) (address netip.Addr, port uint16, ok bool) {
	end := bytes.IndexByte(line, '\r')
	if end < 0 {
		return address, 0, false // more than was read, or not a line
	}
	text := string(line[:end])
	switch {
	case !reply && len(text) > 5 && strings.EqualFold(text[:5], "PORT "):
		return readSix(text[5:])
	case !reply && len(text) > 5 && strings.EqualFold(text[:5], "EPRT "):
		return readExtended(text[5:], true)
	case reply && strings.HasPrefix(text, "227 "):
		if at := strings.IndexAny(text[4:], "0123456789"); at >= 0 {
			return readSix(strings.TrimRight(text[4+at:], "). "))
		}
	case reply && strings.HasPrefix(text, "229 "):
		_, inner, found := strings.Cut(text, "(")
		if inner, _, closed := strings.Cut(inner, ")"); found && closed {
			return readExtended(inner, false)
		}
	}
	return address, 0, false
}

// readSix reads h1,h2,h3,h4,p1,p2.
func readSix(text string) (address netip.Addr, port uint16, ok bool) {
	var v [6]byte
	parts := strings.Split(strings.TrimSpace(text), ",")
	if len(parts) != len(v) {
		return address, 0, false
	}
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 8)
		if err != nil {
			return address, 0, false
		}
		v[i] = byte(n)
	}
	return netip.AddrFrom4([4]byte(v[:4])), uint16(v[4])<<8 | uint16(v[5]), true
}

// readExtended reads |family|address|port|, the first two of which are empty in a
// reply.
func readExtended(text string, full bool) (address netip.Addr, port uint16, ok bool) {
	text = strings.TrimSpace(text)
	if len(text) < 5 {
		return address, 0, false
	}
	parts := strings.Split(text, text[:1])
	if len(parts) != 5 {
		return address, 0, false
	}
	n, err := strconv.ParseUint(parts[3], 10, 16)
	if err != nil {
		return address, 0, false
	}
	if full {
		if address, err = netip.ParseAddr(parts[2]); err != nil || address.Zone() != "" {
			return address, 0, false
		}
	} else if parts[1] != "" || parts[2] != "" {
		return address, 0, false
	}
	return address, uint16(n), true
}
