// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"time"

	"weft/control/limits"
	"weft/flowtable"
	"weft/internal/share"
)

// Quotas of one port in the workers' caches (share.Ports): masks, slots and actions.
// They leave room for the flows of other ports, whatever frames a guest makes up.
//
// If a flow's mask exceeds the quota, the flow is installed under a narrow mask,
// which is reserved for such flows. It then matches more bits than necessary. This is
// correct, and control need not execute frames only because a mask is missing.

// narrowMasks is the number of masks reserved for narrow ones.
const narrowMasks = 2

// changing are the bits that differ between frames of one connection and that few
// rules look at.
var changing = flowtable.Key{
	flowtable.WIP: 0xff<<48 | 0xff<<40 | 0xffff, // nw_tos, nw_ttl, tcp_flags
	flowtable.WL4: 0xffffffff,                   // ipv6_label
}

// narrow returns the reserved mask for a flow whose mask has no room. It has all
// bits, except those of changing unless mask has one of them.
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

// mostActions returns how much of the action store is used. The rest is left free
// because of fragmentation: free pieces may be too small for a flow's actions.
func mostActions(limits flowtable.Sizes) int { return limits.Actions / 4 * 3 }

// stays returns how long the megaflows of each port stay without a hit. The time
// follows the resource (slots, masks or actions) of which the port has the least
// left.
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

// idleOf returns how long a port's megaflows stay without a hit, according to the
// port's use of p.
func idleOf(p *share.Ports, owner uint32) time.Duration {
	return idleTime(p.Own(owner)+p.Count(), p.Limit())
}

// fit returns the mask itself if there is room for it, or else the narrow mask, and
// the mask's use, which is nil if it has none yet.
func (f *megaflows) fit(owner uint32, mask *flowtable.Key) (*flowtable.Key, *maskUse) {
	if use := f.masks[*mask]; use != nil || f.maskShares.MayHave(owner, 1) {
		return mask, use
	}
	f.maskShares.Refuse(owner)
	fits := narrow(mask)
	return &fits, f.masks[fits]
}

// ownerOf returns the port whose quota a key uses.
func ownerOf(key *flowtable.Key) uint32 { return uint32(key[flowtable.WPort] >> 32) }

// limitRows emits the rows of slots, masks and actions. A port may hold at most as
// much as is free, so its limit depends on the use of the others.
func (f *megaflows) limitRows(emit func(limits.Row)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, p := range map[string]*share.Ports{"megaflows": f.flowShares, "masks": f.maskShares, "megaflow_actions": f.actionShares} {
		refused := p.Each(shareRow(emit, name))
		emit(limits.Row{Name: name, Unit: "entries", Holder: limits.All(), Used: uint64(p.Count()), Limit: uint64(p.Limit()), Refused: refused})
	}
}
