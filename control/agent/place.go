// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"

	"weft/central/wire"
)

// place is the location of a port's addresses: the host and its VXLAN endpoint. It
// takes less memory than a wire.Place.
type place struct {
	mac        uint64
	ips        []netip.Addr
	host       string
	endpoint   netip.Addr
	generation int64
	groups     []string // ids
	digest     uint64   // digest as in wire.Place
}

func placeOf(p *wire.Place) place {
	return place{mac: wire.MACNumber(p.GetMac()), ips: addrsOf(p.GetAddresses()), host: p.GetHost(),
		endpoint: addrOf(p.GetEndpoint()), generation: p.GetGeneration(), groups: p.GetGroups(), digest: p.Digest()}
}

func (p *place) message(port, net string) *wire.Place {
	return &wire.Place{Port: port, Net: net, Mac: wire.MACBytes(p.mac), Addresses: addrBytes(p.ips), Host: p.host,
		Endpoint: p.endpoint.AsSlice(), Generation: p.generation, Groups: p.groups}
}

func addrOf(b []byte) netip.Addr {
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

func addrsOf(list [][]byte) (addrs []netip.Addr) {
	if len(list) > 0 {
		addrs = make([]netip.Addr, 0, len(list))
	}
	for _, b := range list {
		if addr, ok := netip.AddrFromSlice(b); ok {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

func addrBytes(addrs []netip.Addr) (list [][]byte) {
	for _, addr := range addrs {
		list = append(list, addr.AsSlice())
	}
	return list
}
