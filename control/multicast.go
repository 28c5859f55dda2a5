package control

import (
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A vxlan port whose remote is a multicast group of the underlay sends what is for
// all there, once (RFC 7348 section 4.2). The kernel joins the group and speaks IGMP
// or MLD; the XDP program takes the group's datagrams as it does those for the
// host's own addresses.

// groupOf is a vxlan port's multicast group, by its options; invalid if it has
// none.
func groupOf(values map[string]string) netip.Addr {
	if a, err := netip.ParseAddr(values["remote"]); err == nil && a.IsMulticast() {
		return a
	}
	return netip.Addr{}
}

// membership of a group on a device, by a socket that nothing is read from.
type membership struct {
	fd, index int    // index of the device; 0: no member, and no socket
	trouble   string // why not
}

// join makes it one of group on dev, as that is now, and reports whether anything
// has changed.
func (m *membership) join(group netip.Addr, dev string) (changed bool) {
	before := *m
	i, err := net.InterfaceByName(dev)
	if err != nil {
		m.leave()
		m.trouble = "there is no device " + dev + " to reach the group by"
		return m.trouble != before.trouble
	}
	if i.Index == m.index {
		return false
	}
	m.leave()
	fd, err := joinGroup(group, i.Index)
	if err != nil {
		m.trouble = fmt.Sprintf("group %s cannot be joined on %s: %v", group, dev, err)
		return m.trouble != before.trouble
	}
	*m = membership{fd: fd, index: i.Index}
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

func (m *membership) leave() {
	if m.index != 0 {
		unix.Close(m.fd)
	}
	*m = membership{}
}

// groupMAC is the Ethernet address of a group (RFC 1112 section 6.4, RFC 2464
// section 7).
func groupMAC(group netip.Addr) [6]byte {
	if group.Is4() {
		a := group.As4()
		return [6]byte{0x01, 0x00, 0x5e, a[1] & 0x7f, a[2], a[3]}
	}
	a := group.As16()
	return [6]byte{0x33, 0x33, a[12], a[13], a[14], a[15]}
}
