// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
)

// device is what the kernel says about a network device of the host.
type device struct {
	index   int
	mtu     int
	mac     string
	adminUp bool
	linkUp  bool
	peer    int // index of a veth's other end; 0: the device is no veth
}

// Kernel queries devices and routes of the host over netlink.
type Kernel struct{}

// devices returns the host's network devices by name. If the kernel does not answer, it returns none.
func (Kernel) devices() map[string]device {
	list := map[string]device{}
	links, err := netlink.LinkList()
	if err != nil {
		return list
	}
	for _, l := range links {
		a, peer := l.Attrs(), 0
		if l.Type() == "veth" {
			peer = a.ParentIndex
		}
		list[a.Name] = device{peer: peer, index: a.Index, mtu: a.MTU, mac: a.HardwareAddr.String(), adminUp: a.Flags&net.FlagUp != 0,
			linkUp: a.OperState == netlink.OperUp || a.OperState == netlink.OperUnknown && a.Flags&net.FlagUp != 0}
	}
	return list
}

// routeDevice returns the device through which the host sends to an address. It returns "" for the
// loopback device, or without a route.
func (Kernel) routeDevice(to netip.Addr) string {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(routes) == 0 {
		return ""
	}
	l, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil || l.Attrs().Flags&net.FlagLoopback != 0 {
		return ""
	}
	return l.Attrs().Name
}

// addressed reports whether a device has an IP address that is not link-local.
func (Kernel) addressed(dev string) bool {
	l, err := netlink.LinkByName(dev)
	if err != nil {
		return false
	}
	list, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	return err == nil && slices.ContainsFunc(list, func(a netlink.Addr) bool { return !a.IP.IsLinkLocalUnicast() })
}

// setMTU sets the MTU of a device.
func (Kernel) setMTU(dev string, mtu int) error {
	l, err := netlink.LinkByName(dev)
	if err != nil {
		return err
	}
	return netlink.LinkSetMTU(l, mtu)
}

// facts has what the client asks the kernel. Tests replace it.
type facts interface {
	devices() map[string]device
	routeDevice(to netip.Addr) string
	addressed(dev string) bool
	setMTU(dev string, mtu int) error
}

// tunnelDevices returns the sorted names of the network devices through which tunnels send. For a
// tunnel with a fixed remote, the host's route selects the device. If flows choose the remotes,
// tunnelDevices takes the device of the default route, and LOCAL devices of other bridges that have
// addresses.
func (c *Client) tunnelDevices(m *model) (list []string) {
	c.routesRead = time.Now()
	seen := map[netip.Addr]bool{}
	add := func(dev string) {
		if dev != "" && !slices.Contains(list, dev) {
			list = append(list, dev)
		}
	}
	for i := range m.ports {
		remote := option(m.ports[i].words, "remote")
		if remote == "" {
			continue
		}
		addr, err := netip.ParseAddr(remote)
		if err != nil {
			addr = defaultRemote
			for k := range m.bridges {
				if b := m.bridges[k].name; b != m.ports[i].bridge && c.kernel.addressed(b) {
					add(b)
				}
			}
		}
		if !seen[addr] {
			seen[addr] = true
			add(c.kernel.routeDevice(addr))
		}
	}
	slices.Sort(list)
	return list
}

func (m *model) hasTunnels() bool {
	return slices.ContainsFunc(m.ports, func(p port) bool { return option(p.words, "remote") != "" })
}

// defaultRemote stands for a remote that flows choose. It is a documentation address (RFC 5737), so
// only the default route leads to it.
var defaultRemote = netip.MustParseAddr("192.0.2.1")
