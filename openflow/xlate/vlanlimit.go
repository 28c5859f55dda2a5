// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/packet"
)

// VLANLimiter is an optional interface of an Env, for a switch that can limit the VLAN tags that flows
// see, as other_config:vlan-limit of Open vSwitch does.
type VLANLimiter interface {
	// VLANLimit returns 1 if flows see only the outer tag of a frame. Any other value means
	// two tags, all that a key has.
	VLANLimit() int
}

// limitTags hides everything behind the outer tag of a frame with two tags, if flows see only one tag.
// Flows then see the TPID of the inner tag as the EtherType, and no fields of later headers. A key has
// no TPIDs, so every inner tag counts as one of 802.1Q. The Binding of the port is checked earlier, with
// all tags, because it protects others from the sender.
func (x *xlate) limitTags() {
	limiter, ok := x.env.(VLANLimiter)
	if !ok || limiter.VLANLimit() != 1 {
		return
	}
	inner := x.tags.tag(1)
	x.lookTag(inner, flowtable.VLANPresent)
	if inner.tci&flowtable.VLANPresent == 0 {
		return
	}
	x.tags.n = 1
	x.tags.t[1] = noTag
	x.baseTags = x.tags
	const innerTCI = flowtable.VLANTCI << flowtable.InnerTCIShift
	x.flow[flowtable.WIP] &^= innerTCI
	x.base[flowtable.WIP] &^= innerTCI
	x.hideInner(packet.EtherTypeVLAN, 0)
}
