// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"time"

	"weft/packet"
	"weft/vhost/vhosttest"
)

// This file has an attack on the FTP helper of connection tracking. The attacker sends FTP PORT commands
// without end. The switch must still expect the data connection that a victim has announced before.

func ftpAttacks() []*attack {
	return []*attack{
		{name: "ftp-flood", attacker: "guest", summary: "announces data connections of FTP without end",
			setup: ftpSetup, play: ftpFlood, check: ftpVictim},
	}
}

// ftpControl is an FTP control connection between two guests, with the TCP state of both ends.
type ftpControl struct {
	client, server *guest
	ips            [2]uint32
	seq, ack       uint32
	frame          [200]byte
}

func (c *ftpControl) segment(fromServer bool, flags byte, payload string) []byte {
	src, dst, sport, dport, seq, ack := c.ips[0], c.ips[1], uint16(40000), uint16(21), c.seq, c.ack
	if fromServer {
		src, dst, sport, dport, seq, ack = dst, src, dport, sport, ack, seq
	}
	return tcp(c.frame[:], src, dst, sport, dport, seq, ack, flags, payload)
}

func tcp(f []byte, src, dst uint32, sport, dport uint16, seq, ack uint32, flags byte, payload string) []byte {
	n := 54 + len(payload)
	h := f[34:n]
	clear(h[:20])
	binary.BigEndian.PutUint16(h, sport)
	binary.BigEndian.PutUint16(h[2:], dport)
	binary.BigEndian.PutUint32(h[4:], seq)
	binary.BigEndian.PutUint32(h[8:], ack)
	h[12], h[13] = 5<<4, flags
	binary.BigEndian.PutUint16(h[14:], 0xffff)
	copy(h[20:], payload)
	binary.BigEndian.PutUint16(h[16:], ^packet.AddSums(packet.SumIPv4(src, dst, 6, len(h)), packet.Sum(h)))
	return ipv4(f, src, dst, 6, n)
}

const (
	tcpSYN = 2
	tcpACK = 16
	tcpPSH = 8
)

func (c *ftpControl) open() {
	say := func(g *guest, f []byte) {
		g.send(f)
		g.flush()
		time.Sleep(10 * time.Millisecond) // lets the switch forward the segment before the other end answers
		c.client.drain()
		c.server.drain()
	}
	c.seq, c.ack = 1000, 0
	say(c.client, c.segment(false, tcpSYN, ""))
	c.seq, c.ack = 1001, 5000
	say(c.server, c.segment(true, tcpSYN|tcpACK, ""))
	c.ack = 5001
	say(c.client, c.segment(false, tcpACK, ""))
}

func (c *ftpControl) announce(port uint16) {
	ip := c.ips[0]
	line := fmt.Sprintf("PORT %d,%d,%d,%d,%d,%d\r\n", ip>>24, ip>>16&0xff, ip>>8&0xff, ip&0xff, port>>8, port&0xff)
	c.client.send(c.segment(false, tcpPSH|tcpACK, line))
	c.seq += uint32(len(line))
}

func (c *ftpControl) acknowledge() {
	c.client.flush()
	c.server.drain()
	c.server.send(c.segment(true, tcpACK, ""))
	c.server.flush()
	c.client.drain()
}

const (
	ftpZone, ftpVictimZone = 5, 6
	victimDataPort         = 50001
)

// ftpPair adds two ports with guests, and opens an FTP control connection between the guests.
func (p *play) ftpPair(name string, zone int, ips [2]uint32) (*ftpControl, error) {
	c := &ftpControl{ips: ips}
	names := [2]string{p.name + name + "c", p.name + name + "s"}
	for i, g := range []**guest{&c.client, &c.server} {
		socket, err := p.port(names[i][len(p.name):], "")
		if err != nil {
			return nil, err
		}
		if *g, err = p.guest(socket, vhosttest.Options{Num: 1024, BufLen: 512}); err != nil {
			return nil, err
		}
		p.later((*g).close)
		if err := p.up(names[i]); err != nil {
			return nil, err
		}
	}
	// Each pair of guests has a flow table of its own, so that the pairs cannot reach each other.
	table := 100 + int(p.site.number(p.name))%50*2 + zone%2
	for _, f := range []string{
		fmt.Sprintf("priority=50,in_port=%s,tcp,actions=ct(commit,alg=ftp,zone=%d),output:%s", names[0], zone, names[1]),
		fmt.Sprintf("priority=50,in_port=%s,tcp,tp_src=21,actions=ct(zone=%d),output:%s", names[1], zone, names[0]),
		fmt.Sprintf("priority=50,in_port=%s,tcp,tp_src=20,actions=ct(zone=%d,table=%d)", names[1], zone, table),
		fmt.Sprintf("table=%d,in_port=%s,ct_state=+trk+rel,tcp,actions=output:%s", table, names[1], names[0]),
	} {
		if err := p.flow(f); err != nil {
			return nil, err
		}
	}
	c.open()
	p.later(func() { p.site.daemon.TryWeft("flush-conntrack", fmt.Sprint("zone=", zone)) })
	return c, nil
}

func ftpSetup(p *play) error {
	victim, err := p.ftpPair("-v", ftpVictimZone, [2]uint32{0x0a150001, 0x0a150002})
	if err != nil {
		return err
	}
	attacker, err := p.ftpPair("-a", ftpZone, [2]uint32{0x0a160001, 0x0a160002})
	if err != nil {
		return err
	}
	victim.announce(victimDataPort)
	victim.acknowledge()
	p.vars["victim"], p.vars["attacker"] = victim, attacker
	return nil
}

func ftpFlood(p *play) error {
	c := p.vars["attacker"].(*ftpControl)
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
		for range 32 {
			c.announce(uint16(10_000 + p.rng.IntN(50_000)))
		}
		c.acknowledge()
		time.Sleep(100 * time.Microsecond)
	}
	return nil
}

// ftpVictim fails unless the switch forwards the data connection that the victim announced with a PORT
// command before the attack.
func ftpVictim(p *play) error {
	c := p.vars["victim"].(*ftpControl)
	c.client.drain()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		c.server.send(tcp(c.frame[:], c.ips[1], c.ips[0], 20, victimDataPort, 1, 0, tcpSYN, ""))
		c.server.flush()
		if c.client.drain() > 0 {
			return nil
		}
	}
	return fmt.Errorf("a connection that another guest has announced is no longer expected")
}
