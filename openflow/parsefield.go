// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"net/netip"
	"strconv"
	"strings"

	"weft/flowtable"
)

// setField makes the match m require the value v in the bits of "mask". It drops earlier requirements on the
// field. A VLAN field also requires the bits that it implies, such as the presence of a tag (ovs-fields(7)).
func setField(m *Match, id FieldID, v, mask Value128) {
	if mask.IsZero() {
		unsetField(m, id)
		return
	}
	switch id {
	case FDLVLAN:
		if v[1] == dlVLANNone {
			SetBits(m, flowtable.WEthSrc, 0, flowtable.VLANTCI)
			return
		}
		SetBits(m, flowtable.WEthSrc, flowtable.VLANPresent|v[1]&flowtable.VLANID, flowtable.VLANPresent|flowtable.VLANID)
	case FVLANVID:
		ClearBits(m, flowtable.WEthSrc, flowtable.VLANPresent|flowtable.VLANID)
		SetBits(m, flowtable.WEthSrc, v[1], mask[1]&(flowtable.VLANPresent|flowtable.VLANID))
	case FDLVLANPCP, FVLANPCP:
		SetBits(m, flowtable.WEthSrc, flowtable.VLANPresent|v[1]<<13&flowtable.VLANPCP, flowtable.VLANPresent|flowtable.VLANPCP)
	case FNwTOS:
		SetBits(m, flowtable.WIP, v[1]<<flowtable.TOSShift, tosDSCP<<flowtable.TOSShift)
	case FInPort, FInPortOXM:
		SetBits(m, flowtable.WPort, v[1]<<32, 0xffffffff<<32)
	default:
		unsetField(m, id)
		s := WholeField(id)
		word, hi, lo := s.Words(v)
		_, mhi, mlo := s.Words(mask)
		SetBits(m, word, hi, mhi)
		if fields[id].bits > 64 {
			SetBits(m, word+1, lo, mlo)
		}
	}
}

// unsetField makes match m accept any value of a field.
func unsetField(m *Match, id FieldID) {
	switch id {
	case FDLVLAN, FVLANVID:
		ClearBits(m, flowtable.WEthSrc, flowtable.VLANID)
		if m.Mask[flowtable.WEthSrc]&flowtable.VLANPCP == 0 {
			ClearBits(m, flowtable.WEthSrc, flowtable.VLANPresent)
		}
	case FDLVLANPCP, FVLANPCP:
		ClearBits(m, flowtable.WEthSrc, flowtable.VLANPCP)
		if m.Mask[flowtable.WEthSrc]&flowtable.VLANID == 0 {
			ClearBits(m, flowtable.WEthSrc, flowtable.VLANPresent)
		}
	case FNwTOS:
		ClearBits(m, flowtable.WIP, tosDSCP<<flowtable.TOSShift)
	case FInPort, FInPortOXM:
		ClearBits(m, flowtable.WPort, 0xffffffff<<32)
	default:
		word, hi, lo := WholeField(id).Mask()
		ClearBits(m, word, hi)
		if lo != 0 {
			ClearBits(m, word+1, lo)
		}
	}
}

// SetBits makes m require that the bits of "mask" in Flow[word] are those of v.
func SetBits(m *Match, word int, v, mask uint64) {
	m.Mask[word] |= mask
	m.Value[word] = m.Value[word]&^mask | v&mask
}

// ClearBits makes m ignore the bits of "mask" in Flow[word].
func ClearBits(m *Match, word int, mask uint64) {
	m.Mask[word] &^= mask
	m.Value[word] &^= mask
}

// parseMatchField parses field=value[/mask] and adds it to the match m.
func parseMatchField(m *Match, id FieldID, t token, names Names) error {
	if id.IsTLV() {
		return parseTLVMatch(m, id, t, names)
	}
	f := &fields[id]
	if t.value == "*" {
		unsetField(m, id)
		return nil
	}
	text := t.value
	if text == "" {
		text = "0/0" // for fields of numbers and flags, a missing value means any value; others refuse it
	}
	v, mask, err := parseFieldValue(id, text, names)
	if err != nil {
		if t.value == "" {
			return wrong(t.text, "%s=VALUE", t.key)
		}
		return err
	}
	if f.format == asPort {
		mask = Ones(32)
	}
	full := Ones(8 * uint(f.bytes))
	if !f.maskable && f.format != asPort && mask != full && !mask.IsZero() {
		return wrong(t.value, "a value without a mask for %s", t.key)
	}
	if n := f.storedBits(); v.BitLen() > int(n) && (id == FIPv6Label || id == FARPOp) {
		return wrong(t.value, "a number below 0x%x for %s", 1<<n, t.key)
	}
	if !validNSH(id, v[1]) {
		return wrong(t.value, "a value that an NSH can have in %s", t.key)
	}
	setField(m, id, v.And(mask), mask)
	return nil
}

// parseFieldValue parses value[/mask] in the text format of the field. If the text has no mask, the returned
// "mask" has all bits of the field's bytes, which may be more bits than the field has.
func parseFieldValue(id FieldID, text string, names Names) (v, mask Value128, err error) {
	f := &fields[id]
	mask = Ones(8 * uint(f.bytes))
	switch f.format {
	case asPort:
		no, err := parsePort(text, names)
		return Value64(uint64(no)), mask, err
	case asFrag:
		return parseFrag(text)
	case asTCPFlags:
		return parseTCPFlags(text)
	case asTunFlags:
		return parseTunFlags(text)
	case asCTState:
		return parseCTState(text)
	}
	value, maskText, masked := strings.Cut(text, "/")
	if v, err = parseScalar(f, value, text); err != nil {
		return v, mask, err
	}
	if tooLargeVLAN(id, v[1]) {
		return v, mask, wrong(text, "a VLAN number from 0 to 4095 for %s", f.name)
	}
	if !masked {
		return v, mask, nil
	}
	if f.format == asIPv4 || f.format == asIPv6 {
		if n, err := strconv.Atoi(maskText); err == nil {
			if n < 0 || n > int(f.bits) {
				return v, mask, wrong(text, "a prefix length from 0 to %d", f.bits)
			}
			return v, Ones(uint(f.bits)).AndNot(Ones(uint(int(f.bits) - n))), nil
		}
	}
	mask, err = parseScalar(f, maskText, text)
	return v, mask, err
}

// tooLargeVLAN reports whether v is too large for the VLAN field "id". It returns false for other fields.
// Besides VLAN IDs, dl_vlan may be OpenFlow 1.0's number for untagged frames (0xffff), and vlan_vid may have
// the bit OFPVID_PRESENT.
func tooLargeVLAN(id FieldID, v uint64) bool {
	return id == FDLVLAN && v > flowtable.VLANID && v != dlVLANNone || id == FVLANVID && v > flowtable.VLANPresent|flowtable.VLANID
}

// parseScalar parses the text of one value or one mask of the field f. Errors quote "quoted", which is the
// text of the value and the mask.
func parseScalar(f *field, text, quoted string) (Value128, error) {
	switch f.format {
	case asEthernet:
		v, ok := parseEthernet(text)
		if !ok {
			return v, wrong(quoted, "an Ethernet address as xx:xx:xx:xx:xx:xx%s for %s", maskHint(f), f.name)
		}
		return v, nil
	case asIPv4:
		v, ok := parseIPv4(text)
		if !ok {
			return v, wrong(quoted, "an IPv4 address as a.b.c.d%s for %s", maskHint(f), f.name)
		}
		return v, nil
	case asIPv6:
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || !a.Is6() {
			return Value128{}, wrong(quoted, "an IPv6 address%s for %s", maskHint(f), f.name)
		}
		return AddrValue(a), nil
	}
	v, ok := parseNumber(text)
	if !ok && strings.HasPrefix(text, "-") {
		// As in ovs-ofctl, which calls strtoull, a negative number becomes its two's complement of 64 bits. So
		// only fields of at least 64 bits accept it.
		v[1], ok = parseSigned(text)
	}
	if !ok || v.BitLen() > 8*int(f.bytes) {
		return v, wrong(quoted, "a number of at most %d bits%s for %s", 8*f.bytes, maskHint(f), f.name)
	}
	return v, nil
}

func maskHint(f *field) string {
	if f.maskable {
		return ", perhaps with /MASK,"
	}
	return ""
}

// AddrValue returns an IP address as a number: of 32 bits for IPv4, of 128 bits for IPv6.
func AddrValue(a netip.Addr) Value128 {
	if a.Is4() {
		b := a.As4()
		return Value64(uint64(b[0])<<24 | uint64(b[1])<<16 | uint64(b[2])<<8 | uint64(b[3]))
	}
	var v Value128
	for i, b := range a.As16() {
		v[i/8] = v[i/8]<<8 | uint64(b)
	}
	return v
}

// ValueAddr returns the IP address with the number v. It is an IPv4 address if width is 32, otherwise an
// IPv6 address.
func ValueAddr(v Value128, width uint) netip.Addr {
	if width == 32 {
		return netip.AddrFrom4([4]byte{byte(v[1] >> 24), byte(v[1] >> 16), byte(v[1] >> 8), byte(v[1])})
	}
	var b [16]byte
	for i := range b {
		b[i] = byte(v[i/8] >> (56 - i%8*8))
	}
	return netip.AddrFrom16(b)
}

func parseEthernet(text string) (Value128, bool) {
	var v uint64
	for n := range 6 {
		part, rest, more := strings.Cut(text, ":")
		b, err := strconv.ParseUint(part, 16, 8)
		if err != nil || more != (n < 5) {
			return Value128{}, false
		}
		v, text = v<<8|b, rest
	}
	return Value64(v), true
}

// parseIPv4 parses a.b.c.d in decimal, with leading zeros allowed.
func parseIPv4(text string) (Value128, bool) {
	var v uint64
	for n := range 4 {
		part, rest, more := strings.Cut(text, ".")
		b, ok := parseDecimal(part, 0xff)
		if !ok || more != (n < 3) {
			return Value128{}, false
		}
		v, text = v<<8|b, rest
	}
	return Value64(v), true
}

// fragWords are the words for ip_frag in flow text, each with the value and mask of the match.
var fragWords = []struct {
	word     string
	v, mask  uint64
	inFormat bool
}{
	{"no", 0, flowtable.FragAny | flowtable.FragLater, true},
	{"yes", flowtable.FragAny, flowtable.FragAny, true},
	{"first", flowtable.FragAny, flowtable.FragAny | flowtable.FragLater, true},
	{"later", flowtable.FragAny | flowtable.FragLater, flowtable.FragAny | flowtable.FragLater, true},
	{"not_later", 0, flowtable.FragLater, true},
}

func parseFrag(text string) (v, mask Value128, err error) {
	for _, w := range fragWords {
		if w.word == text {
			return Value64(w.v), Value64(w.mask), nil
		}
	}
	return v, mask, wrong(text, "no, yes, first, later or not_later")
}

// tcpFlagNames are the names of the bits of tcp_flags, lowest bit first (RFC 9293 section 3.1). Bit 8 was the
// nonce sum of RFC 3540.
var tcpFlagNames = []string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns", "[200]", "[400]", "[800]"}

// parseTCPFlags parses a match on tcp_flags. The form +syn-ack compares only the named bits, syn|ack compares
// all bits. The text may also be a number, with or without a mask.
func parseTCPFlags(text string) (v, mask Value128, err error) {
	if text == "" || text == "0/0" {
		return v, mask, nil
	}
	bad := wrong(text, "TCP flags as +syn-ack, syn|ack or a number of 12 bits for tcp_flags")
	switch {
	case text[0] == '+' || text[0] == '-':
		return parseSignedFlags(text, bad)
	case text[0] >= '0' && text[0] <= '9':
		value, maskText, masked := strings.Cut(text, "/")
		n, ok := parseUint(value, 0xfff)
		m := uint64(0xfff)
		if masked && ok {
			m, ok = parseUint(maskText, 0xfff)
		}
		if !ok {
			return v, mask, bad
		}
		return Value64(n), Value64(m), nil
	}
	for _, name := range strings.Split(text, "|") {
		bit := tcpFlag(name)
		if bit == 0 {
			return v, mask, bad
		}
		v[1] |= bit
	}
	return v, Value64(0xfff), nil
}

func parseSignedFlags(text string, bad error) (v, mask Value128, err error) {
	for text != "" {
		sign := text[0]
		end := strings.IndexAny(text[1:], "+-") + 1
		if end == 0 {
			end = len(text)
		}
		bit := tcpFlag(text[1:end])
		if bit == 0 || mask[1]&bit != 0 || sign != '+' && sign != '-' {
			return v, mask, bad
		}
		mask[1] |= bit
		if sign == '+' {
			v[1] |= bit
		}
		text = text[end:]
	}
	return v, mask, nil
}

func tcpFlag(name string) uint64 {
	for i, n := range tcpFlagNames {
		if n == name {
			return 1 << i
		}
	}
	return 0
}

// reservedPorts maps lower-case names of reserved ports (ovs-actions(7)) to numbers.
var reservedPorts = map[string]uint32{
	"in_port": PortInPort, "table": PortTable, "normal": PortNORMAL, "flood": PortFlood, "all": PortAll,
	"controller": PortController, "local": PortLocal, "none": PortNone, "any": PortNone,
}

// parsePort parses a port number, a port name (possibly quoted), or the name of a
// reserved port.
func parsePort(text string, names Names) (uint32, error) {
	const of11 = 0xffff0000 // from the 16-bit numbers of reserved ports to OpenFlow 1.1's 32-bit numbers
	if v, ok := parseDecimal(text, 1<<32-1); ok {
		switch {
		case v <= 0xffff:
			return uint32(v), nil
		case v >= of11|uint64(PortMax):
			return uint32(v &^ of11), nil
		}
		return 0, wrong(text, "a port number from 0 to 65535")
	}
	if no, ok := reservedPorts[strings.ToLower(text)]; ok {
		return no, nil
	}
	name := text
	if strings.HasPrefix(text, `"`) {
		var err error
		if name, err = strconv.Unquote(text); err != nil {
			return 0, wrong(text, "a port name in double quotes")
		}
	}
	if names != nil {
		if no, ok := names.PortByName(name); ok {
			return no, nil
		}
	}
	return 0, wrong(text, "the number or name of a port")
}
