// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"weft/packet"
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

// condition is true for a frame whose bytes at an offset are equal to one of several values.
type condition struct {
	load   uint16 // loadByte, loadHalf or loadWord
	offset uint32
	values []uint32
}

// accept appends instructions to filter f that accept a frame if all conditions are true.
func accept(f []unix.SockFilter, conditions ...condition) []unix.SockFilter {
	left := 1 // number of instructions that still follow; the last one accepts the frame
	for _, c := range conditions {
		left += 1 + len(c.values)
	}
	for _, c := range conditions {
		f = append(f, statement(c.load, c.offset))
		left--
		for i, v := range c.values {
			left--
			if untried := len(c.values) - 1 - i; untried > 0 {
				f = append(f, jump(equal, v, untried, 0))
			} else {
				f = append(f, jump(equal, v, 0, left))
			}
		}
	}
	return append(f, statement(ret, whole))
}

// equals returns the condition that the bytes at offset have a value.
func equals(load uint16, offset, value uint32) condition {
	return condition{load, offset, []uint32{value}}
}

// takeEndpoints returns a filter that accepts only UDP datagrams to the endpoints and, to an endpoint
// with port 0, GRE. IP options and extension headers are not allowed, except for 8 bytes of
// destination options before GRE over IPv6, which Linux sends. The filter refuses frames with a VLAN
// ID, because they belong to the VLAN's device. VLAN ID 0 is accepted: such a tag has only a priority.
func takeEndpoints(endpoints []netip.AddrPort) []unix.SockFilter {
	f := []unix.SockFilter{
		statement(loadWord, adVLANPresent), jump(equal, 0, 4, 0),
		statement(loadWord, adVLANTag), statement(and, 0xfff), jump(equal, 0, 1, 0),
		statement(ret, 0),
	}
	var types []uint32 // protocol types of GRE, which stand for the kinds of payload
	for _, protocol := range packet.GREProtocols {
		types = append(types, uint32(protocol))
	}
	for _, e := range endpoints {
		if e.Addr().Is4() {
			addr := e.Addr().As4()
			protocol, last := uint32(unix.IPPROTO_UDP), equals(loadHalf, 36, uint32(e.Port()))
			if e.Port() == 0 {
				protocol, last = unix.IPPROTO_GRE, condition{loadHalf, 36, types}
			}
			f = accept(f, equals(loadHalf, 12, unix.ETH_P_IP), equals(loadByte, 14, 0x45), equals(loadByte, 23, protocol),
				equals(loadWord, 30, binary.BigEndian.Uint32(addr[:])), last)
			continue
		}
		addr := e.Addr().As16()
		common := []condition{equals(loadHalf, 12, unix.ETH_P_IPV6)}
		for i := range 4 {
			common = append(common, equals(loadWord, uint32(38+4*i), binary.BigEndian.Uint32(addr[4*i:])))
		}
		common = slices.Clip(common)
		if e.Port() != 0 {
			f = accept(f, append(common, equals(loadByte, 20, unix.IPPROTO_UDP), equals(loadHalf, 56, uint32(e.Port())))...)
			continue
		}
		f = accept(f, append(common, equals(loadByte, 20, unix.IPPROTO_GRE), condition{loadHalf, 56, types})...)
		f = accept(f, append(common, equals(loadByte, 20, unix.IPPROTO_DSTOPTS), equals(loadHalf, 54, unix.IPPROTO_GRE<<8), condition{loadHalf, 56 + packet.TunnelLimitLen, types})...)
	}
	return append(f, takeNothing...)
}

func setFilter(fd int, f []unix.SockFilter) error {
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]})
}

// sink opens a socket that is bound to endpoint e and drops every datagram: a UDP socket, or a raw GRE
// socket for port 0. Without it, the kernel would answer with the ICMP error "port unreachable" or
// "protocol unreachable". The socket is bound to the device too, so uplinks on several devices can
// have the same endpoints.
func sink(e netip.AddrPort, device int) (fd int, err error) {
	v6 := &unix.SockaddrInet6{Port: int(e.Port()), Addr: e.Addr().As16()}
	family, addr := unix.AF_INET6, unix.Sockaddr(v6)
	if e.Addr().Is4() {
		family, addr = unix.AF_INET, &unix.SockaddrInet4{Port: int(e.Port()), Addr: e.Addr().As4()}
	} else if e.Addr().IsLinkLocalUnicast() {
		v6.ZoneId = uint32(device)
	}
	kind, protocol := unix.SOCK_DGRAM, 0
	if e.Port() == 0 {
		kind, protocol = unix.SOCK_RAW, unix.IPPROTO_GRE
	}
	fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return -1, fmt.Errorf("endpoint %v: socket: %w", e, err)
	}
	if family == unix.AF_INET6 && kind == unix.SOCK_DGRAM {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	// UDP_GRO keeps the kernel from segmenting a merged datagram again before the filter drops it
	if err == nil && kind == unix.SOCK_DGRAM {
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

// sorted returns the valid endpoints in order, without duplicates. It fails for more than
// maxEndpoints.
func sorted(endpoints []netip.AddrPort) ([]netip.AddrPort, error) {
	var list []netip.AddrPort
	for _, e := range endpoints {
		switch {
		case !e.Addr().IsValid() || e.Addr().IsUnspecified():
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
