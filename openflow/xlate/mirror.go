// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/openflow"
	"weft/packet"
)

// Mirrors send copies of a bridge's frames to a port, or into a VLAN, as in ovs-vswitchd.conf.db(5),
// table Mirror. A mirror sees a frame where it enters the bridge and at each of its outputs. If several
// mirrors have the same output, only the first one that selects the frame sends a copy there.

// MaxMirrors is the largest number of mirrors of a bridge, as in Open vSwitch. Translations ignore
// further mirrors.
const MaxMirrors = 32

// Mirror says which frames of the bridge a PortMirror copies, and where to. It is immutable.
type Mirror struct {
	// All selects every frame. Src selects frames that arrive on one of its ports, and Dst frames
	// that are sent to one of its ports. The keys are port numbers in the data path.
	All      bool
	Src, Dst map[uint32]bool
	VLANs    *VLANSet // only frames in these VLANs are copied; nil: in all
	// Output is the number in the data path of the port that gets the copies. If it is 0, the
	// copies go to the ports of the VLAN OutputVLAN, or nowhere if that is 0 too.
	Output     uint32
	OutputVLAN uint16
	Snaplen    uint32 // longest copy in bytes; 0: whole frames
}

func (m *Mirror) selects(port uint32, sent bool) bool {
	return m.All || sent && m.Dst[port] || !sent && m.Src[port]
}

func (m *Mirror) sameOutput(o *Mirror) bool {
	return m.Output == o.Output && (m.Output != 0 || m.OutputVLAN == o.OutputVLAN)
}

// mirrorArrival sends the copies for the mirrors that select the frame where it enters the bridge.
func (x *xlate) mirrorArrival() {
	if len(x.env.Mirrors()) == 0 {
		return
	}
	if port, ok := x.arrivedOn(); ok {
		x.mirror(&port, false)
	}
}

// mirror sends the copies for the mirrors that select the frame. If sent is true, the frame is sent to
// "port"; otherwise it has arrived on "port". The copies are not mirrored again.
func (x *xlate) mirror(port *PortInfo, sent bool) {
	mirrors := x.env.Mirrors()
	if x.copying || len(mirrors) == 0 {
		return
	}
	if bond, ok := x.asBond(port); ok {
		port = &bond
	}
	var f vlanFrame
	read := false
	for i := range mirrors[:min(len(mirrors), MaxMirrors)] {
		m := mirrors[i].Mirror
		if x.mirrored>>i&1 != 0 || !m.selects(port.At(), sent) {
			continue
		}
		if x.halted || !x.step() {
			return
		}
		if !read {
			var carried bool
			if f, carried = x.vlanOf(port); !carried {
				return
			}
			read = true
		}
		if m.VLANs != nil && !m.VLANs.Has(f.vid) {
			continue
		}
		for j := range mirrors[:min(len(mirrors), MaxMirrors)] {
			if mirrors[j].Mirror.sameOutput(m) {
				x.mirrored |= 1 << j
			}
		}
		x.patches = append(x.patches, Crossing{Out: mirrors[i].At()})
		if x.hook != nil {
			x.note("mirror " + mirrors[i].Name + " copies the frame")
		}
		x.copyTo(m, &f)
	}
}

// copyTo sends a copy of the frame to the output of a mirror. The frame stays as it is.
func (x *xlate) copyTo(m *Mirror, f *vlanFrame) {
	limit, drop := x.limit, x.drop
	x.limit, x.copying = m.Snaplen, true
	if m.Output != 0 {
		if port, ok := x.env.PortAt(m.Output); ok {
			x.copyToPort(&port, f)
		}
	} else if m.OutputVLAN != 0 && m.OutputVLAN != f.vid && !reserved(x.read(openflow.WholeField(openflow.FEthDst))[1]) {
		x.copyToVLAN(&vlanFrame{vid: m.OutputVLAN, native: true})
	}
	x.limit, x.copying = limit, false
	if !x.halted {
		x.drop = drop // a drop of the copy is no drop of the frame
	}
}

// copyToVLAN sends a copy of the frame to each port of a VLAN. The caller sets f.native, so that the
// tag of this VLAN replaces the frame's tag.
func (x *xlate) copyToVLAN(f *vlanFrame) {
	x.usedPorts = true
	ports := x.env.Ports()
	for i := range ports {
		if x.halted || !x.step() {
			return
		}
		if p := &ports[i]; p.Kind != PortUplink && p.Bond == 0 && !p.MirrorOut && !p.Off && x.carries(p, f) {
			x.copyToPort(p, f)
		}
	}
}

func (x *xlate) copyToPort(port *PortInfo, f *vlanFrame) {
	if port.Kind == PortPatch && x.limit != 0 {
		x.note("a truncated copy is not sent to a patch port")
		return
	}
	if _, ok := x.outTags(port, f); !ok {
		x.note("the copy would have too many tags")
		return
	}
	x.inVLAN(port, f, func() { x.sendTo(port) })
}

// receivesCopies reports whether the port is the output of a mirror, which carries only copies. It then
// records the drop reason of the frame, which has arrived on this port or which a flow sends there.
func (x *xlate) receivesCopies(port *PortInfo) bool {
	if !port.MirrorOut || x.copying {
		return false
	}
	x.usedPorts = true
	x.noteDrop(packet.DropNoPort)
	x.note(port.Name + " is the output of a mirror and has no other traffic")
	return true
}
