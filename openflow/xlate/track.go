// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/openflow"
	"weft/packet"
)

// This file translates ct actions. Only the datapath knows the connection of a frame,
// so the translation ends with a second look-up in the datapath. If the second look-up
// misses, a second translation starts in the table that the ct action names
// (recirc.go).

// ct emits a ct action, and a second look-up if the action names a table. Later
// actions of the list see the frame as untracked.
func (x *xlate) ct(c *openflow.CTSpec) {
	r := flowtable.CTRequest{Zone: c.Zone}
	if c.ZoneSrc.Field != openflow.FNone {
		r.Zone = uint16(x.read(c.ZoneSrc)[1])
	}
	x.ctBits(c, &r)
	x.ctExec(c.Exec, &r)
	x.commit()
	for _, a := range r.AppendTo(nil) {
		x.emit(a)
	}
	x.tracks = true
	x.sent = x.sent || !x.halted // a frame that ct has tracked does not count as dropped
	if c.NAT != nil {
		x.forgetEndpoints()
	}
	if c.Table != openflow.TableAll {
		x.resumeAt(c.Table)
	}
	x.untrack()
}

func (x *xlate) ctBits(c *openflow.CTSpec, r *flowtable.CTRequest) {
	for _, b := range []struct {
		set bool
		bit uint32
	}{
		{c.Commit, flowtable.CTCommit}, {c.Force, flowtable.CTForce},
		{c.ALG == "ftp", flowtable.CTFTP}, {c.ALG == "tftp", flowtable.CTTFTP},
	} {
		if b.set {
			r.Bits |= b.bit
		}
	}
	n := c.NAT
	if n == nil {
		return
	}
	r.Bits |= flowtable.CTNAT
	switch {
	case n.Src:
		r.Bits |= flowtable.CTNATSrc
	case n.Dst:
		r.Bits |= flowtable.CTNATDst
	}
	if n.Persistent {
		r.Bits |= flowtable.CTPersistent
	}
	if n.Hash {
		r.Bits |= flowtable.CTHash
	}
	if n.Random {
		r.Bits |= flowtable.CTRandom
	}
	if n.Lo.IsValid() {
		r.Bits |= flowtable.CTRange
		if n.Lo.Is6() {
			r.Bits |= flowtable.CTIPv6
		}
		r.Lo, r.Hi, r.PortLo, r.PortHi = openflow.AddrValue(n.Lo), openflow.AddrValue(n.Hi), n.PortLo, n.PortHi
	}
}

// ctExec collects the values of ct_mark and ct_label that the actions in exec(...)
// set.
func (x *xlate) ctExec(list []openflow.Action, r *flowtable.CTRequest) {
	for i := range list {
		a := &list[i]
		v, mask := a.Value, a.Mask
		switch a.Kind {
		case openflow.ActLoad:
			mask = a.Dst.Ones()
		case openflow.ActMove:
			if !x.hasField(a.Src.Field) {
				continue
			}
			v, mask = x.read(a.Src), a.Dst.Ones()
		}
		v, mask = v.And(mask).Shl(uint(a.Dst.Offset)), mask.Shl(uint(a.Dst.Offset))
		if a.Dst.Field == openflow.FCTMark {
			r.Mark = r.Mark&^uint32(mask[1]) | uint32(v[1])
			r.MarkMask |= uint32(mask[1])
			continue
		}
		r.Bits |= flowtable.CTLabel
		r.Label = openflow.Value128(r.Label).AndNot(mask).Or(v)
		r.LabelMask = openflow.Value128(r.LabelMask).Or(mask)
	}
}

// forgetEndpoints forgets what the translation knows of the frame's addresses and ports, because NAT may
// change them. A later action reads them anew. It also forgets the changes that earlier actions made to
// them: these are already emitted.
func (x *xlate) forgetEndpoints() {
	forget := func(word int, mask uint64) {
		x.keep[word] |= mask
		x.baseKeep[word] |= mask
	}
	forget(flowtable.WIPv4, ^uint64(0))
	forget(flowtable.WL4, 0xffffffff<<32)
	for w := flowtable.WIPv6Src; w < flowtable.WTunID; w++ {
		forget(w, ^uint64(0))
	}
}

// resumeAt emits a second look-up in the datapath. If this look-up misses, a new
// translation starts in the given table.
func (x *xlate) resumeAt(table uint8) {
	f := x.freeze(table)
	x.recirculate(&f)
	x.note("continues in the next table after tracking")
}

// freeze returns the present state of the translation. Another translation continues from it, with a
// look-up in the table.
func (x *xlate) freeze(table uint8) Frozen {
	f := Frozen{Table: table, Bridge: x.p.Bridge(), InPort: x.patch, Bare: x.bare, Queue: x.queue, Mirrored: x.mirrored}
	copy(f.State[:], x.flow[flowtable.KeyWords:])
	for i := range f.Tunnel {
		f.TunnelSet[i] = ^x.keep[flowtable.WTunID+i]
		f.Tunnel[i] = x.flow[flowtable.WTunID+i] & f.TunnelSet[i]
	}
	f.TLVs = x.freezeTLVs()
	if len(x.actionSet) > 0 {
		f.ActionSet = openflow.FormatActions(x.actionSet, openflow.WithTLVs(nil, x.p.TLVs()))
	}
	f.Stack = x.freezeStack()
	return f
}

// recirculate emits a second look-up, whose translation continues from the state f.
func (x *xlate) recirculate(f *Frozen) {
	if x.halted { // the stack is too large
		return
	}
	freezer, ok := x.env.(Freezer)
	if !ok {
		x.halt(packet.DropLoop)
		return
	}
	id, ok := freezer.Freeze(x.cameIn, f)
	if !ok {
		x.refuse()
		x.halt(packet.DropLoop)
		return
	}
	x.emit(flowtable.Action{Op: flowtable.OpRecirc, U32: id})
	x.sent = x.sent || !x.halted
}

// refuse records that a quota of the input port is used up, so the frame is dropped. The megaflow of
// this drop matches the port, because other ports have quotas of their own.
func (x *xlate) refuse() {
	x.refused = true
	x.wc[flowtable.WPort] |= flowtable.InPortBits
}

// untrack clears the ct_* fields.
func (x *xlate) untrack() {
	for w := flowtable.WCT; w < flowtable.KeyWords; w++ {
		x.flow[w], x.keep[w] = 0, 0
	}
}

// ctClear executes the action ct_clear: it makes the frame untracked.
func (x *xlate) ctClear() {
	if x.tracks {
		x.emit(flowtable.Action{Op: flowtable.OpCTClear})
	}
	x.untrack()
}

// resume restores the translation state that the key's recirc_id identifies. Every
// megaflow matches the whole recirc_id, which is 0 in a frame's first look-up. The
// translation continues with the returned actions, or, if they are nil, with a look-up in
// the table.
func (x *xlate) resume() (table uint8, actions []openflow.Action, ok bool) {
	const word = flowtable.WPort
	x.wc[word] |= 0xffffffff
	id := uint32(x.flow[word])
	if id == 0 {
		return 0, nil, x.takeOptions()
	}
	x.tracks = true
	freezer, ok := x.env.(Freezer)
	if !ok {
		return 0, nil, false
	}
	f, ok := freezer.Frozen(id)
	if !ok {
		return 0, nil, false
	}
	if !x.enter(f.Bridge) {
		return 0, nil, false
	}
	if !x.takeOptions() {
		return 0, nil, false
	}
	if f.InPort != 0 {
		x.setInPort(f.InPort)
	}
	x.bare, x.queue, x.mirrored = f.Bare, f.Queue, f.Mirrored
	copy(x.flow[flowtable.KeyWords:], f.State[:])
	for i, set := range f.TunnelSet {
		w := flowtable.WTunID + i
		x.flow[w] = x.flow[w]&^set | f.Tunnel[i]
		x.keep[w] &^= set
	}
	x.thawTLVs(f.TLVs)
	x.base, x.baseKeep = x.flow, x.keep
	x.check, x.checkedTo = f.Check, f.To
	if x.stack, ok = thawStack(f.Stack); !ok {
		return 0, nil, false
	}
	names := openflow.WithTLVs(nil, x.p.TLVs())
	if f.ActionSet != "" {
		set, err := openflow.ParseActions(f.ActionSet, names)
		if err != nil {
			return 0, nil, false
		}
		x.actionSet = set
	}
	if f.Actions != "" {
		if actions, err := openflow.ParseActions(f.Actions, names); err == nil {
			return f.Table, actions, true
		}
		return 0, nil, false
	}
	return f.Table, nil, true
}
