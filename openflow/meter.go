// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"io"
	"strings"

	"weft/flowtable"
)

func init() {
	addAction(ActMeter, actionRow{words: map[string]actionParse{"meter": (*actionParser).meter},
		format: func(a *Action, _ Names) string { return "meter:" + a.Value.decimal() }, encode: (*actionEncoder).meter})
}

// Limits of meters.
const (
	// MeterAll selects all meters in deletes and lists.
	MeterAll = 0xffffffff
	// MaxMeter is the highest meter number (OpenFlow 1.5, 7.3.2.5).
	MaxMeter = 0xffff0000
	// MeterController is the number of a meter that limits the frames to controllers: OFPM_CONTROLLER (OpenFlow
	// 1.3.1, A.3.4.4). It does not limit the frames of controller actions that name another meter.
	MeterController = 0xfffffffe
	// MaxBands is the largest number of bands in all meters of a switch. Each band has a token bucket in the
	// data path. A change that would exceed the limit fails.
	MaxBands = flowtable.MaxBands
)

// Meter is an entry of a bridge's meter table. The entry is immutable: a modification replaces it. A frame
// that exceeds the rate of a band is dropped or gets another DSCP, as the band says.
type Meter struct {
	ID uint32
	// Packets is true if the rates of the bands are in packets a second, false if in kilobits a second.
	Packets bool
	Burst   bool // the meter has the flag burst, which says that the bands have burst sizes
	Stats   bool
	Bands   []MeterBand
	// CreatedNS is the time of the add, CLOCK_MONOTONIC.
	CreatedNS uint64
}

// Words of ovs-ofctl(8) for the two types of meter bands.
const (
	bandDrop   = "drop"
	bandRemark = "dscp_remark"
)

// maxPrecedence is the highest value of MeterBand.Precedence, which has 8 bits on the wire. The drop
// precedence of a DSCP has only three levels (RFC 2597, 6). A band does not raise it beyond the third.
const maxPrecedence = 255

// MeterBand has a rate and a burst size, and says what happens to the frames that exceed them.
type MeterBand struct {
	Rate uint32 // packets or kilobits a second, not 0
	// BurstSize is the burst size in packets or kilobits. 0 stands for what Rate allows in one second.
	BurstSize uint32
	// If Precedence is not 0, the band is of type dscp_remark: it raises the drop precedence of the frame's
	// DSCP by this number (RFC 2597). If Precedence is 0, the band drops the frame.
	Precedence uint8
	// Slot is the index of the band's token bucket in the data path. ofproto.Tables assign it.
	Slot uint32
}

// Depth returns the capacity of the band's token bucket, in packets or kilobits.
func (b *MeterBand) Depth() uint32 {
	if b.BurstSize == 0 {
		return b.Rate
	}
	return b.BurstSize
}

// MeterCommand says what a MeterMod does: add, modify or delete.
type MeterCommand uint8

// These are the commands of OpenFlow's meter_mod.
const (
	MeterAdd    MeterCommand = iota
	MeterModify              // fails if the meter does not exist
	MeterDelete              // deletes the meter and its flows; ID MeterAll: all meters
)

// MeterMod is one change of the meter table.
type MeterMod struct {
	Command MeterCommand
	Meter   Meter
	Line    int // line number, see FlowMod.Line
}

// isMeter reports whether a meter may have this number: 1 to MaxMeter, or MeterController.
func isMeter(id uint32) bool { return id > 0 && id <= MaxMeter || id == MeterController }

// ParseMeterMod parses a meter in the syntax of ovs-ofctl's add-meter, mod-meter and
// del-meters. Errors are *ParseError.
func ParseMeterMod(text string, command MeterCommand) (MeterMod, error) {
	mod := MeterMod{Command: command, Meter: Meter{ID: MeterAll}}
	m := &mod.Meter
	bandsText, kilobits, hasID, hasBands := "", false, false, false
	for {
		t, rest, ok := nextToken(text)
		if !ok {
			break
		}
		text = rest
		switch t.key {
		case "meter":
			id, ok := parseUint(t.value, MaxMeter)
			switch {
			case t.value == "all":
				id = MeterAll
			case t.value == "controller":
				id = MeterController
			case !ok || id == 0:
				return mod, wrong(t.text, "a meter number from 1 to %d", uint32(MaxMeter))
			}
			m.ID, hasID = uint32(id), true
		case "kbps":
			kilobits = true
		case "pktps":
			m.Packets = true
		case "burst":
			m.Burst = true
		case "stats":
			m.Stats = true
		case "band", "bands":
			bandsText, hasBands, text = t.value+rest, true, ""
		default:
			return mod, wrong(t.text, "meter, kbps, pktps, burst, stats or bands")
		}
	}
	switch {
	case command == MeterDelete && (hasBands || kilobits || m.Packets):
		return mod, wrong("bands", "only a meter's number here")
	case command == MeterDelete:
		return mod, nil
	case !hasID || m.ID == MeterAll:
		return mod, wrong("meter", "meter=NUMBER")
	case kilobits == m.Packets:
		return mod, wrong("meter", "either kbps or pktps")
	case !hasBands:
		return mod, wrong("meter", "bands=type=drop,rate=NUMBER")
	}
	return mod, m.parseBands(bandsText)
}

// parseBands parses the bands of a meter. Each band begins with the word "type".
func (m *Meter) parseBands(text string) error {
	kind := ""
	for {
		t, rest, ok := nextToken(text)
		if !ok {
			break
		}
		text = rest
		if t.key == "type" {
			if t.value != bandDrop && t.value != bandRemark {
				return wrong(t.text, "type=drop or type=dscp_remark")
			}
			kind = t.value
			m.Bands = append(m.Bands, MeterBand{})
			if kind == bandRemark {
				m.Bands[len(m.Bands)-1].Precedence = 1
			}
			continue
		}
		if len(m.Bands) == 0 {
			return wrong(t.text, "a band that begins with type=drop or type=dscp_remark")
		}
		band := &m.Bands[len(m.Bands)-1]
		v, ok := parseUint(t.value, 1<<32-1)
		switch {
		case t.key == "prec_level" && kind == bandRemark:
			if !ok || v == 0 || v > maxPrecedence {
				return wrong(t.text, "a number from 1 to %d for prec_level", maxPrecedence)
			}
			band.Precedence = uint8(v)
		case t.key != "rate" && t.key != "burst_size":
			return wrong(t.text, "type, rate, burst_size or, with type=dscp_remark, prec_level")
		case !ok:
			return wrong(t.text, "a number of at most 32 bits")
		case t.key == "rate":
			band.Rate = uint32(v)
		case !m.Burst:
			return wrong(t.text, "burst_size only where the meter has the flag burst")
		default:
			band.BurstSize = uint32(v)
		}
	}
	for i := range m.Bands {
		switch b := &m.Bands[i]; {
		case b.Rate == 0:
			return wrong("rate", "a rate in each band, not 0")
		case m.Burst && b.BurstSize == 0:
			return wrong("burst_size", "a burst_size in each band of a meter with burst, not 0")
		}
	}
	if len(m.Bands) == 0 {
		return wrong("bands", "bands=type=drop,rate=NUMBER")
	}
	return nil
}

// ParseMeterMods parses a file of meters, one per line; # begins a comment. It stops at
// the first error, which names the line.
func ParseMeterMods(r io.Reader, command MeterCommand) ([]MeterMod, error) {
	var mods []MeterMod
	err := eachLine(r, func(line int, text string) error {
		mod, err := ParseMeterMod(text, command)
		mod.Line = line
		mods = append(mods, mod)
		return err
	})
	return mods, err
}

// FormatMeter returns the meter as one line that ParseMeterMod accepts.
func FormatMeter(m *Meter) string {
	var b strings.Builder
	if m.ID == MeterController {
		b.WriteString("meter=controller")
	} else {
		fmt.Fprintf(&b, "meter=%d", m.ID)
	}
	word := func(set bool, text string) {
		if set {
			b.WriteString(" " + text)
		}
	}
	word(!m.Packets, "kbps")
	word(m.Packets, "pktps")
	word(m.Burst, "burst")
	word(m.Stats, "stats")
	b.WriteString(" bands=")
	for i := range m.Bands {
		if i > 0 {
			b.WriteString(" ")
		}
		band, kind := &m.Bands[i], bandDrop
		if band.Precedence != 0 {
			kind = bandRemark
		}
		fmt.Fprintf(&b, "type=%s rate=%d", kind, band.Rate)
		if m.Burst {
			fmt.Fprintf(&b, " burst_size=%d", band.BurstSize)
		}
		if band.Precedence != 0 {
			fmt.Fprintf(&b, " prec_level=%d", band.Precedence)
		}
	}
	return b.String()
}

func (p *actionParser) meter(t token) (Action, error) {
	v, ok := parseUint(t.value, MaxMeter)
	if !ok || v == 0 {
		return Action{}, wrong(t.text, "meter:NUMBER, from 1 to %d", uint32(MaxMeter))
	}
	p.check.strict = true
	return Action{Kind: ActMeter, Value: Value64(v)}, nil
}
