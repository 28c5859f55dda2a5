// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// This file saves a table when a daemon stops, and loads it when the next one starts. Connections have
// times of CLOCK_MONOTONIC, so they are loaded only if the machine has not rebooted. Settings are always
// loaded.

// saveMagic is the start of a saved table. Its number is incremented when the format changes.
const saveMagic = "weft connections 1\n"

// bootBytes is the size of the boot identifier in a saved table, in bytes.
const bootBytes = 64

// savesTried is the number of attempts to read a connection while an engine changes it. If all
// fail, the connection is not saved.
const savesTried = 8

// savedConn is the size of one saved connection in bytes: 26 words of 64 bits.
const savedConn = 26 * 8

// Copy fills the empty table m with the settings and live connections of the table "from". If m is too
// small, the last connections are left out. If an engine has "from" open, m misses later changes. Copy
// returns the number of connections that m has then.
func (m *Memory) Copy(from *Memory) int {
	const now = 0 // before every expiry, so Copy includes expired connections; the engine ends them
	r, w := io.Pipe()
	go func() { w.CloseWithError(from.Save(w, "", now)) }()
	n, _ := m.Load(r, "", now) // error ignored: m has room for no more connections
	r.Close()
	return n
}

// Save writes the settings and connections of the table to w. If an engine has the table open, Save may
// leave out connections that change meanwhile. boot identifies the machine's current boot in at most
// bootBytes bytes. now is CLOCK_MONOTONIC in nanoseconds.
func (m *Memory) Save(w io.Writer, boot string, now uint64) error {
	out := bufio.NewWriterSize(w, 1<<20)
	var id [bootBytes]byte
	copy(id[:], boot)
	buf := append([]byte(saveMagic), id[:]...)
	le := binary.LittleEndian
	for _, s := range m.head.seeds {
		buf = le.AppendUint64(buf, s)
	}
	s := m.settings
	for _, v := range []uint32{s.liberal.Load(), s.limit.Load(), s.zoneDefault.Load()} {
		buf = le.AppendUint32(buf, v)
	}
	for i := range m.policies {
		for c := range m.policies[i] {
			buf = le.AppendUint64(buf, m.policies[i][c].Load())
		}
	}
	for i := range m.zones {
		buf = le.AppendUint32(buf, m.zones[i].limit.Load())
		buf = append(buf, byte(m.zones[i].policy.Load()))
	}
	if _, err := out.Write(buf); err != nil {
		return err
	}
	for n := range min(m.head.fresh, uint32(len(m.conns))) {
		if _, err := out.Write(m.settled(buf[:0], n, now)); err != nil {
			return err
		}
	}
	return out.Flush()
}

// settled appends a copy of connection n to buf. It appends nothing if the connection has ended, has
// expired, or changes during savesTried attempts. A worker that changes a connection locks it in the word
// meta, so an unchanged meta shows that the copy is consistent. If the connection is locked in all
// attempts, its engine was killed, and the copy is used. An engine with one worker takes no locks
// (Table.solo). The copy may then have half of a change of the label or of the TCP state.
func (m *Memory) settled(buf []byte, n uint32, now uint64) []byte {
	c := &m.conns[n]
	for try := 1; try <= savesTried; try++ {
		before := c.meta.Load()
		if before&1 == 0 || c.expired(now) {
			break
		}
		if before>>32 != 0 && try < savesTried {
			wait(maxLockPauses)
			continue
		}
		if saved := m.appendConn(buf, n); c.metaAfter() == before {
			return saved
		}
	}
	return buf
}

func (m *Memory) appendConn(buf []byte, n uint32) []byte {
	le := binary.LittleEndian
	c := &m.conns[n]
	var label [2]uint64
	if c.flags&connLabelled != 0 {
		label = m.labels[n]
	}
	var peers [2]peer
	if hasPeers(c.tuples[0].proto()) {
		peers = m.peers[n]
	}
	for _, v := range []uint64{
		c.tuples[0].a, c.tuples[0].b, c.tuples[1].a, c.tuples[1].b, c.expiresNS,
		uint64(c.mark)<<32 | uint64(c.flags)<<16 | uint64(c.policy)<<8 | uint64(c.class), label[0], label[1],
		uint64(c.port)<<16 | uint64(c.list),
	} {
		buf = le.AppendUint64(buf, v)
	}
	for i := range peers {
		p := &peers[i]
		for _, v := range []uint64{
			uint64(p.end)<<32 | uint64(p.maxEnd), uint64(p.maxWin)<<32 | uint64(p.scale)<<16 | uint64(p.flags)<<8 | uint64(p.phase),
		} {
			buf = le.AppendUint64(buf, v)
		}
	}
	for _, v := range m.addresses(n) {
		buf = le.AppendUint64(buf, v)
	}
	if c.flags&connFTP != 0 {
		buf = appendShifts(buf, &m.shifts[n])
	}
	for len(buf) < savedConn {
		buf = append(buf, 0)
	}
	return buf
}

// Load fills an empty table with the output of Save. It loads the connections only if boot is the
// same as at Save, and returns their number. No engine may have the table open.
func (m *Memory) Load(r io.Reader, boot string, now uint64) (int, error) {
	in := bufio.NewReaderSize(r, 1<<20)
	head := make([]byte, len(saveMagic)+bootBytes+8*len(m.head.seeds)+12+8*int(classes)*MaxPolicies+5*Zones)
	if _, err := io.ReadFull(in, head); err != nil {
		return 0, fmt.Errorf("saved connections: %w", err)
	}
	if magic := string(head[:len(saveMagic)]); magic != saveMagic {
		return 0, fmt.Errorf("saved connections have another format version, %q: want %q", magic, saveMagic)
	}
	le := binary.LittleEndian
	head = head[len(saveMagic):]
	var id [bootBytes]byte
	copy(id[:], boot)
	same := string(head[:bootBytes]) == string(id[:])
	head = head[bootBytes:]
	for i := range m.head.seeds {
		m.head.seeds[i] = le.Uint64(head[8*i:])
	}
	head = head[8*len(m.head.seeds):]
	m.settings.liberal.Store(le.Uint32(head))
	m.settings.limit.Store(le.Uint32(head[4:]))
	m.settings.zoneDefault.Store(le.Uint32(head[8:]))
	head = head[12:]
	for i := range m.policies {
		for c := range m.policies[i] {
			m.policies[i][c].Store(le.Uint64(head))
			head = head[8:]
		}
	}
	for i := range m.zones {
		m.zones[i].limit.Store(le.Uint32(head))
		m.zones[i].policy.Store(uint32(head[4]))
		head = head[5:]
	}
	if !same {
		return 0, nil
	}
	t := Open(*m, 1)
	buf := make([]byte, savedConn)
	for n := 0; ; n++ {
		if _, err := io.ReadFull(in, buf); err != nil {
			if err == io.EOF {
				return n, nil
			}
			return n, err
		}
		if !t.adopt(buf) {
			return n, errors.New("more saved connections than the table has records")
		}
	}
}

// adopt adds a saved connection, which buf has in the format of appendConn, to the table. It returns
// false if the table is full.
func (t *Table) adopt(buf []byte) bool {
	t.lock()
	defer t.unlock()
	n := t.allocRecord()
	if n == none {
		return false
	}
	word := func() uint64 {
		v := binary.LittleEndian.Uint64(buf)
		buf = buf[8:]
		return v
	}
	c := &t.conns[n]
	c.tuples = [2]words{{word(), word()}, {word(), word()}}
	c.expiresNS = word()
	v := word()
	c.mark, c.flags, c.policy, c.class = uint32(v>>32), uint16(v>>16), uint8(v>>8), Class(v)%classes
	if label := [2]uint64{word(), word()}; c.flags&connLabelled != 0 {
		t.labels[n] = label
	}
	v = word()
	list := min(uint8(v), listEstablished)
	c.port = uint16(v >> 16)
	var peers [2]peer
	for i := range peers {
		a, b := word(), word()
		peers[i] = peer{end: uint32(a >> 32), maxEnd: uint32(a), maxWin: uint32(b >> 32), scale: uint8(b >> 16), flags: uint8(b >> 8), phase: phase(b)}
	}
	if hasPeers(c.tuples[0].proto()) {
		t.peers[n] = peers
	}
	var long addresses
	for i := range long {
		long[i] = word()
	}
	if c.tuples[0].ipv6() {
		t.setAddresses(n, c.flags, (*[4]uint64)(long[:4]), (*[4]uint64)(long[4:]))
	}
	if c.flags&connFTP != 0 {
		t.shifts[n] = readShifts(word)
	}
	c.flags &^= connRelated // the parent's number has changed
	t.links[n] = links{}
	if !t.insert(t.hashOf(n, 0), n) {
		t.freeRecord(n)
		return false
	}
	if c.flags&connTranslated != 0 && !t.insert(t.hashOf(n, 1), n) {
		t.remove(t.hashOf(n, 0), n)
		t.freeRecord(n)
		return false
	}
	c.born = c.generation() + 1
	c.meta.Store(uint64(c.born))
	t.enrol(n)
	t.join(n, list)
	return true
}
