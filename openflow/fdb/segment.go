// SPDX-License-Identifier: Apache-2.0

package fdb

// Segment is the broadcast domain in which the actions normal, flood and all forward a frame: a bridge and a
// VNI. The bits from bridgeAt on are the bridge's number. The lower bits are 1 + the VNI of the input port,
// or 0 for a port without a VNI. A port without a VNI carries the frames of all VNIs, as a VLAN trunk
// carries all VLANs. A frame reaches another VNI only by an output to a named port, and another bridge only
// through a patch port.
type Segment uint32

const bridgeAt = 25

// Bridge returns the number of the segment's bridge.
func (s Segment) Bridge() uint8 { return uint8(s >> bridgeAt) }

// Local returns the segment without the bridge's number: 1 + the VNI, or 0 for ports without a VNI.
func (s Segment) Local() Segment { return s & (1<<bridgeAt - 1) }

// trunk returns the segment of the ports without a VNI in the bridge of s.
func (s Segment) trunk() Segment { return s &^ (1<<bridgeAt - 1) }

// TrunkOf returns the segment of the ports without a VNI in a bridge.
func TrunkOf(bridge uint8) Segment { return Segment(bridge) << bridgeAt }

// SegmentOf returns the segment of a VNI in the first bridge, whose number is 0.
func SegmentOf(vni uint32) Segment { return Segment(vni&0xffffff) + 1 }

// VNI returns the VNI of the segment. ok is false if the segment is that of the ports without a VNI.
func (s Segment) VNI() (vni uint32, ok bool) { return uint32(s.Local()) - 1, s.Local() != 0 }
