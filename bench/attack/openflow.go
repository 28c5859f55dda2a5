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

// This file has attacks of a peer that speaks OpenFlow to the switch's own unix socket.

func openflowAttacks() []*attack {
	return []*attack{
		{name: "flow-monitors", attacker: "OpenFlow peer", summary: "as many flow monitors as it may have, which match nothing, beside changes of 3,000 flows",
			setup: flowMonitors, play: changeManyFlows, memory: 256 << 20, exclusive: true},
		{name: "bundles", attacker: "OpenFlow peer", summary: "32 connections that fill bundles and commit none",
			setup: fillBundles, play: countBundles, peak: 256 << 20, exclusive: true},
		{name: "silent-tls", attacker: "OpenFlow peer", summary: "192 connections to the TLS listener that say nothing, from six addresses, and more all the time",
			setup: silentTLS, play: enterBesideSilent, exclusive: true},
		{name: "tlv-maps", attacker: "OpenFlow peer", summary: "adds and deletes maps of Geneve options (tlv_table_mod) without end",
			setup: tlvSetup, play: churnTLVs, exclusive: true},
	}
}

// Types of OpenFlow 1.4 messages (section 7), and sizes of the attack with flow monitors.
const (
	openflow14         = 5
	openflowHello      = 0
	openflowError      = 1
	openflowExperiment = 4
	openflowMultipart  = 18
	multipartMonitor   = 16
	anyPort            = 0xffffffff
	monitorAll         = 1 << 1 // OFPFMF_ADD
	connectionsTried   = 90
	monitorsOfOne      = 64
	manyFlows          = 3000
	openflowHeaderSize = 8
)

// openflowConn is an OpenFlow connection of the attacker. xid is the number of its last request.
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

// answer reads messages until one answers the last request, and returns the type of this message.
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

// monitorRequest returns the body of a request for n flow monitors. They match an in_port that no flow
// has.
func monitorRequest(first, n int) []byte {
	b := []byte{0, multipartMonitor, 0, 0, 0, 0, 0, 0}
	for i := range n {
		b = binary.BigEndian.AppendUint32(b, uint32(first+i))
		b = binary.BigEndian.AppendUint32(b, anyPort)
		b = binary.BigEndian.AppendUint32(b, anyPort)
		b = append(b, 0, monitorAll, 0xff, 0)
		b = append(b, 0, 1, 0, 12, 0x80, 0, 0, 4)                        // match of 12 bytes: OXM of in_port
		b = append(binary.BigEndian.AppendUint32(b, 0xfe01), 0, 0, 0, 0) // a port that does not exist, padded to 16 bytes
	}
	return b
}

// flowMonitors opens connections with monitors until the switch refuses one. Before that, it measures
// how long the addition of many flows takes without monitors.
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
			break // the switch allows no more connections
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

// addManyFlows adds manyFlows flows in one request, and then deletes them. It returns how long the
// addition took.
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

// Open vSwitch's message tlv_table_mod (nicira-ext.h), and its commands.
const (
	tlvTableMod = 24
	tlvAdd      = 0
	tlvDelete   = 1
	tlvMaps     = 16
)

// tlvBody returns the body of a tlv_table_mod with tlvMaps maps of Geneve options of four bytes.
func tlvBody(command uint16) []byte {
	b := binary.BigEndian.AppendUint32(nil, niciraVendor)
	b = binary.BigEndian.AppendUint32(b, tlvTableMod)
	b = append(binary.BigEndian.AppendUint16(b, command), 0, 0, 0, 0, 0, 0)
	for i := range tlvMaps {
		b = append(b, 0xff, 0xfe, byte(i), 4, 0, byte(i), 0, 0)
	}
	return b
}

func tlvSetup(p *play) error {
	c, err := p.dialOpenFlow()
	if err != nil {
		return err
	}
	p.vars["connection"] = c
	return nil
}

// churnTLVs adds mappings of Geneve options to the TLV table and deletes them. It fails if the switch
// refuses to add or to delete them.
func churnTLVs(p *play) error {
	c := p.vars["connection"].(*openflowConn)
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
		for _, command := range []uint16{tlvAdd, tlvDelete} {
			if err := c.send(openflowExperiment, tlvBody(command)); err != nil {
				return err
			}
			change := c.xid
			if err := c.send(openflowEcho, nil); err != nil {
				return err
			}
			if err := c.echoed(change); err != nil {
				return fmt.Errorf("command %d of tlv_table_mod: %w", command, err)
			}
		}
	}
	return nil
}

// echoed waits for the answer to the last request. It returns an error if the switch has refused the
// request with number xid, which was sent before.
func (c *openflowConn) echoed(xid uint32) error {
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	refused := error(nil)
	for {
		var header [openflowHeaderSize]byte
		if _, err := io.ReadFull(c, header[:]); err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint16(header[2:]))-openflowHeaderSize); err != nil {
			return err
		}
		switch id := binary.BigEndian.Uint32(header[4:]); {
		case id == xid && header[1] == openflowError:
			refused = errors.New("the switch refuses the change")
		case id == c.xid:
			return refused
		}
	}
}
