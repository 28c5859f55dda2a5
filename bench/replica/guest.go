// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"time"

	"weft/bench/traffic"
)

// guest connects a replica or the client to a vhost-user port. It implements UDP, IPv4 and Ethernet
// itself. Its MAC address is computed from its IP address, so no ARP requests are necessary.
type guest struct {
	port      *traffic.Port
	own       netip.Addr
	heads     [][headers]byte // frame headers to each member
	envelopes [][]byte
	pending   int
	in        [][]byte
}

const headers = 14 + 20 + 8

// HardwareAddress returns the MAC address that belongs to the IPv4 address a. The MAC address is
// locally administered and contains the IP address.
func HardwareAddress(a netip.Addr) [6]byte {
	ip := a.As4()
	return [6]byte{2, 0, ip[0], ip[1], ip[2], ip[3]}
}

func openGuest(path string, own int, addresses []netip.Addr) (*guest, error) {
	g := &guest{own: addresses[own]}
	for _, a := range addresses {
		g.heads = append(g.heads, head(g.own, a))
	}
	for range batch {
		g.envelopes = append(g.envelopes, make([]byte, 0, headers+messageSize))
	}
	var err error
	if g.port, err = traffic.OpenPort(path, 1514); err != nil {
		return g, err
	}
	// The replicas and the client share their cores with the switches, so they do not poll. KVM does
	// not poll for a halted guest either while another thread waits for the core (kvm_vcpu_can_poll).
	g.port.Spin = 0
	return g, nil
}

func head(from, to netip.Addr) (h [headers]byte) {
	src, dst := HardwareAddress(from), HardwareAddress(to)
	copy(h[:], dst[:])
	copy(h[6:], src[:])
	copy(h[12:], []byte{8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17}) // don't fragment, TTL 64, UDP
	a, b := from.As4(), to.As4()
	copy(h[26:], a[:])
	copy(h[30:], b[:])
	binary.BigEndian.PutUint16(h[34:], udpPort)
	binary.BigEndian.PutUint16(h[36:], udpPort)
	return h
}

func (g *guest) receive(wait time.Duration) ([][]byte, error) {
	g.in = g.in[:0]
	for _, f := range g.port.Recv(wait) {
		if d := g.accept(f); d != nil {
			g.in = append(g.in, d)
		}
	}
	return g.in, nil
}

// accept returns the payload of a UDP datagram to this guest. For any other frame it returns nil. It
// answers ARP requests.
func (g *guest) accept(f []byte) []byte {
	own := g.own.As4()
	switch {
	case len(f) >= 42 && f[12] == 8 && f[13] == 6 && f[21] == 1 && bytes.Equal(f[38:42], own[:]):
		g.answerARP(f)
		return nil
	case len(f) < headers || f[12] != 8 || f[13] != 0 || f[14] != 0x45 || f[23] != 17 || !bytes.Equal(f[30:34], own[:]) ||
		binary.BigEndian.Uint16(f[36:]) != udpPort:
		return nil
	}
	n := int(binary.BigEndian.Uint16(f[38:]))
	if n < 8 || 34+n > len(f) {
		return nil
	}
	return f[headers : 34+n]
}

func (g *guest) answerARP(ask []byte) {
	mac, ip := HardwareAddress(g.own), g.own.As4()
	a := append([]byte{}, ask[6:12]...)
	a = append(a, mac[:]...)
	a = append(a, ask[12:20]...) // copies the request's EtherType, hardware type and protocol type
	a = append(a, 0, 2)
	a = append(append(a, mac[:]...), ip[:]...)
	a = append(a, ask[22:32]...) // the target is the request's sender
	g.port.Send([][]byte{a})
}

func (g *guest) send(to int, datagram []byte) error {
	f := append(g.envelopes[g.pending][:0], g.heads[to][:]...)
	f = append(f, datagram...)
	binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
	binary.BigEndian.PutUint16(f[38:], uint16(len(f)-34))
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(f[24:], ^uint16(sum+sum>>16))
	g.envelopes[g.pending] = f
	if g.pending++; g.pending == batch {
		g.flush()
	}
	return nil
}

func (g *guest) flush() {
	if g.pending > 0 {
		g.port.Send(g.envelopes[:g.pending])
		g.pending = 0
	}
}

func (g *guest) close() { g.port.Close() }
