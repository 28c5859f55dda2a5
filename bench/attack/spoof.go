// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"weft/vhost/vhosttest"
)

// This file has attacks of a guest that sends frames with the MAC and IP addresses of others.

func spoofAttacks() []*attack {
	return []*attack{
		{name: "declared-mac-theft", exclusive: true, attacker: "guest", summary: "sends as a bystander of its own VNI whose address is declared (mac=)",
			setup: member(fmt.Sprint("vni=", memberVNI)), play: flood(asBystander(1))},
		{name: "mac-theft", exclusive: true, attacker: "guest", summary: "sends as a bystander whose address nobody has declared",
			mayLose: "what the thief hears until the address has come back twice: frames of two intervals", hears: true,
			setup: member(), play: flood(asBystander(0))},
		{name: "spoofed-addresses", attacker: "guest", summary: "ARP, ND, IPv4 and IPv6 with others' addresses, tagged too, from a port with addresses=",
			setup: spoofSetup, play: spoof, check: honestPasses},
		{name: "reserved-addresses", attacker: "guest", summary: "frames to 01:80:c2:00:00:00 to 0f under normal",
			setup: member(), play: flood(reserved)},
	}
}

func asBystander(i int) func(p *play, f []byte) []byte {
	return func(p *play, f []byte) []byte {
		put(f, attackerMAC, vhosttest.LoadMAC(i), 0x88b5)
		return f[:64]
	}
}

// reserved builds a frame to a reserved multicast address (IEEE 802.1D), which no bridge forwards. A
// guest that receives such a frame counts it as a bad frame.
func reserved(p *play, f []byte) []byte {
	put(f, [6]byte{1, 0x80, 0xc2, 0, 0, byte(p.rng.IntN(16))}, attackerMAC, 0x88b5)
	return f[:64]
}

// IPv4 addresses in the attack spoofed-addresses: ownIP is that of the attacker's port, othersIP that of
// another guest.
const (
	ownIP    = 0x0a090001 // 10.9.0.1
	othersIP = 0x0a090002
)

func spoofSetup(p *play) error {
	sink, err := p.port("-sink", "actions=drop")
	if err != nil {
		return err
	}
	g, err := p.guest(sink, vhosttest.Options{Num: 1024})
	if err != nil {
		return err
	}
	p.vars["sink"] = g
	p.later(g.close)
	if err := p.up(p.name + "-sink"); err != nil {
		return err
	}
	return sender("actions=output:"+p.name+"-sink", vhosttest.Options{Num: 1024}, "addresses=02:ff:00:00:00:01 10.9.0.1 fd00::1")(p)
}

// spoofedMark is the last byte of each frame with a spoofed address, honestMark that of the others.
const spoofedMark, honestMark = 0xee, 0x11

func spoof(p *play) error {
	g, f := p.own("guest"), make([]byte, 200)
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
		for range 64 {
			frame := spoofed(p, f)
			frame[len(frame)-1] = spoofedMark
			if !g.send(frame) {
				break
			}
		}
		g.flush()
		if n, example := p.atSink(spoofedMark); n > 0 {
			return fmt.Errorf("%d spoofed frames have passed, such as % x", n, example)
		}
	}
	return nil
}

// atSink receives frames at the port to which the attacker's frames go. It counts those whose last byte
// is mark, and returns one of them as an example.
func (p *play) atSink(mark byte) (n int, example []byte) {
	sink := p.own("sink")
	for {
		frame, _, ok := sink.Rx[0].Recv(nil)
		if !ok {
			break
		}
		if len(frame) > 0 && frame[len(frame)-1] == mark {
			n, example = n+1, frame
		}
	}
	sink.Rx[0].Refill()
	return n, example
}

func spoofed(p *play, f []byte) []byte {
	clear(f)
	switch p.rng.IntN(7) {
	case 0: // MAC address of another guest
		udp(f, ownIP, 0x0a090009, 1, 2, 100)
		copy(f[6:], nobodysMAC[:])
	case 1: // IPv4 address of another guest
		udp(f, othersIP, 0x0a090009, 1, 2, 100)
	case 2: // ARP for the IPv4 address of another guest
		arp(f, attackerMAC, othersIP, uint16(1+p.rng.IntN(2)))
	case 3: // ARP with the sender MAC address of another guest
		arp(f, nobodysMAC, ownIP, uint16(1+p.rng.IntN(2)))
	case 4: // RARP announcement of another guest's MAC address
		arp(f, nobodysMAC, 0, 3)
		binary.BigEndian.PutUint16(f[12:], 0x8035)
	case 5: // IPv6 address of another guest
		ipv6(f, 2, 17, 100)
	case 6: // neighbour advertisement for another guest's IPv6 address
		ipv6(f, 1, 58, 100)
		f[54] = 136
		f[62], f[63], f[77] = 0xfd, 0, 2
		sumICMPv6(f[:100])
	}
	n := 100
	for range p.rng.IntN(3) { // up to two VLAN tags
		copy(f[16:], f[12:n])
		binary.BigEndian.PutUint16(f[12:], []uint16{0x8100, 0x88a8}[p.rng.IntN(2)])
		binary.BigEndian.PutUint16(f[14:], uint16(p.rng.IntN(4096)))
		n += 4
	}
	return f[:n]
}

func arp(f []byte, mac [6]byte, ip uint32, op uint16) {
	put(f, [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, attackerMAC, 0x0806)
	copy(f[14:], []byte{0, 1, 8, 0, 6, 4, 0, byte(op)})
	copy(f[22:], mac[:])
	binary.BigEndian.PutUint32(f[28:], ip)
	copy(f[32:], mac[:])
	binary.BigEndian.PutUint32(f[38:], ip)
}

func ipv6(f []byte, last, next byte, n int) {
	put(f, nobodysMAC, attackerMAC, 0x86dd)
	ip := f[14:54]
	clear(ip)
	ip[0], ip[6], ip[7] = 0x60, next, 255
	binary.BigEndian.PutUint16(ip[4:], uint16(n-54))
	ip[8], ip[23], ip[24], ip[39] = 0xfd, last, 0xfd, 9
	if next == 17 {
		binary.BigEndian.PutUint16(f[58:], uint16(n-54))
		binary.BigEndian.PutUint16(f[60:], 0xffff)
	}
}

func sumICMPv6(f []byte) {
	sum := uint32(len(f)-54) + 58
	add := func(b []byte) {
		for i := 0; i+1 < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	f[56], f[57] = 0, 0
	add(f[22:54])
	add(f[54:])
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(f[56:], ^uint16(sum))
}

func honestPasses(p *play) error {
	g, f := p.own("guest"), make([]byte, 200)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		frame := udp(f, ownIP, 0x0a090009, 1, 2, 100)
		frame[len(frame)-1] = honestMark
		g.send(frame)
		g.flush()
		if n, _ := p.atSink(honestMark); n > 0 {
			return nil
		}
	}
	return errors.New("the port's own frames do not pass")
}
