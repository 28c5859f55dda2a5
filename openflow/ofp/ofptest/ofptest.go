// SPDX-License-Identifier: Apache-2.0

// Package ofptest encodes messages as a controller sends them, for tests. It does not import package ofp, so
// that the tests of ofp can import it.
package ofptest

import (
	"encoding/binary"

	of "weft/openflow"
)

var be = binary.BigEndian

const (
	// none is the number for no buffer, any port or any group.
	none        = 0xffffffff
	vendorType  = 4
	flowModType = 14
	nxFlowMod   = 13
	matchOXM    = 1
)

// Message returns a message with a body that consists of parts: numbers of 1, 2, 4 or 8
// bytes, and byte slices.
func Message(v of.Version, kind uint8, xid uint32, parts ...any) []byte {
	b := be.AppendUint32([]byte{byte(v), kind, 0, 0}, xid)
	for _, part := range parts {
		if raw, ok := part.([]byte); ok {
			b = append(b, raw...)
		} else {
			b, _ = binary.Append(b, be, part)
		}
	}
	be.PutUint16(b[2:], uint16(len(b)))
	return b
}

func padded(b []byte) []byte { return append(b, make([]byte, (8-len(b)%8)%8)...) }

// FlowMod returns the request that adds, modifies or deletes a flow. In OpenFlow 1.0
// this is Nicira's flow_mod with the table in the command.
func FlowMod(v of.Version, xid uint32, mod *of.FlowMod) []byte { return flowModWith(v, xid, mod, nil) }

// flowModWith returns what FlowMod returns. Its match may have the fields tun_metadata of the map tlvs.
func flowModWith(v of.Version, xid uint32, mod *of.FlowMod, tlvs *of.TLVMap) []byte {
	m := mod.Match.Unpack()
	match := of.AppendMatch(nil, &m, v, tlvs)
	times := be.AppendUint16(be.AppendUint16(be.AppendUint16(nil, mod.IdleTimeout), mod.HardTimeout), mod.Priority)
	outPort, outGroup := uint32(none), uint32(none)
	if mod.ByOutPort {
		outPort = of.WirePort(mod.OutPort)
	}
	if mod.ByOutGroup {
		outGroup = mod.OutGroup
	}
	if v == of.Version10 {
		return Message(v, vendorType, xid, uint32(of.NiciraVendor), uint32(nxFlowMod), mod.NewCookie,
			uint16(mod.Table)<<8|uint16(mod.Command), times, uint32(none), uint16(outPort),
			uint16(mod.Flags&(of.SendFlowRem|of.CheckOverlap)), uint16(len(match)), make([]byte, 6), padded(match),
			of.AppendActions(nil, mod.Actions, &m, v, tlvs))
	}
	cookie, mask := mod.NewCookie, uint64(0)
	if mod.Command != of.Add {
		cookie, mask = mod.Cookie, mod.CookieMask
	}
	match = padded(append(be.AppendUint16([]byte{0, matchOXM}, uint16(4+len(match))), match...))
	return Message(v, flowModType, xid, cookie, mask, mod.Table, uint8(mod.Command), times, uint32(none), outPort, outGroup,
		uint16(mod.Flags), mod.Importance, match, of.AppendInstructions(nil, mod.Actions, &m, v, tlvs))
}
