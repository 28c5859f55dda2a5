// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"weft/openflow"
	"weft/openflow/fdb"
	"weft/packet"
)

// Binding restricts the sender addresses of a port. It is immutable.
type Binding struct {
	Hosts []BoundHost // not empty; each MAC occurs once
}

// BoundHost is a MAC address with the IP addresses that its frames may carry.
type BoundHost struct {
	MAC uint64 // 48 bits, unicast
	// Prefixes are the allowed IP addresses, with host bits of 0; empty: any address is allowed.
	Prefixes []netip.Prefix
	// linkLocal is the IPv6 link-local address derived from the MAC (RFC 4291
	// appendix A).
	linkLocal netip.Prefix
}

const (
	// maxBoundMACs and maxBoundPrefixes limit the lists of a port's binding, because
	// each cache miss of the port is compared with the whole binding. ParseBinding
	// refuses longer lists.
	maxBoundMACs     = 64
	maxBoundPrefixes = 256
)

// ParseBinding makes a binding from a port's options. macs is MAC[,MAC...], addresses is "MAC
// [IP|PREFIX]..."[,...]. If both are empty, the binding is nil and the port may send with any
// address. For invalid options, the result "wrong" is the invalid word, and "expected" describes the
// valid ones.
func ParseBinding(macs, addresses string) (b *Binding, wrong, expected string) {
	b = &Binding{}
	if macs != "" {
		for word := range strings.SplitSeq(macs, ",") {
			if expected = b.addHost([]string{word}); expected != "" {
				return nil, word, expected
			}
		}
	}
	if addresses != "" {
		for entry := range strings.SplitSeq(addresses, ",") {
			words := strings.Fields(entry)
			if expected = b.addHost(words); expected != "" {
				return nil, strings.TrimSpace(entry), expected
			}
		}
	}
	if len(b.Hosts) == 0 {
		return nil, "", ""
	}
	return b, "", ""
}

// BindTo returns a binding that allows only the MAC address and the IP addresses of one host. If ips
// is empty, the host may use any IP address.
func BindTo(mac uint64, ips []netip.Addr) *Binding {
	h := BoundHost{MAC: mac, linkLocal: linkLocalOf(mac)}
	for _, ip := range ips {
		h.Prefixes = append(h.Prefixes, netip.PrefixFrom(ip, ip.BitLen()))
	}
	return &Binding{Hosts: []BoundHost{h}}
}

// Declares returns the MAC addresses that the Bindings of ports allow, each with its port and its IP
// addresses. The result is for fdb's table of declared addresses. Declares leaves out prefixes that have
// several addresses.
func Declares(ports []PortInfo) (list []fdb.Declared) {
	for i := range ports {
		p := &ports[i]
		if p.Binding == nil {
			continue
		}
		s := fdb.TrunkOf(p.Bridge)
		if p.InVNI {
			s |= fdb.SegmentOf(p.VNI)
		}
		for _, h := range p.Binding.Hosts {
			d := fdb.Declared{Segment: s, Port: p.At(), MAC: h.MAC}
			for _, prefix := range h.Prefixes {
				if prefix.IsSingleIP() {
					d.IPs = append(d.IPs, prefix.Addr())
				}
			}
			list = append(list, d)
		}
	}
	return list
}

// NamesMAC reports whether a port's option "addresses", whose syntax ParseBinding describes, contains
// this MAC address.
func NamesMAC(addresses, mac string) bool {
	b, _, _ := ParseBinding("", addresses)
	hw, err := net.ParseMAC(mac)
	return b != nil && err == nil && b.host(etherValue(hw)) != nil
}

// addHost parses a MAC address and the prefixes after it, and adds them to the binding. For invalid
// words it returns a description of the valid ones.
func (b *Binding) addHost(words []string) (expected string) {
	const form = "a unicast MAC address, then IP addresses or prefixes, as in 02:00:00:00:00:01 10.0.0.1 fd00::/64"
	if len(words) == 0 {
		return form
	}
	hw, err := net.ParseMAC(words[0])
	if err != nil || len(hw) != 6 || hw[0]&1 != 0 || slices.Equal(hw, make([]byte, 6)) {
		return form
	}
	h := BoundHost{MAC: etherValue(hw)}
	h.linkLocal = linkLocalOf(h.MAC)
	if b.host(h.MAC) != nil {
		return "each MAC address once"
	}
	for _, word := range words[1:] {
		p, ok := boundPrefix(word)
		if !ok {
			return form
		}
		h.Prefixes = append(h.Prefixes, p)
	}
	b.Hosts = append(b.Hosts, h)
	n := 0
	for i := range b.Hosts {
		n += len(b.Hosts[i].Prefixes)
	}
	if len(b.Hosts) > maxBoundMACs || n > maxBoundPrefixes {
		return "fewer: at most 64 MAC addresses and 256 IP addresses and prefixes"
	}
	return ""
}

var _ = [1]struct{}{}[maxBoundMACs-64+maxBoundPrefixes-256] // does not compile if the limits differ from the error text above

func etherValue(hw net.HardwareAddr) (v uint64) {
	for _, b := range hw {
		v = v<<8 | uint64(b)
	}
	return v
}

// boundPrefix parses an address or a prefix. As in ovn-nb(5), a prefix with host
// bits, such as 10.0.0.5/24, means the single address.
func boundPrefix(word string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(word); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), a.Zone() == "" && !a.Is4In6() && !a.IsUnspecified() && !a.IsMulticast()
	}
	p, err := netip.ParsePrefix(word)
	if err != nil || p.Addr().Is4In6() || p.Addr().IsMulticast() {
		return p, false
	}
	if p != p.Masked() {
		p = netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
	}
	return p, true
}

// linkLocalOf returns the IPv6 link-local address (fe80::/64) whose interface
// identifier is derived from the MAC address as a modified EUI-64.
func linkLocalOf(mac uint64) netip.Prefix {
	id := mac>>24<<40 | 0xfffe<<24 | mac&0xffffff
	return netip.PrefixFrom(openflow.ValueAddr(openflow.Value128{0xfe80 << 48, id ^ 1<<57}, 128), 128)
}

func (b *Binding) host(mac uint64) *BoundHost {
	for i := range b.Hosts {
		if b.Hosts[i].MAC == mac {
			return &b.Hosts[i]
		}
	}
	return nil
}

// The rest of this file checks the sender addresses of a frame against the binding of its port.

// UDP ports of a DHCP client and server (RFC 2131 section 4.1).
const (
	dhcpServer = 67
	dhcpClient = 68
)

// ICMPv6 types that hosts without an address send from :: (RFC 3590, RFC 4862).
const (
	mldReport   = 131
	mldDone     = 132
	mldReportV2 = 143
)

// ipv4Any has 0.0.0.0, the source address of hosts that do not have an address yet.
var ipv4Any = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 32)}

// admit reports whether the port on which the frame arrived accepts it. It does if it is not Off, and if
// its Binding allows the sender's addresses. If so, admit also emits the actions for the rate limits in
// the port's Policing. It checks only the first flow look-up of a frame, because NAT may change the
// addresses before the second. If any port of the switch needs these checks (Env.Bound), every megaflow
// matches a single input port.
func (x *xlate) admit() bool {
	if x.flow.Key().Recirc() != 0 || !x.env.Bound() {
		return true
	}
	port, ok := x.env.Port(x.inPort())
	if ok && port.Off {
		x.noteDrop(packet.DropPortOff)
		x.note("the input port is down")
		return false
	}
	if ok && x.receivesCopies(&port) {
		return false
	}
	if ok && x.isLACP(&port) {
		x.noteDrop(packet.DropReserved)
		x.note("control takes the frames of LACP, no flow sees them")
		return false
	}
	what := ""
	if ok && port.Binding != nil {
		c := bindingCheck{x: x, b: port.Binding}
		what = c.spoofed()
	}
	if what == "" {
		x.police(&port)
		return true
	}
	x.noteDrop(packet.DropSpoofed)
	x.note("spoofed: " + what + ", which " + port.Name + " may not send")
	return false
}

// bindingCheck compares one frame with a binding.
type bindingCheck struct {
	x *xlate
	b *Binding
}

// spoofed returns the first field whose value the binding forbids, as text for people (name=value).
// It returns "" if the binding allows the frame.
func (c *bindingCheck) spoofed() string {
	host := c.mac(openflow.FEthSrc)
	if host == nil {
		return c.show(openflow.FEthSrc)
	}
	switch ethType := c.x.read(openflow.WholeField(openflow.FEthType))[1]; {
	case ethType == packet.EtherTypeARP || ethType == packet.EtherTypeRARP:
		return c.arp(ethType == packet.EtherTypeRARP)
	case ethType == packet.EtherTypeIPv4:
		if !c.mayUse(host, openflow.FIPSrc) && !c.asksDHCP() {
			return c.show(openflow.FIPSrc)
		}
	case ethType == packet.EtherTypeIPv6:
		return c.ipv6(host)
	case packet.IsVLAN(uint16(ethType)) && len(host.Prefixes) > 0:
		return "a third VLAN tag, which hides the addresses"
	}
	return ""
}

// arp checks the sender's MAC and IP address in ARP and reverse ARP. An ARP probe has
// sender IP address 0 (RFC 5227 section 2.1) and may ask only for an allowed address.
// If the parser does not understand the ARP frame, the sender MAC is 0, which no
// binding allows.
func (c *bindingCheck) arp(reverse bool) string {
	host := c.mac(openflow.FARPSha)
	if host == nil {
		return c.show(openflow.FARPSha)
	}
	switch {
	case c.mayUse(host, openflow.FARPSpa):
		return ""
	case !c.x.among(openflow.FARPSpa, ipv4Any):
		return c.show(openflow.FARPSpa)
	case !reverse && !c.mayUse(host, openflow.FARPTpa):
		return "a probe for " + c.show(openflow.FARPTpa)
	}
	return ""
}

// asksDHCP reports whether the frame is from a DHCP client without an address.
func (c *bindingCheck) asksDHCP() bool {
	x := c.x
	return x.among(openflow.FIPSrc, ipv4Any) && x.hasField(openflow.FUDPSrc) &&
		x.read(openflow.WholeField(openflow.FUDPSrc))[1] == dhcpClient && x.read(openflow.WholeField(openflow.FUDPDst))[1] == dhcpServer
}

func (c *bindingCheck) ipv6(host *BoundHost) string {
	x := c.x
	unspecified := false
	if !c.mayUse(host, openflow.FIPv6Src) {
		if !x.read(openflow.WholeField(openflow.FIPv6Src)).IsZero() {
			return c.show(openflow.FIPv6Src)
		}
		unspecified = true
	}
	if !x.hasField(openflow.FICMPv6Type) {
		if unspecified {
			return c.show(openflow.FIPv6Src)
		}
		return ""
	}
	switch x.read(openflow.WholeField(openflow.FICMPv6Type))[1] {
	case packet.NDSolicitation, packet.NDAdvertisement:
		return c.neighbour()
	case mldReport, mldDone, mldReportV2:
		return ""
	}
	if unspecified {
		return c.show(openflow.FIPv6Src)
	}
	return ""
}

// neighbour checks the sender's addresses in neighbour discovery. It refuses fragments,
// as hosts do (RFC 6980), because the options of a fragment are not visible. It refuses
// target address 0, which the parser sets for invalid options.
func (c *bindingCheck) neighbour() string {
	x := c.x
	if x.read(openflow.WholeField(openflow.FIPFrag))[1] != 0 {
		return "neighbour discovery in fragments"
	}
	if x.read(openflow.WholeField(openflow.FNDTarget)).IsZero() {
		return "neighbour discovery without a target"
	}
	link, own := openflow.FNDSll, x.read(openflow.WholeField(openflow.FIPv6Src)).IsZero() // in duplicate address detection, the source address is ::
	if x.read(openflow.WholeField(openflow.FICMPv6Type))[1] == packet.NDAdvertisement {
		link, own = openflow.FNDTll, true
	}
	host := c.hostOf(link)
	if host == nil {
		return c.show(link)
	}
	if own && !c.mayUse(host, openflow.FNDTarget) {
		return c.show(openflow.FNDTarget)
	}
	return ""
}

// hostOf returns the binding's host with the MAC address of a link-layer address
// option. Without the option, it uses the frame's source MAC address. It returns nil if
// the binding has no such host.
func (c *bindingCheck) hostOf(link openflow.FieldID) *BoundHost {
	if c.x.read(openflow.WholeField(link)).IsZero() {
		return c.mac(openflow.FEthSrc)
	}
	return c.mac(link)
}

// mac returns the binding's host with the MAC address in a field, or nil.
func (c *bindingCheck) mac(id openflow.FieldID) *BoundHost {
	const width = 48
	v, most := openflow.WholeField(id).Get(&c.x.flow)[1], 0
	for i := range c.b.Hosts {
		h := &c.b.Hosts[i]
		if h.MAC == v {
			c.x.readPrefix(id, width, width)
			return h
		}
		most = max(most, commonBits(openflow.Value128{h.MAC << 16}, openflow.Value128{v << 16}))
	}
	c.x.readPrefix(id, width, distinguishingBits(most, width))
	return nil
}

// mayUse reports whether the host may use the IP address in a field of the frame.
func (c *bindingCheck) mayUse(host *BoundHost, id openflow.FieldID) bool {
	if len(host.Prefixes) == 0 {
		return true
	}
	if id.Bits() == 128 && c.x.among(id, []netip.Prefix{host.linkLocal}) {
		return true
	}
	return c.x.among(id, host.Prefixes)
}

// The method among reports whether the address in the field is in one of the prefixes. The megaflow
// matches only the leading bits that decide this.
func (x *xlate) among(id openflow.FieldID, prefixes []netip.Prefix) bool {
	width := int(id.Bits())
	v := openflow.WholeField(id).Get(&x.flow)
	addr := openflow.ValueAddr(v, uint(width))
	most, match := 0, width+1
	for _, p := range prefixes {
		switch {
		case p.Addr().BitLen() != width:
		case p.Contains(addr):
			match = min(match, p.Bits())
		default:
			most = max(most, commonBits(leftAligned(openflow.AddrValue(p.Addr()), width), leftAligned(v, width)))
		}
	}
	if match <= width {
		x.readPrefix(id, width, match)
		return true
	}
	x.readPrefix(id, width, distinguishingBits(most, width))
	return false
}

func leftAligned(v openflow.Value128, width int) openflow.Value128 { return v.Shl(uint(128 - width)) }

// commonBits returns the number of equal leading bits of a and b.
func commonBits(a, b openflow.Value128) int {
	d := openflow.Value128{a[0] ^ b[0], a[1] ^ b[1]}
	return 128 - d.BitLen()
}

// distinguishingBits returns the number of leading bits of an address that a megaflow
// must match so that it matches no allowed address. common is the length of the longest prefix
// that the frame's address shares with an allowed address. The result is rounded up to
// whole bytes, which keeps the number of masks small.
func distinguishingBits(common, width int) int { return min(common/8*8+8, width) }

// readPrefix adds the first n bits of a field to the megaflow's mask.
func (x *xlate) readPrefix(id openflow.FieldID, width, n int) {
	if n > 0 {
		x.read(openflow.Subfield{Field: id, Offset: uint16(width - n), Bits: uint16(n)})
	}
}

// show returns a field of the frame as match text: name=value.
func (c *bindingCheck) show(id openflow.FieldID) string {
	v := openflow.WholeField(id).Get(&c.x.flow)
	if id.Bits() == 48 {
		return id.Alias() + "=" + openflow.FormatEthernet(v[1])
	}
	return id.Alias() + "=" + openflow.ValueAddr(v, id.Bits()).String()
}
