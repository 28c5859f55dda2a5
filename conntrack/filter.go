package conntrack

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Filter selects connections by the arguments of flush-conntrack and dump-conntrack
// in ovs-dpctl(8): a zone and partial tuples.
type Filter struct {
	Zone        *uint16
	Orig, Reply TupleFilter
}

// TupleFilter compares the fields that are set.
type TupleFilter struct {
	Src, Dst         netip.Addr
	Proto            *uint8
	SrcPort, DstPort *uint16
	ID               *uint16 // ICMP and ICMPv6
	Type, Code       *uint8  // ICMP and ICMPv6
}

// ParseFilter parses arguments in the order of ovs-dpctl: zone=N, the original tuple,
// the reply tuple. Each may be missing, and a tuple may be empty.
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
	for _, into := range []*TupleFilter{&f.Orig, &f.Reply} {
		if len(args) == 0 {
			break
		}
		if err := into.parse(args[0]); err != nil {
			return f, err
		}
		args = args[1:]
		if f.Zone == nil {
			f.Zone = new(uint16) // ovs-dpctl(8): with a tuple the zone defaults to 0
		}
	}
	if len(args) > 0 {
		return f, fmt.Errorf("%q: expected at most a zone, an original and a reply tuple", args[0])
	}
	return f, nil
}

func (t *TupleFilter) parse(text string) error {
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		name, value, ok := strings.Cut(part, "=")
		if !ok {
			return fmt.Errorf("%q: expected field=value", part)
		}
		var err error
		switch name {
		case "ct_nw_src", "ct_ipv6_src":
			t.Src, err = netip.ParseAddr(value)
		case "ct_nw_dst", "ct_ipv6_dst":
			t.Dst, err = netip.ParseAddr(value)
		case "ct_nw_proto":
			t.Proto, err = parseUint[uint8](value)
		case "ct_tp_src":
			t.SrcPort, err = parseUint[uint16](value)
		case "ct_tp_dst":
			t.DstPort, err = parseUint[uint16](value)
		case "icmp_id":
			t.ID, err = parseUint[uint16](value)
		case "icmp_type":
			t.Type, err = parseUint[uint8](value)
		case "icmp_code":
			t.Code, err = parseUint[uint8](value)
		default:
			return fmt.Errorf("%q: expected ct_nw_src, ct_nw_dst, ct_ipv6_src, ct_ipv6_dst, ct_nw_proto, ct_tp_src, ct_tp_dst, icmp_id, icmp_type or icmp_code", name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
	}
	return nil
}

func parseUint[T uint8 | uint16](text string) (*T, error) {
	bits := 8
	if ^T(0) > 0xff {
		bits = 16
	}
	n, err := strconv.ParseUint(text, 0, bits)
	v := T(n)
	return &v, err
}

// Match reports whether the filter selects e.
func (f *Filter) Match(e *Entry) bool {
	return (f.Zone == nil || *f.Zone == e.Orig.Zone) && f.Orig.match(&e.Orig) && f.Reply.match(&e.Reply)
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

func agrees[T comparable](want *T, is T) bool { return want == nil || *want == is }
