// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"weft/packet"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
)

const (
	// optClasslessMicrosoft is the number under which old clients of Microsoft ask for
	// classless routes.
	optClasslessMicrosoft = 249
	// leastMessage is the length in bytes of the IP datagram that every client takes (RFC 2131
	// section 2).
	leastMessage = 576
	infinite     = time.Duration(1<<32-1) * time.Second
)

// dhcpv4 answers a DHCP message of the port's guest. It ignores messages of other clients and
// messages for other servers.
func (p *Port) dhcpv4(d *datagram) ([]byte, Result) {
	n := p.Network
	m, err := dhcpv4.FromBytes(d.payload)
	switch {
	case err != nil, m.OpCode != dhcpv4.OpcodeBootRequest, !n.Service.IsValid(),
		!m.GatewayIPAddr.IsUnspecified(), // set by a relay agent, which asks for other clients
		m.HWType != iana.HWTypeEthernet, !slices.Equal(m.ClientHWAddr, p.MAC[:]):
		return nil, Ignored
	}
	if server, given := addressIn(m, dhcpv4.OptionServerIdentifier); given && server != n.Service {
		return nil, Ignored // the message is for another server
	}
	switch m.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		wanted, _ := addressIn(m, dhcpv4.OptionRequestedIPAddress)
		return p.offer(m, wanted)
	case dhcpv4.MessageTypeRequest:
		return p.acknowledge(m)
	case dhcpv4.MessageTypeInform:
		return p.inform(m)
	case dhcpv4.MessageTypeRelease, dhcpv4.MessageTypeDecline:
		return nil, Taken
	}
	return nil, Ignored
}

// addressIn returns the IPv4 address in an option. The second result is true if the message has the
// option, even one of a wrong length.
func addressIn(m *dhcpv4.DHCPv4, option dhcpv4.OptionCode) (netip.Addr, bool) {
	b := m.Options.Get(option)
	if len(b) != net.IPv4len {
		return netip.Addr{}, b != nil
	}
	return netip.AddrFromSlice(b)
}

// owns reports whether the port has an IPv4 address that is in a subnet of its network.
func (p *Port) owns(addr netip.Addr) bool {
	_, ok := p.Network.subnet(addr)
	return ok && addr.Is4() && slices.Contains(p.Addresses, addr)
}

// offer offers the wanted address if the port has it, otherwise the port's first one.
func (p *Port) offer(m *dhcpv4.DHCPv4, wanted netip.Addr) ([]byte, Result) {
	if !p.owns(wanted) {
		i := slices.IndexFunc(p.Addresses, p.owns)
		if i < 0 {
			return nil, Ignored
		}
		wanted = p.Addresses[i]
	}
	return p.reply(m, dhcpv4.MessageTypeOffer, wanted), Answered
}

// acknowledge answers a DHCPREQUEST (RFC 2131 section 4.3.2). A client that has selected an offer or
// has restarted names the address in an option, one that renews its lease in ciaddr.
func (p *Port) acknowledge(m *dhcpv4.DHCPv4) ([]byte, Result) {
	wanted, given := addressIn(m, dhcpv4.OptionRequestedIPAddress)
	if current := clientAddress(m); !given || current.IsValid() {
		wanted = current
	}
	if !p.owns(wanted) {
		return p.refuse(m), Refused
	}
	return p.reply(m, dhcpv4.MessageTypeAck, wanted), Answered
}

// inform answers a DHCPINFORM of a client that has its address already. If the port's sender
// addresses are not checked, this address may be undeclared.
func (p *Port) inform(m *dhcpv4.DHCPv4) ([]byte, Result) {
	if !clientAddress(m).IsValid() {
		return nil, Ignored
	}
	return p.reply(m, dhcpv4.MessageTypeAck, netip.Addr{}), Answered
}

// clientAddress returns ciaddr, the client's address. It returns an invalid address if ciaddr is
// 0.0.0.0, multicast or broadcast.
func clientAddress(m *dhcpv4.DHCPv4) netip.Addr {
	addr, ok := netip.AddrFromSlice(m.ClientIPAddr.To4())
	if !ok || addr.IsUnspecified() || addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return netip.Addr{}
	}
	return addr
}

// message returns an answer with the options that every answer has.
func (p *Port) message(m *dhcpv4.DHCPv4, kind dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	r := &dhcpv4.DHCPv4{ClientIPAddr: net.IPv4zero, YourIPAddr: net.IPv4zero, ServerIPAddr: net.IPv4zero, GatewayIPAddr: net.IPv4zero, Options: dhcpv4.Options{}}
	dhcpv4.WithReply(m)(r)
	r.UpdateOption(dhcpv4.OptMessageType(kind))
	r.UpdateOption(dhcpv4.OptServerIdentifier(ip(p.Network.Service)))
	dhcpv4.WithOptionCopied(m, dhcpv4.OptionClientIdentifier)(r) // RFC 6842
	return r
}

// refuse returns a DHCPNAK, which is a broadcast (RFC 2131 section 4.3.2).
func (p *Port) refuse(m *dhcpv4.DHCPv4) []byte {
	r := p.message(m, dhcpv4.MessageTypeNak)
	r.UpdateOption(dhcpv4.OptMessage("the address is not declared for this port"))
	return p.Network.frame(broadcastMAC, broadcast, r.ToBytes())
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// reply returns a DHCPOFFER or DHCPACK that gives the client the address yiaddr. If yiaddr is invalid, the
// message has only settings.
func (p *Port) reply(m *dhcpv4.DHCPv4, kind dhcpv4.MessageType, yiaddr netip.Addr) []byte {
	n, r := p.Network, p.message(m, kind)
	dst := clientAddress(m)
	r.ClientIPAddr = m.ClientIPAddr
	if kind == dhcpv4.MessageTypeOffer {
		r.ClientIPAddr = net.IPv4zero
	}
	if yiaddr.IsValid() {
		r.YourIPAddr = ip(yiaddr)
		for _, o := range leaseTimes(n.Lease) {
			r.UpdateOption(o)
		}
		if !dst.IsValid() {
			dst = yiaddr
		}
	}
	p.settings(m, r, yiaddr)
	ethDst := p.MAC
	if m.IsBroadcast() && !clientAddress(m).IsValid() {
		ethDst, dst = broadcastMAC, broadcast
	}
	return n.frame(ethDst, dst, r.ToBytes())
}

// leaseTimes returns the options of the lease and its times T1 and T2, at which the client renews
// it (RFC 2131 section 4.4.5).
func leaseTimes(lease time.Duration) []dhcpv4.Option {
	list := []dhcpv4.Option{dhcpv4.OptIPAddressLeaseTime(lease)}
	if lease == infinite {
		return list
	}
	return append(list, dhcpv4.OptRenewTimeValue(lease/2), dhcpv4.OptRebindingTimeValue(lease*7/8))
}

// settings adds the settings of the network for which the client asks. A client without a list of options
// gets all of them. If they exceed the length of message that the client accepts, the least important
// settings are left out.
func (p *Port) settings(m, r *dhcpv4.DHCPv4, yiaddr netip.Addr) {
	n := p.Network
	put := func(o dhcpv4.Option) {
		if list := m.Options.Get(dhcpv4.OptionParameterRequestList); list == nil || slices.Contains(list, o.Code.Code()) {
			r.UpdateOption(o)
		}
	}
	mask := yiaddr
	if !mask.IsValid() {
		mask = clientAddress(m)
	}
	if subnet, ok := n.subnet(mask); ok {
		put(dhcpv4.OptSubnetMask(net.CIDRMask(subnet.Bits(), 32)))
	}
	if routers := ipv4(n.Routers); len(routers) > 0 {
		put(dhcpv4.OptRouter(routers...))
	}
	if routes := n.routes(); len(routes) > 0 {
		classless := dhcpv4.OptClasslessStaticRoute(routes...)
		put(classless)
		put(dhcpv4.Option{Code: dhcpv4.GenericOptionCode(optClasslessMicrosoft), Value: classless.Value})
	}
	if servers := ipv4(n.DNS); len(servers) > 0 {
		put(dhcpv4.OptDNS(servers...))
	}
	if n.Domain != "" {
		put(dhcpv4.OptDomainName(n.Domain))
	}
	if p.Host != "" {
		put(dhcpv4.OptHostName(p.Host))
	}
	if n.MTU != 0 {
		put(dhcpv4.Option{Code: dhcpv4.OptionInterfaceMTU, Value: dhcpv4.Uint16(n.MTU)})
	}
	most := leastMessage
	if size, err := m.MaxMessageSize(); err == nil {
		most = min(max(int(size), leastMessage), MaxRequest-packet.EthernetLen)
	}
	for _, code := range []uint8{optClasslessMicrosoft, dhcpv4.OptionHostName.Code(), dhcpv4.OptionDomainName.Code(), dhcpv4.OptionClasslessStaticRoute.Code()} {
		if packet.IPv4Len+packet.UDPLen+len(r.ToBytes()) <= most {
			return
		}
		r.DeleteOption(dhcpv4.GenericOptionCode(code))
	}
}

// routes returns the classless routes. A client that gets them ignores the option of routers (RFC
// 3442), so they have the default router, too.
func (n *Network) routes() (list []*dhcpv4.Route) {
	for _, r := range n.Routes {
		list = append(list, &dhcpv4.Route{Dest: &net.IPNet{IP: ip(r.To.Addr()), Mask: net.CIDRMask(r.To.Bits(), 32)}, Router: ip(r.Via)})
	}
	if routers := ipv4(n.Routers); len(list) > 0 && len(routers) > 0 {
		list = append(list, &dhcpv4.Route{Dest: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, Router: routers[0]})
	}
	return list
}

func ip(a netip.Addr) net.IP { return a.AsSlice() }

func ipv4(list []netip.Addr) (addresses []net.IP) {
	for _, a := range list {
		if a.Is4() {
			addresses = append(addresses, ip(a))
		}
	}
	return addresses
}
