// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"
)

// This file has the attack of a peer that opens TCP connections to the OpenFlow listener for TLS and
// sends nothing.

const (
	openflowTLSPort = 6653
	openflowEcho    = 2
	// silentAddresses is the number of addresses from which the attacker connects, because the switch
	// limits the connections of each address.
	silentAddresses   = 6
	silentConnections = 192
)

// silentDialer opens TCP connections to hostIP that send nothing, from several addresses of the peer.
type silentDialer struct {
	play *play
	open []net.Conn // oldest first
}

// peerAddresses adds n addresses to the peer's device and returns them.
func (p *play) peerAddresses(n int) (list []string) {
	for i := range n {
		address := fmt.Sprint("172.16.0.", 40+i)
		if _, err := p.site.peer.Try("ip", "address", "add", address+"/24", "dev", "u0"); err == nil {
			p.later(func() { _, _ = p.site.peer.Try("ip", "address", "del", address+"/24", "dev", "u0") })
		}
		list = append(list, address)
	}
	return list
}

func (p *play) dialFromPeer(from string) (c net.Conn, err error) {
	err = p.site.peer.Do(func() (err error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
		c, err = d.Dial("tcp", fmt.Sprint(hostIP, ":", openflowTLSPort))
		return err
	})
	return c, err
}

// add opens n connections. It closes the oldest connections beyond silentConnections, which the switch
// has closed before.
func (d *silentDialer) add(n int) error {
	addresses := d.play.vars["addresses"].([]string)
	for range n {
		c, err := d.play.dialFromPeer(addresses[d.play.rng.IntN(len(addresses))])
		if err != nil {
			return err
		}
		d.open = append(d.open, c)
	}
	for len(d.open) > silentConnections {
		d.open[0].Close()
		d.open = d.open[1:]
	}
	return nil
}

func silentTLS(p *play) error {
	d := &silentDialer{play: p}
	p.vars["addresses"], p.vars["dialer"] = p.peerAddresses(silentAddresses), d
	p.later(func() {
		for _, c := range d.open {
			c.Close()
		}
	})
	return d.add(silentConnections)
}

// enterBesideSilent opens more silent connections. It fails unless two other OpenFlow peers then get
// answers: one on the local unix socket, and one that has a certificate.
func enterBesideSilent(p *play) error {
	if err := p.vars["dialer"].(*silentDialer).add(8); err != nil {
		return err
	}
	began := time.Now()
	path := strings.TrimSuffix(p.site.daemon.Socket, filepath.Ext(p.site.daemon.Socket)) + ".mgmt"
	c, err := net.DialTimeout("unix", path, patience)
	if err == nil {
		err = echoOpenFlow(c)
	}
	if err != nil {
		return fmt.Errorf("a local peer: %w", err)
	}
	p.slowest = max(p.slowest, time.Since(began))
	cert, err := tls.LoadX509KeyPair(filepath.Join(p.site.certs, "cert.pem"), filepath.Join(p.site.certs, "key.pem"))
	if err != nil {
		return err
	}
	began = time.Now()
	if c, err = p.dialFromPeer(peerIP); err == nil {
		err = echoOpenFlow(tls.Client(c, &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true}))
	}
	if err != nil {
		return fmt.Errorf("a peer with a certificate: %w", err)
	}
	p.slowest = max(p.slowest, time.Since(began))
	return nil
}

// echoOpenFlow sends hello and an echo request, waits for the answer, and closes the connection.
func echoOpenFlow(c net.Conn) error {
	defer c.Close()
	o := &openflowConn{Conn: c}
	_ = c.SetDeadline(time.Now().Add(patience))
	if err := errors.Join(o.send(openflowHello, nil), o.send(openflowEcho, nil)); err != nil {
		return err
	}
	_, err := o.answer()
	return err
}
