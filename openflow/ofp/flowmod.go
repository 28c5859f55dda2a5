// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	of "weft/openflow"
)

// In OpenFlow messages, these numbers mean no buffer, any port, any group and no cookie.
const (
	noBuffer = 0xffffffff
	anyPort  = 0xffffffff
	anyGroup = 0xffffffff
	noCookie = ^uint64(0)
)

// flagEmergency is OpenFlow 1.0's flag of a flow_mod for the emergency flow table, which Weft does not have.
const flagEmergency = 4

// DecodeFlowMod decodes a flow_mod, a change of the flow tables. tableInCommand is true if the controller
// uses OpenFlow 1.0 and has enabled Nicira's extension flow_mod_table_id. The upper byte of the command is
// then the table's number.
func DecodeFlowMod(r *Request, tableInCommand bool) (of.FlowMod, error) {
	switch {
	case r.Kind == NXFlowMod:
		return decodeNXFlowMod(r, tableInCommand)
	case r.Version == v10:
		return decodeFlowMod10(r, tableInCommand)
	}
	return decodeFlowMod13(r)
}

func decodeFlowMod10(r *Request, tableInCommand bool) (mod of.FlowMod, err error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	match := b.take(of.Match10Len)
	mod.NewCookie = b.u64()
	command := b.u16()
	mod.IdleTimeout, mod.HardTimeout, mod.Priority = b.u16(), b.u16(), b.u16()
	buffer, outPort, flags := b.u32(), b.u16(), b.u16()
	if err := b.err("flow_mod"); err != nil {
		return mod, err
	}
	m := of.DecodeMatch10(match)
	if of.Exact10(match) {
		mod.Priority = 0xffff // OpenFlow 1.0, 3.4: flows without wildcards have the highest priority
	}
	return finish10(r, mod, m, command, tableInCommand, buffer, outPort, flags, b.b)
}

func decodeNXFlowMod(r *Request, tableInCommand bool) (mod of.FlowMod, err error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	mod.NewCookie = b.u64()
	command := b.u16()
	mod.IdleTimeout, mod.HardTimeout, mod.Priority = b.u16(), b.u16(), b.u16()
	buffer, outPort, flags := b.u32(), b.u16(), b.u16()
	n := int(b.u16())
	b.skip(6)
	if err := b.err("flow_mod"); err != nil {
		return mod, err
	}
	var m of.Match
	if m, mod.Cookie, mod.CookieMask, err = b.nxm(n); err != nil {
		return mod, err
	}
	if command&0xff == uint16(of.Add) && mod.CookieMask != 0 {
		return mod, coded(of.ErrFlowBadFlags, "flow_mod: expected no match on the cookie in an add")
	}
	return finish10(r, mod, m, command, tableInCommand, buffer, outPort, flags, b.b)
}

// finish10 decodes those fields that the standard flow_mod of OpenFlow 1.0 and Nicira's flow_mod have in
// common.
func finish10(r *Request, mod of.FlowMod, m of.Match, command uint16, tableInCommand bool, buffer uint32, outPort, flags uint16, actions []byte) (of.FlowMod, error) {
	mod.Table = of.TableAll
	if tableInCommand {
		mod.Table = uint8(command >> 8)
		command &= 0xff
	}
	mod.ModifyCookie = mod.NewCookie != noCookie
	if flags&flagEmergency != 0 {
		return mod, coded(of.ErrFlowTableFull, "flow_mod: expected no flow of the emergency table")
	}
	if mod.Command = of.Command(command); command > uint16(of.DeleteStrict) {
		return mod, coded(of.ErrFlowBadCommand, "flow_mod: unknown command %d", command)
	}
	if buffer != noBuffer && mod.Command < of.Delete {
		return mod, coded(of.ErrBufferUnknown, "flow_mod: weft buffers no frames")
	}
	mod.ByOutPort, mod.OutPort = outPort != uint16(of.PortNone), uint32(outPort)
	if mod.Command < of.Delete {
		mod.ByOutPort = false
	}
	if err := setFlags(&mod, flags, r.Version); err != nil {
		return mod, err
	}
	return withActions(&mod, &m, r, actions)
}

func decodeFlowMod13(r *Request) (mod of.FlowMod, err error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	cookie, mask := b.u64(), b.u64()
	mod.Table = b.u8()
	command := b.u8()
	mod.IdleTimeout, mod.HardTimeout, mod.Priority = b.u16(), b.u16(), b.u16()
	buffer, outPort, outGroup, flags, importance := b.u32(), b.u32(), b.u32(), b.u16(), b.u16()
	if err := b.err("flow_mod"); err != nil {
		return mod, err
	}
	m, err := b.match()
	if err != nil {
		return mod, err
	}
	if mod.Command = of.Command(command); command > uint8(of.DeleteStrict) {
		return mod, coded(of.ErrFlowBadCommand, "flow_mod: unknown command %d", command)
	}
	if buffer != noBuffer && mod.Command < of.Delete {
		return mod, coded(of.ErrBufferUnknown, "flow_mod: weft buffers no frames")
	}
	if mod.Table == of.TableAll && mod.Command < of.Delete {
		return mod, coded(of.ErrFlowBadTableID, "flow_mod: expected a table from 0 to 254")
	}
	if mod.Command == of.Add {
		mod.NewCookie, mod.ModifyCookie = cookie, true
		if r.Version >= v14 {
			mod.Importance = importance
		}
	} else {
		mod.Cookie, mod.CookieMask, mod.ModifyOnly = cookie&mask, mask, true
	}
	if mod.Command >= of.Delete {
		if mod.ByOutPort = outPort != anyPort; mod.ByOutPort {
			var ok bool
			if mod.OutPort, ok = of.PortFromWire(outPort); !ok {
				return mod, coded(of.ErrBadPort, "flow_mod: out_port %d: expected a port", outPort)
			}
		}
		mod.ByOutGroup, mod.OutGroup = outGroup != anyGroup, outGroup
	}
	if err := setFlags(&mod, flags, r.Version); err != nil {
		return mod, err
	}
	return withActions(&mod, &m, r, b.b)
}

// setFlags sets the flags of a decoded flow_mod whose command is already set. An add of OpenFlow 1.0 always
// resets the counters and has no flag for it; setFlags sets the flag of later versions in its place.
func setFlags(mod *of.FlowMod, flags uint16, v Version) error {
	known := of.SendFlowRem | of.CheckOverlap
	if v != v10 {
		known |= of.ResetCounts | of.NoPacketCounts | of.NoByteCounts
	}
	mod.Flags = of.Flags(flags)
	if mod.Flags&^known != 0 {
		return coded(of.ErrFlowBadFlags, "flow_mod: unknown flags %#x", flags)
	}
	if v == v10 && mod.Command == of.Add {
		mod.Flags |= of.ResetCounts
	}
	mod.KeepCounts = v != v10 && mod.Flags&of.ResetCounts == 0
	return nil
}

// withActions completes a decoded flow_mod: it decodes the actions in b and sets the match to m. A delete
// gets no actions.
func withActions(mod *of.FlowMod, m *of.Match, r *Request, b []byte) (of.FlowMod, error) {
	c := of.ActionContext{Version: r.Version, Match: m, Table: mod.Table, TLVs: r.TLVs}
	var err error
	if r.Version == v10 {
		mod.Actions, err = of.DecodeActions(b, c)
	} else {
		mod.Actions, err = of.DecodeInstructions(b, c)
	}
	if mod.Match = m.Pack(); mod.Command >= of.Delete {
		mod.Actions = nil
	}
	if mod.Command == of.Add && mod.Table == of.TableAll {
		mod.Table = 0
	}
	mod.NoteTLVs(m, r.TLVs)
	return *mod, err
}
