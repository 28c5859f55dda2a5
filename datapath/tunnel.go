// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/flowtable"
	"weft/packet"
	"weft/port"
	"weft/tunnel"
)

// overlay describes the outer headers that a tunnel has pushed on a frame.
type overlay struct {
	port  uint16 // port of the tunnel, which also counts the frame; 0: the frame has no outer headers
	outer uint16 // length of the outer headers in bytes, which the tunnel's port does not count
}

// encapsulate executes the OpTunnel a on frame i: it pushes the outer headers of the action's template and
// sends the frame to the uplink. If the action has a limit, it sends only the first bytes of the
// inner frame. If isLast is false, it removes the headers afterwards for the next actions. x has the
// tunnel fields that earlier actions have set; nil: none.
func (w *Worker) encapsulate(i int, a *flowtable.Action, x *tunnel.Fields, isLast bool) {
	f := &w.batch.Frames[i]
	if a.U32 >= uint32(len(w.sh.Templates)) {
		w.dropAt(uint32(a.U16), i, packet.DropNoRoute)
		return
	}
	t := &w.sh.Templates[a.U32]
	hash := tunnel.FlowHash(&w.keys[i])
	if t.State == tunnel.TemplateSpread {
		nexthop := t.NextHop(hash)
		if nexthop >= uint32(len(w.sh.Templates)) {
			w.dropAt(uint32(a.U16), i, packet.DropNoRoute)
			return
		}
		t = &w.sh.Templates[nexthop]
	}
	if t.State == tunnel.TemplatePending {
		w.awaitNeighbour(i, a, x)
		return
	}
	if limit := int(a.MaxInner()); limit != 0 && f.SegmentLen() > limit {
		out := *a
		out.SetMaxInner(0)
		w.truncate(i, limit, &out, x)
		return
	}
	t.SetClock(w.now)
	size, outer := f.Offload.Size, t.Outer(x)
	if t.State == tunnel.TemplateReady && !f.LimitSegments(int(t.MTU)-outer) {
		w.answerTooBig(i, int(t.MTU)-outer-int(f.L3))
		w.dropAt(uint32(a.U16), i, packet.DropTooBigForTunnel)
		return
	}
	if reason := t.Push(f, a.VNI(), hash, tunnel.InnerTOS(f), x); reason != packet.DropNone {
		w.dropAt(uint32(a.U16), i, reason)
		return
	}
	w.overlaid = true
	w.overlay[i] = overlay{port: a.U16 % port.MaxPorts, outer: uint16(outer)}
	w.output(i, t.Port, isLast)
	if !isLast {
		t.Pop(f)
		f.Offload.Size = size
	}
}

// setFields executes the OpTunOptions or OpTunMeta at the start of an action list. x has the tunnel
// fields that earlier actions have set; nil: none. setFields returns the fields for the
// following tunnel actions, and the number of list elements that encode this action. The
// worker owns the fields.
func (w *Worker) setFields(list []flowtable.Action, x *tunnel.Fields) (fields *tunnel.Fields, taken int) {
	if x == nil {
		x = &w.fields[w.tracks.forked]
		x.Meta, x.Options.Len = 0, 0
	}
	if list[0].Op == flowtable.OpTunMeta {
		x.Meta = list[0].U64
		return x, 1
	}
	return x, flowtable.ReadTunOptions(list, &x.Options)
}
