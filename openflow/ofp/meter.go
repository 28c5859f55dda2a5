// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	of "weft/openflow"
	"weft/openflow/ofproto"
)

// Flags in a meter's configuration (OpenFlow 1.5, 7.3.4.5).
const (
	meterKbps  = 1
	meterPktps = 2
	meterBurst = 4
	meterStats = 8

	bandDrop   = 1
	bandRemark = 2
	bandLen    = 16
	meterAll   = 0xffffffff // selects all meters, as of.MeterAll does
)

// DecodeMeterMod decodes a meter_mod, a change of the meter table.
func DecodeMeterMod(r *Request) (mod of.MeterMod, err error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	command, flags, id := b.u16(), b.u16(), b.u32()
	if err := b.err("meter_mod"); err != nil {
		return mod, err
	}
	if mod.Command = of.MeterCommand(command); command > uint16(of.MeterDelete) {
		return mod, coded(of.ErrMeterBadCommand, "meter_mod: unknown command %d", command)
	}
	m := &mod.Meter
	m.ID = id
	switch {
	case mod.Command == of.MeterDelete && id == meterAll:
		m.ID = of.MeterAll
		return mod, nil
	case id != of.MeterController && (id == 0 || id > of.MaxMeter):
		return mod, coded(of.ErrMeterInvalid, "meter_mod: meter %d: expected a number from 1 to %d", id, uint32(of.MaxMeter))
	case mod.Command == of.MeterDelete:
		return mod, nil
	case flags&^(meterKbps|meterPktps|meterBurst|meterStats) != 0, flags&meterKbps != 0 && flags&meterPktps != 0:
		return mod, coded(of.ErrMeterBadFlags, "meter_mod: flags %#x: expected kbps or pktps", flags)
	}
	m.Packets, m.Burst, m.Stats = flags&meterPktps != 0, flags&meterBurst != 0, flags&meterStats != 0
	for len(b.b) > 0 {
		kind, n := b.u16(), b.u16()
		band := of.MeterBand{Rate: b.u32(), BurstSize: b.u32()}
		precedence := b.u8()
		b.skip(3)
		if kind == bandRemark {
			band.Precedence = precedence
		}
		switch {
		case b.short || n != bandLen:
			return mod, coded(of.ErrBadRequestLen, "meter_mod: a band has a wrong length")
		case kind != bandDrop && kind != bandRemark:
			return mod, coded(of.ErrMeterBadBand, "meter_mod: band of type %d: expected drop or dscp_remark", kind)
		case kind == bandRemark && precedence == 0:
			return mod, coded(of.ErrMeterBadBandValue, "meter_mod: expected a prec_level above 0")
		case band.Rate == 0:
			return mod, coded(of.ErrMeterBadRate, "meter_mod: expected a rate above 0")
		case len(m.Bands) == of.MaxBands:
			return mod, coded(of.ErrMeterOutOfBands, "meter_mod: expected at most %d bands", of.MaxBands)
		}
		if !m.Burst {
			band.BurstSize = 0
		}
		m.Bands = append(m.Bands, band)
	}
	if len(m.Bands) == 0 {
		return mod, coded(of.ErrMeterBadBand, "meter_mod: expected a band")
	}
	return mod, nil
}

// DecodeMeterSelection decodes a request for information about meters. It returns a meter's number, or
// of.MeterAll if the request is about all meters.
func DecodeMeterSelection(r *Request) (id uint32, err error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	return b.u32(), b.err("meter statistics")
}

// AppendMeterConfig appends the configuration of one meter, its flags and bands, to a reply.
func AppendMeterConfig(b []byte, m *of.Meter) []byte {
	start, flags := len(b), uint16(meterKbps)
	if m.Packets {
		flags = meterPktps
	}
	if m.Burst {
		flags |= meterBurst
	}
	if m.Stats {
		flags |= meterStats
	}
	b = be.AppendUint32(be.AppendUint16(zeros(b, 2), flags), m.ID)
	for i := range m.Bands {
		k := &m.Bands[i]
		kind := uint16(bandDrop)
		if k.Precedence != 0 {
			kind = bandRemark
		}
		b = be.AppendUint16(be.AppendUint16(b, kind), bandLen)
		b = append(be.AppendUint32(be.AppendUint32(b, k.Rate), k.BurstSize), k.Precedence, 0, 0, 0)
	}
	be.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

// MeterCounters has the counters of a meter and the number of the flows that use it.
type MeterCounters struct {
	ID, Flows      uint32
	Packets, Bytes uint64
	DurationNS     uint64
	Bands          []ofproto.BucketStats // frames that each band has dropped
}

// AppendMeterStats appends the counters of one meter and of its bands to a reply.
func AppendMeterStats(b []byte, c *MeterCounters) []byte {
	start := len(b)
	b = zeros(be.AppendUint32(b, c.ID), 8)
	b = be.AppendUint64(be.AppendUint64(be.AppendUint32(b, c.Flows), c.Packets), c.Bytes)
	b = appendDuration(b, c.DurationNS)
	for _, k := range c.Bands {
		b = be.AppendUint64(be.AppendUint64(b, k.Packets), k.Bytes)
	}
	be.PutUint16(b[start+4:], uint16(len(b)-start))
	return b
}

// AppendMeterFeatures appends the body of the reply to a meter features request: limits, band types and
// capabilities.
func AppendMeterFeatures(b []byte) []byte {
	b = be.AppendUint32(be.AppendUint32(b, of.MaxBands), 1<<bandDrop|1<<bandRemark)
	b = be.AppendUint32(b, meterKbps|meterPktps|meterBurst|meterStats)
	return append(b, 0xff, 0, 0, 0)
}
