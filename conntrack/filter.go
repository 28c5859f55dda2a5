// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// maxNumberText is the length of the longest number in a filter: 128 binary digits with the prefix "0b".
const maxNumberText = 130

// Filter selects connections by the arguments of flush-conntrack and dump-conntrack in
// ovs-dpctl(8): a zone, a mark and a label with masks, and partial tuples. If the only
// argument is a complete original tuple, the filter selects one connection, in either
// direction.
type Filter struct {
	Zone             *uint16
	Mark, MarkMask   uint32
	Label, LabelMask [2]uint64 // the upper half first
	Orig, Reply      TupleFilter
}

// TupleFilter selects the tuples that have the value of each of its fields. A nil pointer or invalid
// address matches every value.
type TupleFilter struct {
	Src, Dst         netip.Addr
	Proto            *uint8
	SrcPort, DstPort *uint16
	ID               *uint16 // ICMP and ICMPv6
	Type, Code       *uint8  // ICMP and ICMPv6
}

// ParseFilter parses the filter arguments of ovs-dpctl: zone=N, mark=N[/MASK],
// labels=N[/MASK], the original tuple, the reply tuple. Each is optional, but the order is fixed.
func ParseFilter(args []string) (Filter, error) {
	var f Filter
	if len(args) > 0 && strings.HasPrefix(args[0], "zone=") {
		n, err := strconv.ParseUint(strings.TrimPrefix(args[0], "zone="), 0, 16)
		if err != nil {
			return f, fmt.Errorf("%q: expected zone=0 to zone=65535", args[0])
		}
		zone := uint16(n)
		f.Zone, args = &zone, args[1:]
	}
	if len(args) > 0 && strings.HasPrefix(args[0], "mark=") {
		value, mask, ok := parseMasked(args[0][len("mark="):], 32)
		if !ok {
			return f, fmt.Errorf("%q: expected mark=N or mark=N/MASK, of 32 bits", args[0])
		}
		f.Mark, f.MarkMask, args = uint32(value[1]), uint32(mask[1]), args[1:]
	}
	if len(args) > 0 && strings.HasPrefix(args[0], "labels=") {
		var ok bool
		if f.Label, f.LabelMask, ok = parseMasked(args[0][len("labels="):], 128); !ok {
			return f, fmt.Errorf("%q: expected labels=N or labels=N/MASK, of 128 bits", args[0])
		}
		args = args[1:]
	}
	for _, into := range []*TupleFilter{&f.Orig, &f.Reply} {
		if len(args) == 0 {
			break
		}
		if err := into.parse(args[0]); err != nil {
			return f, err
		}
		args = args[1:]
	}
	if len(args) > 0 {
		return f, fmt.Errorf("%q: expected at most a zone, a mark, labels, an original and a reply tuple, in this order", args[0])
	}
	if f.Zone == nil && f.isTuple() {
		f.Zone = new(uint16) // ovs-dpctl(8): a complete tuple without a zone means zone 0
	}
	return f, nil
}

// parseMasked parses N or N/MASK, numbers of at most width bits. Without MASK, the mask has all bits.
func parseMasked(text string, width int) (value, mask [2]uint64, ok bool) {
	number, of, masked := strings.Cut(text, "/")
	if value, ok = parseWide(number, width); !ok {
		return value, mask, false
	}
	mask = [2]uint64{^uint64(0), ^uint64(0)}
	if masked {
		mask, ok = parseWide(of, width)
	}
	return value, mask, ok
}

// parseWide parses a number of at most width bits. halves[0] is its upper half, halves[1] the lower 64 bits.
func parseWide(text string, width int) (halves [2]uint64, ok bool) {
	if len(text) > maxNumberText {
		return halves, false
	}
	n, ok := new(big.Int).SetString(text, 0)
	if !ok || n.Sign() < 0 || n.BitLen() > width {
		return halves, false
	}
	halves[1] = new(big.Int).And(n, new(big.Int).SetUint64(^uint64(0))).Uint64()
	halves[0] = new(big.Int).Rsh(n, 64).Uint64()
	return halves, true
}

func (t *TupleFilter) parse(text string) error {
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		name, value, ok := strings.Cut(part, "=")
		if !ok {
			return fmt.Errorf("%q: expected field=value", part)
		}
		expected := ""
		switch name {
		case "ct_nw_src", "ct_ipv6_src":
			t.Src, expected = parseAddr(name, value)
		case "ct_nw_dst", "ct_ipv6_dst":
			t.Dst, expected = parseAddr(name, value)
		case "ct_nw_proto":
			t.Proto, expected = parseUint[uint8](value)
		case "ct_tp_src":
			t.SrcPort, expected = parseUint[uint16](value)
		case "ct_tp_dst":
			t.DstPort, expected = parseUint[uint16](value)
		case "icmp_id":
			t.ID, expected = parseUint[uint16](value)
		case "icmp_type":
			t.Type, expected = parseUint[uint8](value)
		case "icmp_code":
			t.Code, expected = parseUint[uint8](value)
		default:
			last := len(tupleFields) - 1
			return fmt.Errorf("%q: expected %s or %s", name, strings.Join(tupleFields[:last], ", "), tupleFields[last])
		}
		if expected != "" {
			return fmt.Errorf("%q: expected %s for %s", part, expected, name)
		}
	}
	return nil
}

// parseAddr parses the address of a field. If text is not valid, expected describes a valid
// address; otherwise it is "".
func parseAddr(field, text string) (a netip.Addr, expected string) {
	a, err := netip.ParseAddr(text)
	switch v6 := strings.HasPrefix(field, "ct_ipv6"); {
	case v6 && (err != nil || !a.Is6() || a.Zone() != ""):
		return netip.Addr{}, "an IPv6 address"
	case !v6 && (err != nil || !a.Is4()):
		return netip.Addr{}, "an IPv4 address"
	}
	return a, ""
}

func parseUint[T uint8 | uint16](text string) (v *T, expected string) {
	bits := 8
	if ^T(0) > 0xff {
		bits = 16
	}
	n, err := strconv.ParseUint(text, 0, bits)
	if err != nil {
		return nil, fmt.Sprintf("a number from 0 to %d", ^T(0))
	}
	number := T(n)
	return &number, ""
}

// Match reports whether the filter selects connection e. A filter that is only a complete tuple
// selects the connection that has this tuple in either direction.
func (f *Filter) Match(e *Entry) bool {
	if f.Zone != nil && *f.Zone != e.Orig.Zone || (f.Mark^e.Mark)&f.MarkMask != 0 ||
		(f.Label[0]^e.Label[0])&f.LabelMask[0] != 0 || (f.Label[1]^e.Label[1])&f.LabelMask[1] != 0 {
		return false
	}
	return f.Orig.match(&e.Orig) && f.Reply.match(&e.Reply) || f.isTuple() && f.Orig.match(&e.Reply)
}

// isTuple reports whether the filter is a complete original tuple, with or without a zone, and nothing else.
func (f *Filter) isTuple() bool {
	t := &f.Orig
	return t.Src.IsValid() && t.Dst.IsValid() && t.Proto != nil && (!hasPorts(*t.Proto) ||
		t.SrcPort != nil && t.DstPort != nil || t.ID != nil && t.Type != nil && t.Code != nil) &&
		f.Reply == TupleFilter{} && f.MarkMask == 0 && f.LabelMask == [2]uint64{}
}

// Empty reports whether the filter selects every connection.
func (f *Filter) Empty() bool { return *f == Filter{} }

func (t *TupleFilter) match(u *Tuple) bool {
	src, dst := u.Addrs()
	if t.Src.IsValid() && t.Src != src || t.Dst.IsValid() && t.Dst != dst || !agrees(t.Proto, u.Proto) {
		return false
	}
	if isICMP(u.Proto) {
		return agrees(t.ID, u.SrcPort) && agrees(t.Type, uint8(u.DstPort>>8)) && agrees(t.Code, uint8(u.DstPort)) &&
			t.SrcPort == nil && t.DstPort == nil
	}
	return agrees(t.SrcPort, u.SrcPort) && agrees(t.DstPort, u.DstPort) && t.ID == nil && t.Type == nil && t.Code == nil
}

func agrees[T comparable](want *T, value T) bool { return want == nil || *want == value }

// tupleFields are the names of a tuple's fields in ovs-dpctl(8).
var tupleFields = []string{"ct_nw_src", "ct_nw_dst", "ct_ipv6_src", "ct_ipv6_dst", "ct_nw_proto", "ct_tp_src", "ct_tp_dst", "icmp_id", "icmp_type", "icmp_code"}

// IsTupleField reports whether a tuple of a filter can have a field of this name.
func IsTupleField(name string) bool { return slices.Contains(tupleFields, name) }
