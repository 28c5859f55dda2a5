// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/flowtable"
	"weft/packet"
	"weft/port"
	"weft/tunnel"
)

// overlay has the vxlan port that counts a frame, and the length of the frame's outer
// headers in bytes.
type overlay struct {
	port  uint16 // vxlan port; 0: no tunnel header
	outer uint16 // length of the outer header in bytes
}

// encapsulate pushes the outer headers of the template of action a on frame i, and
// sends the frame, or its first bytes, to the uplink. If last is false, it removes the headers afterwards
// for the next actions.
func (w *Worker) encapsulate(i int, a *flowtable.Action, last bool) {
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
		w.awaitNeighbour(i, a)
		return
	}
	if limit := int(a.U64 >> 32); limit != 0 && f.SegmentLen() > limit {
		out := *a
		out.U64 &= 1<<32 - 1
		w.truncate(i, limit, &out)
		return
	}
	size := f.Offload.Size
	if t.State == tunnel.TemplateReady && !f.LimitSegments(int(t.MTU)-int(t.Len)) {
		w.answerTooBig(i, int(t.MTU)-int(t.Len)-int(f.L3))
		w.dropAt(uint32(a.U16), i, packet.DropTooBigForTunnel)
		return
	}
	if reason := t.Push(f, uint32(a.U64), hash, tunnel.InnerTOS(f)); reason != packet.DropNone {
		w.dropAt(uint32(a.U16), i, reason)
		return
	}
	w.overlaid = true
	w.overlay[i] = overlay{port: a.U16 % port.MaxPorts, outer: t.Len}
	w.output(i, t.Port, last)
	if !last {
		t.Pop(f)
		f.Offload.Size = size
	}
}
