// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/insomniacslk/dhcp/rfc1035label"
)

// maxIAAddresses is the largest number of addresses in an answer of DHCPv6, so that it fits into one
// frame.
const maxIAAddresses = 16

// dhcpv6 answers a DHCPv6 message (RFC 8415 section 18.3) from the link-local address "client". The
// port identifies the client, so the client's DUID and IAIDs do not matter.
func (p *Port) dhcpv6(client netip.Addr, payload []byte) ([]byte, Result) {
	m, err := dhcpv6.MessageFromBytes(payload)
	if err != nil || !p.Network.DHCPv6 || !p.mayAsk(m) {
		return nil, Ignored
	}
	r := &dhcpv6.Message{MessageType: dhcpv6.MessageTypeReply, TransactionID: m.TransactionID}
	if id := m.GetOneOption(dhcpv6.OptionClientID); id != nil {
		r.AddOption(id)
	}
	r.AddOption(dhcpv6.OptServerID(p.Network.serverID()))
	result := Answered
	switch m.MessageType {
	case dhcpv6.MessageTypeSolicit:
		if m.GetOneOption(dhcpv6.OptionRapidCommit) != nil {
			r.AddOption(m.GetOneOption(dhcpv6.OptionRapidCommit))
		} else {
			r.MessageType = dhcpv6.MessageTypeAdvertise
		}
		p.assign(m, r)
	case dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind:
		p.assign(m, r)
	case dhcpv6.MessageTypeConfirm:
		list := namedAddresses(m)
		if len(list) == 0 {
			return nil, Ignored // section 18.3.3
		}
		if slices.ContainsFunc(list, func(a netip.Addr) bool { return !p.owns6(a) }) {
			r.AddOption(status(iana.StatusNotOnLink))
			result = Refused
		} else {
			r.AddOption(status(iana.StatusSuccess))
		}
	case dhcpv6.MessageTypeRelease, dhcpv6.MessageTypeDecline:
		r.AddOption(status(iana.StatusSuccess))
		result = Taken
	case dhcpv6.MessageTypeInformationRequest:
	default:
		return nil, Ignored
	}
	p.Network.settings6(m, r)
	return p.Network.datagram6(p.MAC, client, r.ToBytes()), result
}

// mayAsk reports whether the message has the options of RFC 8415 section 16: the identifier of its client,
// and that of this server if, and only if, the client has chosen a server.
func (p *Port) mayAsk(m *dhcpv6.Message) bool {
	server := m.GetOneOption(dhcpv6.OptionServerID)
	own := server != nil && slices.Equal(server.ToBytes(), p.Network.serverID().ToBytes())
	switch m.MessageType {
	case dhcpv6.MessageTypeSolicit, dhcpv6.MessageTypeConfirm, dhcpv6.MessageTypeRebind:
		return server == nil && m.GetOneOption(dhcpv6.OptionClientID) != nil
	case dhcpv6.MessageTypeInformationRequest:
		return (server == nil || own) && m.GetOneOption(dhcpv6.OptionIANA) == nil
	}
	return own && m.GetOneOption(dhcpv6.OptionClientID) != nil
}

// serverID is the same on all hosts, so that a guest that moves finds its server again.
func (n *Network) serverID() dhcpv6.DUID {
	return &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: n.ServiceMAC[:]}
}

func status(code iana.StatusCode) dhcpv6.Option {
	return &dhcpv6.OptStatusCode{StatusCode: code, StatusMessage: code.String()}
}

// namedAddresses returns the addresses that the message names.
func namedAddresses(m *dhcpv6.Message) (list []netip.Addr) {
	for _, ia := range m.Options.IANA() {
		for _, a := range ia.Options.Addresses() {
			addr, _ := netip.AddrFromSlice(a.IPv6Addr)
			list = append(list, addr)
		}
	}
	return list
}

// owns6 reports whether the port has an IPv6 address that is in a subnet of its network.
func (p *Port) owns6(addr netip.Addr) bool {
	_, ok := p.Network.subnet(addr)
	return ok && addr.Is6() && slices.Contains(p.Addresses, addr)
}

// assign answers each identity association of the message. The first one gets all addresses of the
// port. The others get none. If a client names addresses that its port does not have, they get a
// lifetime of 0.
func (p *Port) assign(m, r *dhcpv6.Message) {
	var own []netip.Addr
	for _, a := range p.Addresses {
		if p.owns6(a) && len(own) < maxIAAddresses {
			own = append(own, a)
		}
	}
	for i, ia := range m.Options.IANA() {
		if i == maxIAAddresses {
			return
		}
		answer := &dhcpv6.OptIANA{IaId: ia.IaId}
		if i > 0 || len(own) == 0 {
			answer.Options.Add(status(iana.StatusNoAddrsAvail))
			r.AddOption(answer)
			continue
		}
		valid := p.Network.Lease
		answer.T1, answer.T2 = valid/2, valid/5*4
		if valid == infinite {
			answer.T1, answer.T2 = infinite, infinite
		}
		for _, a := range own {
			answer.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: ip(a), PreferredLifetime: valid, ValidLifetime: valid})
		}
		for n, a := range ia.Options.Addresses() {
			if addr, _ := netip.AddrFromSlice(a.IPv6Addr); n < maxIAAddresses && m.MessageType != dhcpv6.MessageTypeSolicit && !slices.Contains(own, addr) {
				answer.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: a.IPv6Addr, PreferredLifetime: time.Duration(0)})
			}
		}
		r.AddOption(answer)
	}
}

// settings6 adds the settings of the network for which the client asks.
func (n *Network) settings6(m, r *dhcpv6.Message) {
	var servers []net.IP
	for _, a := range n.DNS {
		if a.Is6() {
			servers = append(servers, ip(a))
		}
	}
	if len(servers) > 0 && m.IsOptionRequested(dhcpv6.OptionDNSRecursiveNameServer) {
		r.AddOption(dhcpv6.OptDNS(servers...))
	}
	if n.Domain != "" && m.IsOptionRequested(dhcpv6.OptionDomainSearchList) {
		r.AddOption(dhcpv6.OptDomainSearchList(&rfc1035label.Labels{Labels: []string{n.Domain}}))
	}
}
