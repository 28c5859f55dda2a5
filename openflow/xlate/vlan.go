// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"

	"weft/flowtable"
	"weft/packet"
)

// VLANs of ports in the action normal, as in ovs-vswitchd.conf.db(5), table Port. Other
// outputs leave a frame's tags unchanged. A key has two tags of a frame, as in Open vSwitch
// with vlan-limit=2.

// VLANMode decides which VLANs a port carries, and which tags its frames have.
type VLANMode uint8

// Modes of a port. A VLAN is identified by its VID. Frames without a tag, and frames
// with a tag of VID 0, are in VLAN 0.
const (
	// VLANTrunk means that the port carries the VLANs in Trunks, with tags.
	VLANTrunk VLANMode = iota
	// VLANAccess means that the port carries the VLAN with number VID, without a tag.
	VLANAccess
	// VLANNativeTagged is like VLANTrunk, but frames that arrive without a VLAN belong to the VLAN
	// with number VID. The port sends frames of this VLAN with a tag.
	VLANNativeTagged
	// VLANNativeUntagged is like VLANNativeTagged, but the port sends frames of the VLAN with number
	// VID without a tag.
	VLANNativeUntagged
	// VLANTunnel means that every frame that arrives gets an additional outer tag with number VID
	// (IEEE 802.1Q, "QinQ").
	VLANTunnel
)

// PortVLANs are the VLANs of a port. They are immutable.
type PortVLANs struct {
	Mode VLANMode
	VID  uint16
	// Trunks has the VLANs of a trunk or native port; nil: all. On a native port it
	// contains VID.
	Trunks *VLANSet
	// CVLANs has the customers' VLANs of a VLANTunnel; nil: all.
	CVLANs *VLANSet
	// TPID is the TPID of the tag that a VLANTunnel pushes.
	TPID uint16
}

// VLANSet is a set of VLANs, with one bit for each VID.
type VLANSet [64]uint64

// Add adds the VLAN with this VID, 0 to 4095.
func (s *VLANSet) Add(vid uint16) { s[vid>>6&63] |= 1 << (vid & 63) }

// Remove removes the VLAN with this VID, 0 to 4095.
func (s *VLANSet) Remove(vid uint16) { s[vid>>6&63] &^= 1 << (vid & 63) }

// Has reports whether the set contains the VLAN. A nil set contains all.
func (s *VLANSet) Has(vid uint16) bool { return s == nil || s[vid>>6&63]>>(vid&63)&1 != 0 }

// vlanFrame is a frame that the action normal is forwarding, together with its VLAN.
type vlanFrame struct {
	vid uint16
	// native is true if the frame arrived without a VLAN, so that vid is the native VLAN of its port.
	native bool
	// tunnel has the port of mode VLANTunnel on which the frame arrived; nil: none.
	tunnel *PortVLANs
}

// enterVLAN returns the VLAN of the frame, which arrived on inPort. If the port does not
// carry it, ok is false and the frame is dropped.
func (x *xlate) enterVLAN(inPort *PortInfo) (f vlanFrame, ok bool) {
	if f, ok = x.vlanOf(inPort); !ok {
		x.noteDrop(packet.DropWrongVLAN)
		if x.hook != nil {
			x.note(fmt.Sprintf("the input port does not carry VLAN %d", x.tagVID(0)))
		}
	}
	return f, ok
}

// vlanOf returns the VLAN of a frame that arrives on the port. For a mirror it is also used for a frame
// that the port sends, with the tags that the frame then has. ok is false if the port does not carry the
// VLAN.
func (x *xlate) vlanOf(port *PortInfo) (f vlanFrame, ok bool) {
	p := port.VLANs
	if p != nil && p.Mode == VLANTunnel {
		return vlanFrame{vid: p.VID, tunnel: p}, p.CVLANs == nil || p.CVLANs.Has(x.tagVID(0))
	}
	f.vid = x.tagVID(0)
	switch {
	case p == nil:
	case p.Mode != VLANTrunk && f.vid == 0:
		f.vid, f.native = p.VID, true
	case p.Mode == VLANAccess || !p.Trunks.Has(f.vid):
		return f, false
	}
	return f, true
}

// tagVID returns the VID of the frame's tag i, counted from the outermost; 0: no tag.
func (x *xlate) tagVID(i int) uint16 {
	t := x.tags.tag(i)
	x.lookTag(t, flowtable.VLANID)
	return t.tci & flowtable.VLANID
}

// innerTagged reports whether the frame has another tag after the tag of its VLAN.
func (x *xlate) innerTagged(f *vlanFrame) bool {
	if f.tunnel != nil {
		return x.tagged()
	}
	t := x.tags.tag(1)
	x.lookTag(t, flowtable.VLANPresent)
	return t.tci&flowtable.VLANPresent != 0
}

// inner returns the VID of the tag that follows the tag of the frame's VLAN; 0: no tag.
func (x *xlate) inner(f *vlanFrame) uint16 {
	if f.tunnel != nil {
		return x.tagVID(0)
	}
	return x.tagVID(1)
}

// carries reports whether the port is in the frame's VLAN.
func (x *xlate) carries(port *PortInfo, f *vlanFrame) bool {
	p := port.VLANs
	switch {
	case p == nil:
		return true
	case p.Mode == VLANAccess:
		return p.VID == f.vid && x.inner(f) == 0
	case p.Mode == VLANTunnel:
		return p.VID == f.vid && (p.CVLANs == nil || p.CVLANs.Has(x.inner(f)))
	}
	return p.Trunks.Has(f.vid)
}

// outTags returns the tags with which the port sends the frame. ok is false if the frame
// would have too many tags.
func (x *xlate) outTags(port *PortInfo, f *vlanFrame) (tags tagStack, ok bool) {
	tags, p := x.tags, port.VLANs
	untagged := p != nil && (p.Mode == VLANAccess || p.Mode == VLANTunnel || p.Mode == VLANNativeUntagged && p.VID == f.vid)
	switch {
	case f.tunnel != nil && untagged:
		return tags, true
	case f.tunnel != nil:
		return tags, tags.push(tag{tpid: f.tunnel.TPID, tci: f.vid | flowtable.VLANPresent})
	case !untagged && !f.native:
		return tags, true
	}
	switch tagged := x.tagged(); {
	case untagged && tagged:
		tags.pop()
	case untagged:
	case tagged:
		t := &tags.t[0]
		t.tci, t.keep = t.tci&^flowtable.VLANID|f.vid, t.keep&^flowtable.VLANID
	default:
		return tags, tags.push(tag{tpid: packet.EtherTypeVLAN, tci: f.vid | flowtable.VLANPresent})
	}
	return tags, true
}

// inVLAN gives the frame the tags that the port sends in the VLAN of f, and then calls
// send. If f is nil, the tags stay unchanged.
func (x *xlate) inVLAN(port *PortInfo, f *vlanFrame, send func()) {
	if f == nil {
		send()
		return
	}
	tags, ok := x.outTags(port, f)
	if !ok {
		x.halt(packet.DropNoHeadroom)
		return
	}
	if tags == x.tags {
		send()
		return
	}
	arrived := x.tags
	x.tags = tags
	x.syncTags()
	send()
	x.tags = arrived
	x.syncTags()
}
