// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	of "weft/openflow"
	"weft/openflow/ofproto"
)

// DecodeFlowSelection decodes a request for flow statistics or aggregate statistics. The result is a filter:
// a FlowMod with the command Delete that would delete the selected flows.
func DecodeFlowSelection(r *Request) (of.FlowMod, error) {
	mod := of.FlowMod{Command: of.Delete}
	b := reader{b: r.Body, tlvs: r.TLVs}
	var m of.Match
	var err error
	switch {
	case r.Kind == NXFlowStats || r.Kind == NXAggregateStats:
		outPort, n := b.u16(), int(b.u16())
		mod.Table = b.u8()
		b.skip(3)
		mod.ByOutPort, mod.OutPort = outPort != uint16(of.PortNone), uint32(outPort)
		if !b.short {
			m, mod.Cookie, mod.CookieMask, err = b.nxm(n)
		}
	case r.Version == v10:
		match := b.take(of.Match10Len)
		mod.Table = b.u8()
		b.skip(1)
		outPort := b.u16()
		mod.ByOutPort, mod.OutPort = outPort != uint16(of.PortNone), uint32(outPort)
		m = of.DecodeMatch10(match)
	default:
		mod.Table = b.u8()
		b.skip(3)
		outPort, outGroup := b.u32(), b.u32()
		b.skip(4)
		cookie, mask := b.u64(), b.u64()
		mod.Cookie, mod.CookieMask = cookie&mask, mask
		mod.ByOutGroup, mod.OutGroup = outGroup != anyGroup, outGroup
		if mod.ByOutPort = outPort != anyPort; mod.ByOutPort {
			var ok bool
			if mod.OutPort, ok = of.PortFromWire(outPort); !ok {
				return mod, coded(of.ErrBadPort, "out_port %d: expected a port", outPort)
			}
		}
		if !b.short {
			m, err = b.match()
		}
	}
	if err == nil {
		err = b.err("flow statistics")
	}
	mod.Match = m.Pack()
	return mod, err
}

const second = 1_000_000_000

func appendDuration(b []byte, ns uint64) []byte {
	return be.AppendUint32(be.AppendUint32(b, uint32(ns/second)), uint32(ns%second))
}

// age returns the nanoseconds from startNS to "now", or 0 if startNS is later.
func age(now, startNS uint64) uint64 { return now - min(now, startNS) }

// AppendFlowStats appends the statistics of one flow (rule) to a reply. now is the present time of
// CLOCK_MONOTONIC in nanoseconds.
func AppendFlowStats(b []byte, r *Request, rule *ofproto.Rule, now uint64) []byte {
	start, m := len(b), rule.Match.Unpack()
	switch {
	case r.Kind == NXFlowStats:
		b = append(b, 0, 0, rule.Table, 0)
		b = appendTimes(appendDuration(b, age(now, rule.CreatedNS)), rule)
		at := len(b)
		b = zeros(b, 2)
		b = be.AppendUint16(b, wireAge(now, max(rule.UsedNS, rule.CreatedNS)))
		b = be.AppendUint16(b, wireAge(now, rule.ModifiedNS))
		b = appendCounters(b, rule)
		var n uint16
		b, n = appendNXM(b, &m, r.TLVs)
		be.PutUint16(b[at:], n)
		b = of.AppendActions(b, rule.Actions, &m, v10, r.TLVs)
	case r.Version == v10:
		b = of.AppendMatch10(append(b, 0, 0, rule.Table, 0), &m)
		b = appendTimes(appendDuration(b, age(now, rule.CreatedNS)), rule)
		b = appendCounters(zeros(b, 6), rule)
		b = of.AppendActions(b, rule.Actions, &m, v10, r.TLVs)
	case r.Version >= v15:
		b = append(b, 0, 0, 0, 0, rule.Table, 0)
		b = be.AppendUint16(appendTimes(b, rule), uint16(rule.Flags|rule.AddFlags))
		b = be.AppendUint64(be.AppendUint16(b, rule.Importance), rule.Cookie)
		b = appendOXS(appendMatch(b, &m, r.Version, r.TLVs), now, rule)
		b = of.AppendInstructions(b, rule.Actions, &m, r.Version, r.TLVs)
	default:
		b = append(b, 0, 0, rule.Table, 0)
		b = appendTimes(appendDuration(b, age(now, rule.CreatedNS)), rule)
		b = be.AppendUint16(b, uint16(rule.Flags|rule.AddFlags))
		importance := rule.Importance
		if r.Version < v14 {
			importance = 0
		}
		b = appendCounters(zeros(be.AppendUint16(b, importance), 2), rule)
		b = of.AppendInstructions(appendMatch(b, &m, r.Version, r.TLVs), rule.Actions, &m, r.Version, r.TLVs)
	}
	if n := len(b) - start; n <= maxMessageLen {
		be.PutUint16(b[start:], uint16(n))
	}
	return b
}

// wireAge returns the time from startNS to "now" as Nicira's flow statistics encode it: the seconds plus 1.
func wireAge(now, startNS uint64) uint16 { return uint16(min(age(now, startNS)/second+1, 0xffff)) }

func appendTimes(b []byte, rule *ofproto.Rule) []byte {
	return be.AppendUint16(be.AppendUint16(be.AppendUint16(b, rule.Priority), rule.IdleTimeout), rule.HardTimeout)
}

func appendCounters(b []byte, rule *ofproto.Rule) []byte {
	return be.AppendUint64(be.AppendUint64(be.AppendUint64(b, rule.Cookie), rule.Packets), rule.Bytes)
}

// Class and field numbers of OpenFlow 1.5's statistics fields (OXS; 7.2.4).
const (
	oxsClass    = 0x8002
	oxsDuration = 0
	oxsIdle     = 1
	oxsFlows    = 3
	oxsPackets  = 4
	oxsBytes    = 5
)

func oxs(b []byte, field, length uint8) []byte {
	return append(be.AppendUint16(b, oxsClass), field<<1, length)
}

// beginOXS appends the header of a list of OpenFlow 1.5's statistics fields (OXS). When the list is
// complete, endOXS writes the length into this header.
func beginOXS(b []byte) []byte { return zeros(b, 4) }

func endOXS(b []byte, start int) []byte {
	be.PutUint16(b[start+2:], uint16(len(b)-start))
	return pad(b, start)
}

func appendOXS(b []byte, now uint64, rule *ofproto.Rule) []byte {
	start := len(b)
	b = appendDuration(oxs(beginOXS(b), oxsDuration, 8), age(now, rule.CreatedNS))
	b = appendDuration(oxs(b, oxsIdle, 8), age(now, max(rule.UsedNS, rule.CreatedNS)))
	b = be.AppendUint64(oxs(b, oxsPackets, 8), rule.Packets)
	return endOXS(be.AppendUint64(oxs(b, oxsBytes, 8), rule.Bytes), start)
}

// AppendAggregate appends the body of a reply to an aggregate request: the sums of packets, bytes and flows.
func AppendAggregate(b []byte, r *Request, packets, bytes uint64, flows uint32) []byte {
	if r.Version >= v15 {
		start := len(b)
		b = be.AppendUint32(oxs(beginOXS(b), oxsFlows, 4), flows)
		b = be.AppendUint64(oxs(b, oxsPackets, 8), packets)
		return endOXS(be.AppendUint64(oxs(b, oxsBytes, 8), bytes), start)
	}
	return zeros(be.AppendUint32(be.AppendUint64(be.AppendUint64(b, packets), bytes), flows), 4)
}

// reasons maps the reason of a rule's removal to the reason's number in a flow_removed message (OpenFlow
// 1.5, 7.4.2).
var reasons = map[ofproto.Why]uint8{ofproto.WhyIdle: 0, ofproto.WhyHard: 1, ofproto.WhyDeleted: 2, ofproto.WhyGroup: 3, ofproto.WhyMeter: 4, ofproto.WhyEvicted: 5}

// RemovedReason returns the number of a reason in the flow_removed messages of version v. For a reason that
// the version does not have, it returns the number of "delete".
func RemovedReason(v Version, reason ofproto.Why) uint8 {
	n := reasons[reason]
	if v < v14 && n > 3 || v == v10 && n > 2 {
		return reasons[ofproto.WhyDeleted]
	}
	return n
}

// AppendFlowRemoved appends the flow_removed message about a rule that has left its table. nxm is true if
// the controller uses OpenFlow 1.0 and has requested Nicira's form of the message, whose match consists of
// NXM fields.
func AppendFlowRemoved(b []byte, v Version, nxm bool, rule *ofproto.Rule, now uint64, tlvs *of.TLVMap) []byte {
	start, m := len(b), rule.Match.Unpack()
	reason := RemovedReason(v, rule.Why)
	head := func(b []byte) []byte {
		return be.AppendUint16(be.AppendUint64(b, rule.Cookie), rule.Priority)
	}
	switch {
	case v == v10 && nxm:
		b = be.AppendUint32(be.AppendUint32(Begin(b, v, TypeExperimenter, 0), nicira), 14)
		b = appendDuration(append(head(b), reason, rule.Table+1), age(now, rule.CreatedNS))
		b = be.AppendUint16(b, rule.IdleTimeout)
		at := len(b)
		b = be.AppendUint64(be.AppendUint64(zeros(b, 2), rule.Packets), rule.Bytes)
		var n uint16
		b, n = appendNXM(b, &m, tlvs)
		be.PutUint16(b[at:], n)
	case v == v10:
		b = of.AppendMatch10(Begin(b, v, TypeFlowRemoved, 0), &m)
		b = appendDuration(append(head(b), reason, 0), age(now, rule.CreatedNS))
		b = be.AppendUint64(be.AppendUint64(zeros(be.AppendUint16(b, rule.IdleTimeout), 2), rule.Packets), rule.Bytes)
	case v >= v15:
		b = append(Begin(b, v, TypeFlowRemoved, 0), rule.Table, reason)
		b = be.AppendUint64(appendTimes(b, rule), rule.Cookie)
		b = appendOXS(appendMatch(b, &m, v, tlvs), now, rule)
	default:
		b = appendDuration(append(head(Begin(b, v, TypeFlowRemoved, 0)), reason, rule.Table), age(now, rule.CreatedNS))
		b = be.AppendUint16(be.AppendUint16(b, rule.IdleTimeout), rule.HardTimeout)
		b = be.AppendUint64(be.AppendUint64(b, rule.Packets), rule.Bytes)
		b = appendMatch(b, &m, v, tlvs)
	}
	return End(b, start)
}
