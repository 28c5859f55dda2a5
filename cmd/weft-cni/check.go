// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"weft/api"
)

// check handles the CNI operation CHECK. It compares the pod with the result of ADD, which the runtime
// passes in prevResult.
func check(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err == nil {
		err = c.readArgs(args)
	}
	if err != nil {
		return err
	}
	if c.PrevResult == nil {
		return failure(types.ErrInvalidNetworkConfig, "network %s: prevResult is missing; expected the result of ADD", c.Name)
	}
	expected, err := current.NewResultFromResult(c.PrevResult)
	if err != nil {
		return failure(types.ErrDecodingFailure, "prevResult: %v", err)
	}
	if err := c.delegate(args, invoke.DelegateCheck); err != nil {
		return err
	}
	p, err := openPod(args.Netns, args.IfName)
	if err != nil {
		return err
	}
	defer p.close()
	a := attachmentOf(c, args)
	own := ownPart(expected, p)
	if own == nil {
		return failure(codeDiffers, "prevResult: has no interface %s of %s", p.ifname, p.path)
	}
	inside, err := p.compare(a, own)
	if err != nil {
		return err
	}
	s, err := c.connect()
	if err != nil {
		return err
	}
	return s.comparePort(a, c.portOptions(a, inside.Attrs().HardwareAddr, own.IPs))
}

// ownPart returns the part of a CNI result that is about the pod's interface, or nil if there is none.
func ownPart(complete *current.Result, p *pod) *current.Result {
	i := slices.IndexFunc(complete.Interfaces, func(x *current.Interface) bool { return x.Sandbox == p.path && x.Name == p.ifname })
	if i < 0 {
		return nil
	}
	own := &current.Result{Interfaces: complete.Interfaces[i : i+1]}
	for _, ip := range complete.IPs {
		if ip.Interface != nil && *ip.Interface == i {
			own.IPs = append(own.IPs, ip)
		}
	}
	for _, route := range complete.Routes {
		if slices.ContainsFunc(own.IPs, func(ip *current.IPConfig) bool { return carries(ip, route) }) {
			own.Routes = append(own.Routes, route)
		}
	}
	return own
}

// carries reports whether ADD has added the route for the interface with this address. This is so if
// the route has no gateway, or one in the network of the address.
func carries(ip *current.IPConfig, route *types.Route) bool {
	if (ip.Address.IP.To4() == nil) != (route.Dst.IP.To4() == nil) {
		return false
	}
	return route.GW == nil || ip.Address.Contains(route.GW)
}

// compare returns an error if the pod's interface differs from what ADD made. own is the part of ADD's
// result about this interface.
func (p *pod) compare(a attachment, own *current.Result) (netlink.Link, error) {
	inside, err := p.link()
	if err != nil {
		return nil, failure(codeDiffers, "%v", err)
	}
	attrs := inside.Attrs()
	host, err := netlink.LinkByName(a.device())
	switch was := own.Interfaces[0]; {
	case err != nil:
		return nil, failure(codeDiffers, "device %s: %v", a.device(), err)
	case host.Attrs().Flags&net.FlagUp == 0:
		return nil, failure(codeDiffers, "device %s: is down", a.device())
	case inside.Type() != "veth" || host.Type() != "veth" || host.Attrs().ParentIndex != attrs.Index:
		return nil, failure(codeDiffers, "interface %s of %s: is not the other end of %s", p.ifname, p.path, a.device())
	case attrs.Flags&net.FlagUp == 0:
		return nil, failure(codeDiffers, "interface %s of %s: is down", p.ifname, p.path)
	case was.Mac != "" && !strings.EqualFold(was.Mac, attrs.HardwareAddr.String()):
		return nil, failure(codeDiffers, "interface %s of %s: has the MAC address %s, not %s", p.ifname, p.path, attrs.HardwareAddr, was.Mac)
	case was.Mtu != 0 && was.Mtu != attrs.MTU:
		return nil, failure(codeDiffers, "interface %s of %s: has the MTU %d, not %d", p.ifname, p.path, attrs.MTU, was.Mtu)
	}
	if err := p.sameAddresses(inside, own.IPs); err != nil {
		return nil, err
	}
	return inside, p.sameRoutes(inside, own)
}

func (p *pod) sameAddresses(inside netlink.Link, ips []*current.IPConfig) error {
	has, err := p.netlink.AddrList(inside, netlink.FAMILY_ALL)
	if err != nil {
		return failure(codeInterface, "addresses of %s in %s: %v", p.ifname, p.path, err)
	}
	for _, ip := range ips {
		if !slices.ContainsFunc(has, func(x netlink.Addr) bool { return x.IPNet.String() == ip.Address.String() }) {
			return failure(codeDiffers, "interface %s of %s: lacks the address %s", p.ifname, p.path, &ip.Address)
		}
	}
	return nil
}

func (p *pod) sameRoutes(inside netlink.Link, own *current.Result) error {
	for _, route := range own.Routes {
		wanted := kernelRoute(inside, route, own.IPs)
		filter, mask := &netlink.Route{LinkIndex: wanted.LinkIndex, Dst: wanted.Dst, Gw: wanted.Gw, Table: wanted.Table}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_DST|netlink.RT_FILTER_GW
		if wanted.Table != 0 {
			mask |= netlink.RT_FILTER_TABLE
		}
		family := netlink.FAMILY_V4
		if route.Dst.IP.To4() == nil {
			family = netlink.FAMILY_V6
		}
		has, err := p.netlink.RouteListFiltered(family, filter, mask)
		if err != nil {
			return failure(codeInterface, "routes of %s: %v", p.path, err)
		}
		if len(has) == 0 {
			return failure(codeDiffers, "interface %s of %s: lacks the route to %s", p.ifname, p.path, &route.Dst)
		}
	}
	return nil
}

// comparePort returns an error if the port is not up, or differs from the options that ADD gave it.
func (s *weftSwitch) comparePort(a attachment, options []string) error {
	ports, err := s.ports(a.port())
	if err != nil {
		return err
	}
	if len(ports) != 1 {
		return failure(codeDiffers, "port %s of %s: weftd has no such port", a.port(), a.id())
	}
	port := ports[0]
	if port.State != "up" {
		return failure(codeDiffers, "port %s of %s: state %s: %s", a.port(), a.id(), port.State, port.Detail)
	}
	wanted := map[string]string{}
	for _, word := range options {
		key, value, _ := strings.Cut(word, "=")
		wanted[key] = value
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		has, shown := port.Options[key]
		if !shown && (key == "type" || key == "bridge") { // weftd does not repeat the type and the first bridge
			continue
		}
		if has != wanted[key] {
			return failure(codeDiffers, "port %s of %s: has %s=%s, not %s=%s", a.port(), a.id(), key, has, key, wanted[key])
		}
	}
	return nil
}

// status handles the CNI operation STATUS: it returns an error if an ADD would fail now.
func status(args *skel.CmdArgs) error {
	c, s, err := parseAndConnect(args)
	if err != nil {
		return err
	}
	if err := s.ready(); err != nil {
		return err
	}
	return c.delegate(args, invoke.DelegateStatus)
}

// ready returns an error if weftd, the bridge or the engine is missing.
func (s *weftSwitch) ready() error {
	show, err := s.api.Show()
	if err != nil {
		return failure(types.ErrPluginNotAvailable, "weftd: %v", err)
	}
	if s.bridge != "" && !slices.ContainsFunc(show.Bridges, func(b api.Bridge) bool { return b.Name == s.bridge }) {
		return failure(types.ErrPluginNotAvailable, "bridge %s: no such bridge; weft add-br %s makes it", s.bridge, s.bridge)
	}
	if show.EnginePID == 0 {
		return failure(types.ErrLimitedConnectivity, "weftd has no engine at present: no pod reaches another; see weftd's log")
	}
	return nil
}
