// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weft/vhost/vhosttest"
)

// This file has attacks of a host on the underlay that sends to the switch's tunnel endpoint.

func peerAttacks() []*attack {
	return []*attack{
		{name: "vxlan-malformed", attacker: "peer", summary: "datagrams to the tunnel's port whose headers lie",
			setup: peerSocket, play: datagrams(malformedVXLAN)},
		{name: "vxlan-foreign-vni", attacker: "peer", summary: "frames of VNIs that the switch does not have",
			setup: peerSocket, play: datagrams(foreignVNI)},
		{name: "vxlan-mac-flood", attacker: "peer", summary: "invents source addresses in its VNI",
			setup: peerSocket, play: datagrams(inventedInner)},
		{name: "vxlan-mac-of-a-guest", exclusive: true, attacker: "peer", summary: "sends as a bystander of another VNI",
			setup: peerSocket, play: datagrams(bystandersInner)},
		{name: "bfd-guesses", attacker: "peer", summary: "forges the end of a BFD session with guessed discriminators, of which one in 100,000 hits",
			setup: bfdSetup, play: datagrams(guessBFD), check: sessionLives, exclusive: true},
		{name: "vxlan-malformed-packets", attacker: "peer", summary: "the first two at once, to an uplink of packet sockets", uplink: "af_packet",
			setup: peerSocket, play: datagrams(func(p *play, b []byte) int {
				if p.rng.IntN(2) == 0 {
					return malformedVXLAN(p, b)
				}
				return foreignVNI(p, b)
			})},
	}
}

// peerSocket opens a UDP socket from the underlay peer to the switch's tunnel
// endpoint.
func peerSocket(p *play) error {
	var conn net.Conn
	err := p.site.peer.Do(func() (err error) {
		conn, err = net.Dial("udp", hostIP+":4789")
		return err
	})
	if err != nil {
		return err
	}
	p.later(func() { conn.Close() })
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	p.vars["socket"] = raw
	return nil
}

func datagrams(fill func(p *play, b []byte) int) func(p *play) error {
	return func(p *play) error {
		raw := p.vars["socket"].(syscall.RawConn)
		b := make([]byte, 1500)
		for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
			for range 64 {
				n := fill(p, b)
				_ = raw.Write(func(fd uintptr) bool {
					_, err := unix.Write(int(fd), b[:n])
					return err != unix.EAGAIN
				})
			}
			time.Sleep(100 * time.Microsecond) // leaves the core to the switch, which may share it with this process
		}
		return nil
	}
}

func vxlan(b []byte, vni uint32) {
	clear(b[:8])
	b[0] = 8
	binary.BigEndian.PutUint32(b[4:], vni<<8)
}

func malformedVXLAN(p *play, b []byte) int {
	n := p.rng.IntN(200)
	for i := range b[:n] {
		b[i] = byte(p.rng.Uint32())
	}
	if n > 22 && p.rng.IntN(2) == 0 {
		vxlan(b, overlayVNI)
		malformed(p, b[8:])
	}
	return n
}

func foreignVNI(p *play, b []byte) int {
	vxlan(b, p.rng.Uint32()>>8)
	put(b[8:], vhosttest.LoadMAC(1), attackerMAC, 0x88b5)
	return 72
}

func inventedInner(p *play, b []byte) int {
	vxlan(b, overlayVNI)
	put(b[8:], attackerMAC, randomMAC(p.rng), 0x88b5)
	return 72
}

func bystandersInner(p *play, b []byte) int {
	vxlan(b, overlayVNI)
	put(b[8:], attackerMAC, vhosttest.LoadMAC(1), 0x88b5)
	return 72
}
