// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"time"

	"weft/control/limits"
	"weft/flowtable"
	"weft/internal/share"
)

// Quotas of one port in the workers' caches (share.Ports): masks, slots and actions.
// They leave room for the flows of other ports, whatever frames a guest sends.
//
// If a port exceeds its quota of masks, its next megaflow gets a narrow mask, which
// is reserved for such megaflows. The narrow mask matches more bits than necessary.
// The megaflow is still correct, and control need not execute the flow's frames one
// by one.

// narrowMasks is the number of masks reserved for the function narrow, which returns
// one of two masks.
const narrowMasks = 2

// changing has the header bits that differ between frames of one connection and that
// few rules match.
var changing = flowtable.Key{
	flowtable.WIP: 0xff<<48 | 0xff<<40 | 0xffff, // nw_tos, nw_ttl, tcp_flags
	flowtable.WL4: 0xffffffff,                   // ipv6_label
}

// narrow returns the reserved mask that replaces mask if a port's quota has no room
// for mask. The reserved mask has all header bits if mask has any bit of changing.
// Otherwise it has all header bits except the bits of changing.
func narrow(mask *flowtable.Key) flowtable.Key {
	var all, most flowtable.Key
	changes := false
	for i := range mask {
		all[i], most[i] = ^uint64(0), ^changing[i]
		changes = changes || mask[i]&changing[i] != 0
	}
	if changes {
		return all
	}
	return most
}

// mostActions returns the number of entries of the action store that megaflows may
// use: three quarters. The last quarter compensates fragmentation, because a free
// piece may be too small for a flow's actions.
func mostActions(limits flowtable.Sizes) int { return limits.Actions / 4 * 3 }

// stays returns the idle time of the megaflows of each port: how long a megaflow
// stays without a hit. The resource (slots, masks or actions) of which the port has
// used the largest part decides.
func (f *megaflows) stays() map[uint32]time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	stays := map[uint32]time.Duration{}
	f.flowShares.Each(func(owner uint32, u share.Use) {
		if u.Used > 0 {
			stays[owner] = min(idleOf(f.flowShares, owner), idleOf(f.maskShares, owner), idleOf(f.actionShares, owner))
		}
	})
	return stays
}

// idleOf returns how long a megaflow of port owner stays without a hit, according to
// the port's use of the resource p.
func idleOf(p *share.Ports, owner uint32) time.Duration {
	return idleTime(p.Own(owner)+p.Count(), p.Limit())
}

// fit returns mask if it is in use or the port's quota has room for it, otherwise the
// narrow mask. It also returns the record of the returned mask's use, or nil if the
// mask is not in use.
func (f *megaflows) fit(owner uint32, mask *flowtable.Key) (*flowtable.Key, *maskUse) {
	if use := f.masks[*mask]; use != nil || f.maskShares.MayHave(owner, 1) {
		return mask, use
	}
	f.maskShares.Refuse(owner)
	fits := narrow(mask)
	return &fits, f.masks[fits]
}

// ownerOf returns the port whose quota counts a megaflow with this key.
func ownerOf(key *flowtable.Key) uint32 { return uint32(key[flowtable.WPort] >> 32) }

// limitRows emits the limit rows of megaflow slots, masks and actions.
func (f *megaflows) limitRows(emit func(limits.Row)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, p := range map[string]*share.Ports{"megaflows": f.flowShares, "masks": f.maskShares, "megaflow_actions": f.actionShares} {
		refused := p.Each(shareRow(emit, name))
		emit(limits.Row{Name: name, Unit: "entries", Holder: limits.All(), Used: uint64(p.Count()), Limit: uint64(p.Limit()), Refused: refused})
	}
}
