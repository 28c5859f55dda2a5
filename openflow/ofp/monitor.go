// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	of "weft/openflow"
	"weft/openflow/ofproto"
)

// Flags of a flow monitor request (OpenFlow 1.5, 7.3.5.19, and Open vSwitch's extension).
const (
	MonitorInitial = 1 << 0
	MonitorAdd     = 1 << 1
	MonitorDelete  = 1 << 2
	MonitorModify  = 1 << 3
	MonitorActions = 1 << 4
	MonitorOwn     = 1 << 5 // events about the controller's own changes have all details, too
	monitorOnlyOwn = 1 << 6 // OpenFlow 1.4 and later
)

// MonitorOnlyOwn is OpenFlow 1.4's flag for events about only those changes that the controller has made
// itself. Open vSwitch treats it like MonitorOwn.
const MonitorOnlyOwn = monitorOnlyOwn

// Monitor is a controller's request for events about flows. Select is the filter: only changes of these
// flows are reported.
type Monitor struct {
	ID     uint32
	Flags  uint16
	Cancel bool // end the monitor with this ID
	Modify bool // replace the monitor with this ID
	Select of.FlowMod
}

// DecodeMonitors decodes all flow monitors that one message requests.
func DecodeMonitors(r *Request) ([]Monitor, error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	var list []Monitor
	for len(b.b) > 0 {
		m, err := b.monitor(r)
		if err == nil {
			err = b.err("flow_monitor")
		}
		if err != nil {
			return nil, err
		}
		known := uint16(1<<6 - 1)
		if r.Version >= v14 {
			known |= monitorOnlyOwn
		}
		if m.Flags&^known != 0 {
			return nil, coded(of.ErrMonitorBadFlags, "flow_monitor: unknown flags %#x", m.Flags)
		}
		list = append(list, m)
	}
	return list, nil
}

func (b *reader) monitor(r *Request) (m Monitor, err error) {
	m.Select.Command = of.Delete
	s := &m.Select
	outPort, match := uint32(0), of.Match{}
	m.ID = b.u32()
	switch {
	case r.Version >= v14:
		outPort = b.u32()
		group := b.u32()
		s.ByOutGroup, s.OutGroup = group != anyGroup, group
		m.Flags, s.Table = b.u16(), b.u8()
		switch command := b.u8(); command {
		case 0:
		case 1:
			m.Modify = true
		case 2:
			m.Cancel = true
		default:
			return m, coded(of.ErrMonitorBadCommand, "flow_monitor: unknown command %d", command)
		}
		if !b.short {
			match, err = b.match()
		}
	case r.Version == v13:
		m.Flags = b.u16()
		b.skip(2)
		outPort, s.Table = b.u32(), b.u8()
		b.skip(3)
		if !b.short {
			match, err = b.match()
		}
	default:
		m.Flags, outPort = b.u16(), uint32(b.u16())
		n := int(b.u16())
		s.Table = b.u8()
		b.skip(5)
		if outPort == of.PortNone {
			outPort = anyPort
		} else {
			outPort = of.WirePort(outPort)
		}
		if !b.short {
			match, s.Cookie, s.CookieMask, err = b.nxm(n)
		}
	}
	if s.ByOutPort = outPort != anyPort; s.ByOutPort {
		s.OutPort, _ = of.PortFromWire(outPort)
	}
	s.Match = match.Pack()
	return m, err
}

// DecodeMonitorCancel decodes the request to end a flow monitor. It returns the ID of the monitor.
func DecodeMonitorCancel(r *Request) (uint32, error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	return b.u32(), b.err("flow_monitor_cancel")
}

// FlowEvent is the kind of an event of a flow monitor.
type FlowEvent uint8

// A flow monitor reports these events.
const (
	FlowInitial FlowEvent = iota
	FlowAdded
	FlowDeleted
	FlowModified
	flowAbbreviated
)

// eventNumber returns the number that encodes an event in version v. The flow monitors of Nicira and of ONF
// report initial flows as added flows, so their numbers are lower by 1.
func eventNumber(v Version, e FlowEvent) uint16 {
	if v >= v14 {
		return uint16(e)
	}
	return uint16(max(e, FlowAdded) - 1)
}

// AppendFlowUpdate appends an event of a flow monitor to a reply. "actions" says whether the event includes
// the flow's actions. If the event is FlowDeleted, it includes the reason rule.Why.
func AppendFlowUpdate(b []byte, v Version, e FlowEvent, rule *ofproto.Rule, actions bool, tlvs *of.TLVMap) []byte {
	start, m := len(b), rule.Match.Unpack()
	reason := uint8(0)
	if e == FlowDeleted {
		reason = RemovedReason(v, rule.Why)
	}
	b = be.AppendUint16(zeros(b, 2), eventNumber(v, e))
	if v >= v14 {
		b = append(b, rule.Table, reason)
		b = be.AppendUint16(be.AppendUint16(b, rule.IdleTimeout), rule.HardTimeout)
		b = zeros(be.AppendUint16(b, rule.Priority), 4)
		b = appendMatch(be.AppendUint64(b, rule.Cookie), &m, v, tlvs)
	} else {
		b = be.AppendUint16(be.AppendUint16(b, uint16(reason)), rule.Priority)
		b = be.AppendUint16(be.AppendUint16(b, rule.IdleTimeout), rule.HardTimeout)
		at := len(b)
		b = append(b, 0, 0, rule.Table, 0)
		b = be.AppendUint64(b, rule.Cookie)
		if v == v10 {
			var n uint16
			b, n = appendNXM(b, &m, tlvs)
			be.PutUint16(b[at:], n)
		} else {
			from := len(b)
			b = appendMatch(b, &m, v, tlvs)
			be.PutUint16(b[at:], be.Uint16(b[from+2:]))
		}
	}
	if actions && e != FlowDeleted {
		if v == v10 {
			b = of.AppendActions(b, rule.Actions, &m, v, tlvs)
		} else {
			b = of.AppendInstructions(b, rule.Actions, &m, v, tlvs)
		}
	}
	be.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

// AppendAbbreviatedUpdate appends an event of a flow monitor without details. A controller gets it instead
// of full events if it has made the changes itself. xid is that of its request.
func AppendAbbreviatedUpdate(b []byte, v Version, xid uint32) []byte {
	const size = 8
	return be.AppendUint32(be.AppendUint16(be.AppendUint16(b, size), eventNumber(v, flowAbbreviated)), xid)
}

// NewMonitorUpdate begins a multipart reply for events of flow monitors. The xid is 0, because no request
// has caused the reply.
func NewMonitorUpdate(v Version) *Reply {
	r := &Request{Header: Header{Version: v}}
	switch v {
	case v10:
		r.key = messageKey{v, multipartExperimenter, nicira, 2}
	case v13:
		r.key = messageKey{v, multipartExperimenter, onf, 1870}
	default:
		r.key = messageKey{version: v, class: multipart, number: 16}
	}
	return NewReply(r)
}
