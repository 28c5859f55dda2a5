// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A tunnel port whose remote is a multicast group sends broadcasts and frames to
// unknown addresses to the group (RFC 7348 section 4.2). The kernel joins the group.

// Membership is the membership of a multicast group on a device. The kernel keeps it while the
// socket is open; nobody reads the socket.
type Membership struct {
	fd, index int    // socket, and index of the device; index 0 means that there is no membership
	Trouble   string // why the group could not be joined; "" if it was
}

// Join joins group on device dev. It reports whether the membership, or the reason of
// its failure (Trouble), has changed.
func (m *Membership) Join(group netip.Addr, dev string) (changed bool) {
	before := *m
	i, err := net.InterfaceByName(dev)
	if err != nil {
		m.Leave()
		m.Trouble = "there is no device " + dev + " through which the group is reached"
		return m.Trouble != before.Trouble
	}
	if i.Index == m.index {
		return false
	}
	m.Leave()
	fd, err := joinGroup(group, i.Index)
	if err != nil {
		m.Trouble = fmt.Sprintf("group %s cannot be joined on %s: %v", group, dev, err)
		return m.Trouble != before.Trouble
	}
	*m = Membership{fd: fd, index: i.Index}
	return true
}

func joinGroup(group netip.Addr, index int) (fd int, err error) {
	family := unix.AF_INET6
	if group.Is4() {
		family = unix.AF_INET
	}
	if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, err
	}
	if group.Is4() {
		err = unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: group.As4(), Ifindex: int32(index)})
	} else {
		err = unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(index)})
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (m *Membership) Leave() {
	if m.index != 0 {
		unix.Close(m.fd)
	}
	*m = Membership{}
}

// multicastMAC returns the Ethernet address of a multicast group (RFC 1112 section
// 6.4, RFC 2464 section 7).
func multicastMAC(group netip.Addr) [6]byte {
	if group.Is4() {
		a := group.As4()
		return [6]byte{0x01, 0x00, 0x5e, a[1] & 0x7f, a[2], a[3]}
	}
	a := group.As16()
	return [6]byte{0x33, 0x33, a[12], a[13], a[14], a[15]}
}
