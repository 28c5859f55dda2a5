// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	of "weft/openflow"
)

// PacketOutRequest is a decoded packet_out. Match has the frame's in_port. In OpenFlow 1.5 it may also have
// metadata, registers and tunnel fields.
type PacketOutRequest struct {
	Match   of.Match
	Actions []of.Action
	Frame   []byte // part of the request's message
}

// DecodePacketOut decodes a packet_out, with which a controller sends a frame through the switch.
func DecodePacketOut(r *Request) (request PacketOutRequest, err error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	buffer, inPort, n := b.u32(), uint32(0), 0
	switch {
	case r.Version == v10:
		inPort, n = uint32(b.u16()), int(b.u16())
	case r.Version < v15:
		wire := b.u32()
		var ok bool
		if inPort, ok = of.PortFromWire(wire); !ok {
			return request, coded(of.ErrBadPort, "packet_out: in_port %d: expected a port", wire)
		}
		n = int(b.u16())
		b.skip(6)
	default:
		n = int(b.u16())
		b.skip(2)
		if b.short {
			break
		}
		if request.Match, err = b.matchAs(of.DecodeMetadata); err != nil {
			return request, err
		}
		inPort = of.InPortOf(&request.Match)
	}
	actions := b.take(n)
	if err := b.err("packet_out"); err != nil {
		return request, err
	}
	if buffer != noBuffer {
		return request, coded(of.ErrBufferUnknown, "packet_out: weft buffers no frames")
	}
	if inPort >= of.PortMax && inPort != of.PortLocal && inPort != of.PortNone && inPort != of.PortController {
		return request, coded(of.ErrBadPort, "packet_out: in_port %d: expected a port that frames come from", inPort)
	}
	of.SetInPort(&request.Match, inPort)
	request.Actions, err = of.DecodeActions(actions, of.ActionContext{Version: r.Version, Table: of.TableAll, PacketOut: true, TLVs: r.TLVs})
	request.Frame = b.b
	return request, err
}

// PacketIn is a frame that the switch sends to a controller in a packet_in message.
type PacketIn struct {
	Frame    []byte // the first bytes of the frame
	Total    int    // length of the whole frame
	Reason   uint8
	Table    uint8
	Cookie   uint64
	Metadata of.Match // in_port and the other fields that are not in the frame's bytes
	Userdata string
	InPort   uint32
	// Continuation is the paused translation of the frame. The controller returns it in an NXT_RESUME to
	// continue the translation. Only the form packet_in2 has it. It is nil if the translation is not paused.
	Continuation []byte
	TLVs         *of.TLVMap // of the bridge, for Metadata
}

// PacketInFormat is the form of packet_in messages. A controller selects it by Nicira's message
// set_packet_in_format.
type PacketInFormat uint32

// Forms of packet_in, with their numbers in Nicira's message set_packet_in_format.
const (
	PacketInStandard PacketInFormat = 0
	PacketInNXM      PacketInFormat = 1
	PacketIn2        PacketInFormat = 2
)

// Reasons of a packet_in.
const (
	ReasonNoMatch    = 0
	ReasonAction     = 1
	ReasonInvalidTTL = 2
	reasonActionSet  = 3 // in OpenFlow 1.4 and later, which also have the reasons group (4) and packet_out (5)
	// ReasonMiss is the reason for a frame that a table-miss flow (priority 0, matches everything) sends.
	// OpenFlow 1.3 and later encode it as "no match", OpenFlow 1.0 as "action".
	ReasonMiss = 0xff
)

// Types of the properties of Nicira's packet_in2.
const (
	packetInFrame    = 0
	packetInLen      = 1
	packetInBuffer   = 2
	packetInTable    = 3
	packetInCookie   = 4
	packetInReason   = 5
	packetInMetadata = 6
	packetInUserdata = 7

	packetInContinuation = 8
	continuationPad      = 4 // padding at the start of a property that itself has properties
)

// PacketInReason returns the number of a reason in the packet_in messages of version v.
func PacketInReason(v Version, reason uint8) uint8 {
	switch {
	case reason == ReasonMiss && v == v10:
		return ReasonAction
	case reason == ReasonMiss:
		return ReasonNoMatch
	}
	if v < v14 && reason >= reasonActionSet {
		return ReasonAction
	}
	return reason
}

// AppendPacketIn appends a packet_in. If the frame is too long for a message, the packet_in has only its
// first bytes. It then has no Continuation, because the controller must return the whole frame in an
// NXT_RESUME.
func AppendPacketIn(b []byte, v Version, format PacketInFormat, p *PacketIn) []byte {
	whole := appendPacketIn(b, v, format, p)
	excess := len(whole) - len(b) - maxMessageLen
	if excess <= 0 {
		return whole
	}
	const added = 16 // property packetInLen, and padding
	short := *p
	short.Frame, short.Continuation = p.Frame[:max(0, len(p.Frame)-excess-added)], nil
	return appendPacketIn(b, v, format, &short)
}

func appendPacketIn(b []byte, v Version, format PacketInFormat, p *PacketIn) []byte {
	start, reason := len(b), PacketInReason(v, p.Reason)
	total := uint16(min(p.Total, 0xffff))
	switch {
	case format == PacketIn2:
		b = be.AppendUint32(be.AppendUint32(Begin(b, v, TypeExperimenter, 0), nicira), 30)
		b = property(b, packetInFrame, p.Frame)
		if len(p.Frame) != p.Total {
			b = property(b, packetInLen, be.AppendUint32(nil, uint32(p.Total)))
		}
		b = property(b, packetInTable, []byte{p.Table})
		if p.Cookie != noCookie {
			// Properties with a value of 64 bits have 4 bytes of padding before the
			// value.
			b = property(b, packetInCookie, be.AppendUint64(make([]byte, 4), p.Cookie))
		}
		b = property(b, packetInReason, []byte{reason})
		b = property(b, packetInMetadata, of.AppendMatch(nil, &p.Metadata, v, p.TLVs))
		if p.Userdata != "" {
			b = property(b, packetInUserdata, []byte(p.Userdata))
		}
		if p.Continuation != nil {
			b = property(b, packetInContinuation, append(make([]byte, continuationPad), p.Continuation...))
		}
		return End(b, start)
	case format == PacketInNXM:
		b = be.AppendUint32(be.AppendUint32(Begin(b, v, TypeExperimenter, 0), nicira), 17)
		b = append(be.AppendUint16(be.AppendUint32(b, noBuffer), total), reason, p.Table)
		b = be.AppendUint64(b, p.Cookie)
		at := len(b)
		var n uint16
		b, n = appendNXM(zeros(b, 8), &p.Metadata, p.TLVs)
		be.PutUint16(b[at:], n)
		b = zeros(b, 2)
	case v == v10:
		b = be.AppendUint16(be.AppendUint32(Begin(b, v, TypePacketIn, 0), noBuffer), total)
		b = append(be.AppendUint16(b, uint16(p.InPort)), reason, 0)
	default:
		b = be.AppendUint16(be.AppendUint32(Begin(b, v, TypePacketIn, 0), noBuffer), total)
		b = be.AppendUint64(append(b, reason, p.Table), p.Cookie)
		b = zeros(appendMatch(b, &p.Metadata, v, p.TLVs), 2)
	}
	return End(append(b, p.Frame...), start)
}
