// SPDX-License-Identifier: Apache-2.0

package fdb

// Segment is the domain in which the actions normal, flood and all forward a frame. The bits
// from bridgeAt on have the bridge's number. The bits below have 1 + the VNI of the input port,
// or 0 for a port without a VNI. Ports without a VNI are trunks of all VNIs. Only an output to
// a named port crosses from one VNI to another, and only a patch port from one bridge to
// another.
type Segment uint32

const bridgeAt = 25

// Bridge returns the number of the segment's bridge.
func (s Segment) Bridge() uint8 { return uint8(s >> bridgeAt) }

// Local returns the segment without its bridge: 1 + the VNI, or 0 for ports without a VNI.
func (s Segment) Local() Segment { return s & (1<<bridgeAt - 1) }

// trunk returns the segment for ports without a VNI in the bridge of s.
func (s Segment) trunk() Segment { return s &^ (1<<bridgeAt - 1) }

// TrunkOf returns the segment of a bridge's ports without a VNI.
func TrunkOf(bridge uint8) Segment { return Segment(bridge) << bridgeAt }

// SegmentOf returns the segment of a VNI in the first bridge, whose number is 0.
func SegmentOf(vni uint32) Segment { return Segment(vni&0xffffff) + 1 }

// VNI returns the VNI of the segment. ok is false for ports without a VNI.
func (s Segment) VNI() (vni uint32, ok bool) { return uint32(s.Local()) - 1, s.Local() != 0 }
