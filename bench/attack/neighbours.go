// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"weft/vhost/vhosttest"
)

// This file has storms of ARP and neighbour discovery: by a guest that is in the same VNI as a guest
// that does not attack, and by a host of the underlay.

func neighbourAttacks() []*attack {
	const room = "what their rings have no room for beside the flood"
	return []*attack{
		{name: "arp-storm", exclusive: true, attacker: "guest", mayLose: room,
			summary: "ARP and neighbour discovery in a bystander's VNI: questions, answers and announcements for addresses that it makes up",
			setup:   member(fmt.Sprint("vni=", memberVNI)), play: flood(neighbourFrame), memory: megaflowBytes()},
		{name: "underlay-arp-storm", exclusive: true, attacker: "peer",
			summary: "the same on the underlay, for the switch's address and from all addresses of its network but the next hop's",
			setup:   underlaySocket, play: underlayStorm, check: uplinkSends},
	}
}

// neighbourFrame builds a random frame of ARP or neighbour discovery. Half of the frames are broadcast
// or multicast, the other half go to a bystander.
func neighbourFrame(p *play, f []byte) []byte {
	mac, n := randomMAC(p.rng), 60
	if p.rng.IntN(2) == 0 {
		arp(f, mac, p.rng.Uint32(), uint16(1+p.rng.IntN(2)))
		clear(f[42:n])
		if p.rng.IntN(2) == 0 { // asks for, or answers to, another address than the sender's
			binary.BigEndian.PutUint32(f[38:], p.rng.Uint32())
		}
	} else {
		n = 86
		clear(f[:n])
		ipv6(f, byte(p.rng.Uint32()), 58, n)
		binary.BigEndian.PutUint64(f[30:], p.rng.Uint64())
		f[54] = byte(133 + p.rng.IntN(5)) // type from router solicitation to redirect (RFC 4861 section 4)
		f[62] = 0xfd
		binary.BigEndian.PutUint64(f[70:], p.rng.Uint64())
		f[78], f[79] = byte(1+p.rng.IntN(2)), 1
		copy(f[80:], mac[:])
		sumICMPv6(f[:n])
		copy(f, []byte{0x33, 0x33, 0xff})
	}
	copy(f[6:], mac[:])
	if p.rng.IntN(2) == 0 {
		guest := vhosttest.LoadMAC(1)
		copy(f, guest[:])
	}
	return f[:n]
}

// underlaySocket opens a packet socket on the underlay peer's device, which faces the switch.
func underlaySocket(p *play) error {
	return p.site.peer.Do(func() error {
		device, err := net.InterfaceByName("u0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		p.later(func() { unix.Close(fd) })
		p.vars["device"] = device
		p.vars["packets"] = fd
		return unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: device.Index})
	})
}

// underlayStorm sends ARP and neighbour discovery from invented addresses of the underlay's network.
func underlayStorm(p *play) error {
	fd, host := p.vars["packets"].(int), binary.BigEndian.Uint32(net.ParseIP(hostIP).To4())
	f := make([]byte, 100)
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		for range 64 {
			frame := neighbourFrame(p, f)
			copy(f, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
			if f[12] == 8 { // ARP
				mac := randomMAC(p.rng)
				arp(f, mac, host&^0xff|uint32(3+p.rng.IntN(250)), uint16(1+p.rng.IntN(2)))
				if p.rng.IntN(4) > 0 {
					binary.BigEndian.PutUint32(f[38:], host)
				}
				copy(f[6:], mac[:])
			}
			_, _ = unix.Write(fd, frame) // error ignored: the device's queue may be full
		}
	}
	return nil
}
