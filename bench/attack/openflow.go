// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"time"

	"weft/api"
)

// Attacks of a peer that speaks OpenFlow to the switch's own socket.

func openflowAttacks() []*attack {
	return []*attack{
		{name: "flow-monitors", attacker: "OpenFlow peer", summary: "as many flow monitors as it may have, which match nothing, beside changes of 3,000 flows",
			setup: flowMonitors, play: changeManyFlows, memory: 256 << 20, exclusive: true},
		{name: "bundles", attacker: "OpenFlow peer", summary: "32 connections that fill bundles and commit none",
			setup: fillBundles, play: countBundles, peak: 256 << 20, exclusive: true},
		{name: "silent-tls", attacker: "OpenFlow peer", summary: "192 connections to the TLS listener that say nothing, from six addresses, and more all the time",
			setup: silentTLS, play: enterBesideSilent, exclusive: true},
	}
}

// Messages of OpenFlow 1.4 (section 7).
const (
	openflow14         = 5
	openflowHello      = 0
	openflowError      = 1
	openflowMultipart  = 18
	multipartMonitor   = 16
	anyPort            = 0xffffffff
	monitorAll         = 1 << 1 // OFPFMF_ADD
	connectionsTried   = 90
	monitorsOfOne      = 64
	manyFlows          = 3000
	openflowHeaderSize = 8
)

// openflowConn is a connection of the attacker.
type openflowConn struct {
	net.Conn
	xid uint32
}

func (p *play) dialOpenFlow() (*openflowConn, error) {
	path := strings.TrimSuffix(p.site.daemon.Socket, filepath.Ext(p.site.daemon.Socket)) + ".mgmt"
	c, err := net.DialTimeout("unix", path, patience)
	if err != nil {
		return nil, err
	}
	p.later(func() { c.Close() })
	o := &openflowConn{Conn: c}
	return o, o.send(openflowHello, nil)
}

func (c *openflowConn) send(kind byte, body []byte) error {
	c.xid++
	b := []byte{openflow14, kind, 0, 0}
	binary.BigEndian.PutUint16(b[2:], uint16(openflowHeaderSize+len(body)))
	_, err := c.Write(append(binary.BigEndian.AppendUint32(b, c.xid), body...))
	return err
}

// answer reads messages up to the one with the number of the last request, and returns its type.
func (c *openflowConn) answer() (kind byte, err error) {
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	for {
		var header [openflowHeaderSize]byte
		if _, err := io.ReadFull(c, header[:]); err != nil {
			return 0, err
		}
		n := int64(binary.BigEndian.Uint16(header[2:])) - openflowHeaderSize
		if _, err := io.CopyN(io.Discard, c, n); err != nil {
			return 0, err
		}
		if binary.BigEndian.Uint32(header[4:]) == c.xid {
			return header[1], nil
		}
	}
}

// monitorRequest returns the body of a request for monitors of flows with one in_port, which no
// flow has.
func monitorRequest(first, n int) []byte {
	b := []byte{0, multipartMonitor, 0, 0, 0, 0, 0, 0}
	for i := range n {
		b = binary.BigEndian.AppendUint32(b, uint32(first+i))
		b = binary.BigEndian.AppendUint32(b, anyPort)
		b = binary.BigEndian.AppendUint32(b, anyPort)
		b = append(b, 0, monitorAll, 0xff, 0)
		b = append(b, 0, 1, 0, 12, 0x80, 0, 0, 4)                        // OXM match of 12 bytes, in_port
		b = append(binary.BigEndian.AppendUint32(b, 0xfe01), 0, 0, 0, 0) // padded to 16
	}
	return b
}

// flowMonitors opens connections with monitors until the switch refuses. Before that it adds flows
// without them.
func flowMonitors(p *play) error {
	p.later(func() { p.site.daemon.TryWeft("del-flows", "cookie="+p.cookie()+"/-1") })
	alone, err := p.addManyFlows()
	if err != nil {
		return err
	}
	p.vars["alone"] = alone
	accepted := 0
	for range connectionsTried {
		c, err := p.dialOpenFlow()
		if err != nil {
			break // at the limit of connections
		}
		if err := c.send(openflowMultipart, monitorRequest(1, monitorsOfOne)); err != nil {
			break
		}
		kind, err := c.answer()
		if err != nil {
			break
		}
		if kind != openflowError {
			accepted += monitorsOfOne
		}
	}
	if accepted == 0 {
		return errors.New("the switch has accepted no monitor")
	}
	p.vars["accepted"] = accepted
	return nil
}

// addManyFlows adds flows in one request, and deletes them again. It returns the time of the
// addition.
func (p *play) addManyFlows() (duration time.Duration, err error) {
	var lines []string
	for i := range manyFlows {
		lines = append(lines, fmt.Sprintf("cookie=%s,priority=5,dl_type=0x88b6,dl_dst=02:fe:00:00:%02x:%02x,actions=drop", p.cookie(), i>>8, i&0xff))
	}
	began := time.Now()
	if _, err := p.site.client.ChangeFlows(api.ChangeFlows{Op: "add", Text: strings.Join(lines, "\n"), File: true}); err != nil {
		return 0, err
	}
	duration = time.Since(began)
	_, err = p.site.client.DelFlows("cookie="+p.cookie()+"/-1", false)
	return duration, err
}

func changeManyFlows(p *play) error {
	beside, err := p.addManyFlows()
	p.notes = fmt.Sprintf("%d monitors; %d flows added in %d ms, alone in %d ms", p.vars["accepted"], manyFlows,
		beside.Milliseconds(), p.vars["alone"].(time.Duration).Milliseconds())
	return err
}
