// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// This file has classic BPF programs (Documentation/networking/filter.rst), assembled
// by hand.

func statement(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

func jump(code uint16, k uint32, yes, otherwise int) unix.SockFilter {
	return unix.SockFilter{Code: code, Jt: uint8(yes), Jf: uint8(otherwise), K: k}
}

const (
	loadHalf = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
	loadByte = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
	loadWord = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	and      = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	equal    = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	ret      = unix.BPF_RET | unix.BPF_K
	whole    = 1 << 18 // number of bytes to accept, so large that no frame is truncated
)

// Offsets of loadWord (include/uapi/linux/filter.h, SKF_AD_OFF) for the VLAN tag that the kernel
// has taken off the frame.
const (
	adVLANTag     = 0xfffff000 + 44 // priority and VLAN ID
	adVLANPresent = 0xfffff000 + 48 // 1: the frame had a tag; 0: it had none
)

// takeNothing is a filter that drops every frame.
var takeNothing = []unix.SockFilter{statement(ret, 0)}

// takeEndpoints returns a filter that accepts only UDP datagrams to the endpoints,
// without IP options or extension headers. It refuses datagrams of a VLAN, because they belong
// to the VLAN's device. A tag with the VLAN ID 0 has only a priority.
func takeEndpoints(endpoints []netip.AddrPort) []unix.SockFilter {
	f := []unix.SockFilter{
		statement(loadWord, adVLANPresent), jump(equal, 0, 4, 0),
		statement(loadWord, adVLANTag), statement(and, 0xfff), jump(equal, 0, 1, 0),
		statement(ret, 0),
	}
	for _, e := range endpoints {
		if e.Addr().Is4() {
			addr := e.Addr().As4()
			f = append(f,
				statement(loadHalf, 12), jump(equal, unix.ETH_P_IP, 0, 9),
				statement(loadByte, 14), jump(equal, 0x45, 0, 7),
				statement(loadByte, 23), jump(equal, unix.IPPROTO_UDP, 0, 5),
				statement(loadWord, 30), jump(equal, binary.BigEndian.Uint32(addr[:]), 0, 3),
				statement(loadHalf, 36), jump(equal, uint32(e.Port()), 0, 1),
				statement(ret, whole))
			continue
		}
		addr := e.Addr().As16()
		f = append(f,
			statement(loadHalf, 12), jump(equal, unix.ETH_P_IPV6, 0, 13),
			statement(loadByte, 20), jump(equal, unix.IPPROTO_UDP, 0, 11))
		for i := range 4 {
			f = append(f, statement(loadWord, uint32(38+4*i)), jump(equal, binary.BigEndian.Uint32(addr[4*i:]), 0, 9-2*i))
		}
		f = append(f, statement(loadHalf, 56), jump(equal, uint32(e.Port()), 0, 1), statement(ret, whole))
	}
	return append(f, takeNothing...)
}

func setFilter(fd int, f []unix.SockFilter) error {
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]})
}

// sink opens a UDP socket that is bound to endpoint e and drops every datagram. Without
// it, the kernel would answer with "port unreachable". The socket is bound to the device, so
// uplinks on several devices can have the same endpoints.
func sink(e netip.AddrPort, device int) (fd int, err error) {
	v6 := &unix.SockaddrInet6{Port: int(e.Port()), Addr: e.Addr().As16()}
	family, addr := unix.AF_INET6, unix.Sockaddr(v6)
	if e.Addr().Is4() {
		family, addr = unix.AF_INET, &unix.SockaddrInet4{Port: int(e.Port()), Addr: e.Addr().As4()}
	} else if e.Addr().IsLinkLocalUnicast() {
		v6.ZoneId = uint32(device)
	}
	fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("endpoint %v: socket: %w", e, err)
	}
	if family == unix.AF_INET6 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	// UDP_GRO: the kernel does not cut large datagrams, merged from several received
	// ones, before the filter
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1)
	}
	if err == nil {
		err = setFilter(fd, takeNothing)
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, device)
	}
	if err == nil {
		err = unix.Bind(fd, addr)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("endpoint %v: %w", e, err)
	}
	return fd, nil
}

// sorted returns the valid endpoints in order, without duplicates.
func sorted(endpoints []netip.AddrPort) ([]netip.AddrPort, error) {
	var list []netip.AddrPort
	for _, e := range endpoints {
		switch {
		case !e.Addr().IsValid() || e.Addr().IsUnspecified():
		case e.Port() == 0:
			return nil, fmt.Errorf("endpoint %v: a port is missing", e)
		default:
			list = append(list, netip.AddrPortFrom(e.Addr().Unmap(), e.Port()))
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	list = slices.Compact(list)
	if len(list) > maxEndpoints {
		return nil, fmt.Errorf("%d endpoints exceed the limit of %d", len(list), maxEndpoints)
	}
	return list, nil
}
