// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"time"

	"weft/api"
	"weft/internal/buildinfo"
)

// pcapng writes captured frames to w in the format of draft-ietf-opsawg-pcapng. Each port of the switch is an
// interface of the file. The comment of a frame says what the switch did with the frame.
type pcapng struct {
	w          io.Writer
	interfaces map[string]uint32 // number of the file's interface for each port, by the port's name
	lost       uint64
	latest     time.Time
	buf        []byte
}

// Types of blocks (sections 4.1 to 4.6 of the draft), options of blocks (section 3.5 and the section of the
// block), and values in them.
const (
	blockSection    = 0x0a0d0d0a
	blockInterface  = 1
	blockStatistics = 5
	blockPacket     = 6

	optEnd         = 0
	optComment     = 1
	optUserAppl    = 4 // program that wrote the file; an option of a section
	optName        = 2 // name of an interface; an option of an interface
	optResolution  = 9 // unit of timestamps; an option of an interface
	optPacketFlags = 2 // direction of a frame; an option of a packet
	optIfDrop      = 5 // number of lost frames; an option of statistics

	linkEthernet = 1
	byteOrder    = 0x1a2b3c4d
	nanoseconds  = 9
	inbound      = 1
	outbound     = 2
)

func newPcapng(w io.Writer) (*pcapng, error) {
	p := &pcapng{w: w, interfaces: map[string]uint32{}}
	p.begin(blockSection)
	p.u32(byteOrder)
	p.u32(1) // version 1.0
	p.u32(0xffffffff)
	p.u32(0xffffffff) // with the word before: the section's length is unknown
	p.option(optUserAppl, []byte("weft "+buildinfo.Own().Version))
	return p, p.end()
}

func (p *pcapng) u32(v uint32) { p.buf = binary.LittleEndian.AppendUint32(p.buf, v) }

func (p *pcapng) padded(data []byte) {
	p.buf = append(p.buf, data...)
	for len(p.buf)%4 != 0 {
		p.buf = append(p.buf, 0)
	}
}

// maxOption is the limit of an option's value in bytes. A longer value is truncated.
const maxOption = 1<<16 - 1

func (p *pcapng) option(code uint16, value []byte) {
	value = value[:min(len(value), maxOption)]
	p.buf = binary.LittleEndian.AppendUint16(p.buf, code)
	p.buf = binary.LittleEndian.AppendUint16(p.buf, uint16(len(value)))
	p.padded(value)
}

func (p *pcapng) begin(block uint32) {
	p.buf = p.buf[:0]
	p.u32(block)
	p.u32(0) // room for the block's length, which the method "end" writes
}

func (p *pcapng) end() error {
	p.option(optEnd, nil)
	length := uint32(len(p.buf) + 4)
	p.u32(length)
	binary.LittleEndian.PutUint32(p.buf[4:], length)
	_, err := p.w.Write(p.buf)
	return err
}

func (p *pcapng) time(t time.Time) {
	ns := uint64(t.UnixNano())
	p.u32(uint32(ns >> 32))
	p.u32(uint32(ns))
}

func (p *pcapng) port(name string) (uint32, error) {
	if no, ok := p.interfaces[name]; ok {
		return no, nil
	}
	no := uint32(len(p.interfaces))
	p.interfaces[name] = no
	p.begin(blockInterface)
	p.u32(linkEthernet)
	p.u32(0) // the length of captured frames has no limit
	p.option(optName, []byte(name))
	p.option(optResolution, []byte{nanoseconds})
	return no, p.end()
}

func (p *pcapng) frame(f *api.Captured) error {
	no, err := p.port(f.Port)
	if err != nil {
		return err
	}
	p.lost, p.latest = f.Lost, f.Time
	p.begin(blockPacket)
	p.u32(no)
	p.time(f.Time)
	p.u32(uint32(len(f.Data)))
	p.u32(uint32(f.Len))
	p.padded(f.Data)
	switch f.Kind {
	case api.CapturedIn:
		p.option(optPacketFlags, binary.LittleEndian.AppendUint32(nil, inbound))
	case api.CapturedOut:
		p.option(optPacketFlags, binary.LittleEndian.AppendUint32(nil, outbound))
	}
	p.option(optComment, []byte(comment(f)))
	return p.end()
}

func (p *pcapng) close() error {
	for no := range uint32(len(p.interfaces)) {
		p.begin(blockStatistics)
		p.u32(no)
		p.time(p.latest)
		p.option(optIfDrop, binary.LittleEndian.AppendUint64(nil, p.lost))
		if err := p.end(); err != nil {
			return err
		}
	}
	return nil
}

func comment(f *api.Captured) string {
	text := "port " + f.Port
	switch f.Kind {
	case api.CapturedIn:
		text += " in"
	case api.CapturedOut:
		text += " out"
	}
	if f.InPort != f.Port {
		text += ", from port " + f.InPort
	}
	return text + ": " + verdict(f)
}

func verdict(f *api.Captured) string {
	text := map[string]string{
		api.VerdictDropped:   "dropped: " + f.Reason,
		api.VerdictControl:   "held until control has translated its flow",
		api.VerdictNeighbour: "held until the tunnel's next hop is known",
		api.VerdictMerged:    "went on in one frame with the segment before it",
	}[f.Verdict]
	if f.Verdict == api.VerdictSent {
		text = "sent"
		if f.Kind != api.CapturedOut {
			text += " to " + strings.Join(f.Outputs, ", ")
			if n := f.OutputCount - len(f.Outputs); n > 0 {
				text += fmt.Sprintf(" and %d more", n)
			}
		}
		if f.Reason != "" {
			text += ", dropped on the way to others: " + f.Reason
		}
	}
	if f.HeldUS > 0 {
		text += fmt.Sprintf(", %.0f µs after it missed", f.HeldUS)
	}
	return text
}
