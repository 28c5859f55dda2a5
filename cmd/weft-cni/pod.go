// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"runtime"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// pod is the network namespace of a pod, and the name of the interface that the plugin makes in it.
type pod struct {
	path, ifname string
	ns           netns.NsHandle
	netlink      *netlink.Handle
}

func openPod(path, ifname string) (*pod, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, failure(types.ErrInvalidNetNS, "network namespace %s: %v", path, err)
	}
	p := &pod{path: path, ifname: ifname, ns: ns}
	if p.netlink, err = netlink.NewHandleAt(ns, unix.NETLINK_ROUTE); err != nil {
		_ = ns.Close()
		return nil, failure(types.ErrInvalidNetNS, "network namespace %s: %v", path, err)
	}
	return p, nil
}

func (p *pod) close() {
	p.netlink.Close()
	_ = p.ns.Close()
}

// link returns the pod's interface.
func (p *pod) link() (netlink.Link, error) {
	link, err := p.netlink.LinkByName(p.ifname)
	if err != nil {
		return nil, failure(codeInterface, "interface %s of %s: %v", p.ifname, p.path, err)
	}
	return link, nil
}

// absent returns an error if the pod has the interface.
func (p *pod) absent() error {
	_, err := p.netlink.LinkByName(p.ifname)
	var missing netlink.LinkNotFoundError
	switch {
	case err == nil:
		return failure(codeInterface, "interface %s of %s: exists already", p.ifname, p.path)
	case errors.As(err, &missing):
		return nil
	}
	return failure(codeInterface, "interface %s of %s: %v", p.ifname, p.path, err)
}

// connect makes the veth pair. Both ends are down.
func (p *pod) connect(a attachment, mac net.HardwareAddr, mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = a.device(), mtu
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: p.ifname, PeerHardwareAddr: mac, PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(p.ns)}
	if err := netlink.LinkAdd(veth); err != nil {
		return failure(codeInterface, "veth pair %s: %v", a.device(), err)
	}
	return nil
}

// raiseHost sets the alias of the host's end and brings it up. IPv6 is off on this end, because the host
// would otherwise send its own neighbour discovery to the pod.
func raiseHost(a attachment) (netlink.Link, error) {
	link, err := netlink.LinkByName(a.device())
	if err == nil {
		err = netlink.LinkSetAlias(link, a.alias())
	}
	if err == nil {
		err = setInterface("ipv6", a.device(), "disable_ipv6", "1")
	}
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return nil, failure(codeInterface, "device %s: %v", a.device(), err)
	}
	return link, nil
}

// address adds IP addresses to the pod's interface, which is still down. The kernel announces them when
// the interface comes up. Neighbours may remember an earlier pod with the same addresses.
func (p *pod) address(link netlink.Link, ips []*current.IPConfig) error {
	err := p.within(func() error {
		if hasIPv6(ips) {
			if err := setInterface("ipv6", p.ifname, "disable_ipv6", "0"); err != nil {
				return err
			}
		}
		return errors.Join(setInterface("ipv4", p.ifname, "arp_notify", "1"), setInterface("ipv6", p.ifname, "ndisc_notify", "1"))
	})
	for _, ip := range ips {
		if err != nil {
			break
		}
		address := &netlink.Addr{IPNet: &ip.Address}
		if ip.Address.IP.To4() == nil {
			address.Flags = unix.IFA_F_NODAD // no duplicate detection: IPAM gives each address once
		}
		err = p.netlink.AddrAdd(link, address)
	}
	if err != nil {
		return failure(codeInterface, "addresses of %s in %s: %v", p.ifname, p.path, err)
	}
	return nil
}

func hasIPv6(ips []*current.IPConfig) bool {
	for _, ip := range ips {
		if ip.Address.IP.To4() == nil {
			return true
		}
	}
	return false
}

// raise brings the interface up and adds its routes.
func (p *pod) raise(link netlink.Link, result *current.Result) error {
	if err := p.netlink.LinkSetUp(link); err != nil {
		return failure(codeInterface, "interface %s of %s: %v", p.ifname, p.path, err)
	}
	for _, route := range result.Routes {
		// If two routes are equal, the first one stays, as in other plugins.
		if err := p.netlink.RouteAdd(kernelRoute(link, route, result.IPs)); err != nil && !errors.Is(err, unix.EEXIST) {
			return failure(codeInterface, "route to %s in %s: %v", &route.Dst, p.path, err)
		}
	}
	return nil
}

// kernelRoute converts a CNI route to a netlink route. If the route has no gateway, it gets the first
// gateway among the pod's addresses of the same IP version.
func kernelRoute(link netlink.Link, route *types.Route, ips []*current.IPConfig) *netlink.Route {
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: &route.Dst, Gw: gateway(route, ips),
		MTU: route.MTU, AdvMSS: route.AdvMSS, Priority: route.Priority}
	switch {
	case route.Scope != nil:
		r.Scope = netlink.Scope(*route.Scope)
	case r.Gw == nil:
		r.Scope = netlink.SCOPE_LINK
	}
	if route.Table != nil {
		r.Table = *route.Table
	}
	return r
}

func gateway(route *types.Route, ips []*current.IPConfig) net.IP {
	if route.GW != nil {
		return route.GW
	}
	for _, ip := range ips {
		if (ip.Address.IP.To4() == nil) == (route.Dst.IP.To4() == nil) && ip.Gateway != nil {
			return ip.Gateway
		}
	}
	return nil
}

// within calls f on a thread of its own in the pod's namespace. The thread ends with f, so that no other
// goroutine runs in this namespace.
func (p *pod) within(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // without UnlockOSThread, so that the thread ends with its goroutine
		if err := netns.Set(p.ns); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}

// setInterface sets a sysctl of an interface. It does nothing if the kernel lacks the sysctl,
// as old kernels and kernels without IPv6 do.
func setInterface(family, dev, name, value string) error {
	err := os.WriteFile("/proc/sys/net/"+family+"/conf/"+dev+"/"+name, []byte(value), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeLink removes the veth pair, if there is one.
func removeLink(a attachment) error {
	link, err := netlink.LinkByName(a.device())
	if err == nil {
		err = netlink.LinkDel(link)
	}
	var missing netlink.LinkNotFoundError
	if err == nil || errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
		return nil // the end of the namespace may have removed it meanwhile
	}
	return failure(codeInterface, "device %s: %v", a.device(), err)
}
