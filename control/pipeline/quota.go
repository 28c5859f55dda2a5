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

// The mask changing has the header bits that differ between frames of one connection
// and that few rules match.
var changing = flowtable.Key{
	flowtable.WIP: 0xff<<48 | 0xff<<40 | 0xffff, // nw_tos, nw_ttl, tcp_flags
	flowtable.WL4: 0xffffffff,                   // ipv6_label
}

// narrow returns the reserved mask that is used in place of the given mask if a
// port's quota has no room for the given mask. If the given mask has any bit of the
// mask changing, the reserved mask has all header bits. Otherwise the reserved mask
// has all header bits except those of changing.
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

// stays returns, for each port, the idle time of the port's megaflows: how long a
// megaflow without a hit stays. The port's use of slots, of masks and of actions each
// gives an idle time; the shortest of the three applies.
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

// idleOf returns how long a megaflow without a hit stays, according to the use of one
// resource. p has the use of the resource by port, and owner is the number of the
// megaflow's port.
func idleOf(p *share.Ports, owner uint32) time.Duration {
	return idleTime(p.Own(owner)+p.Count(), p.Limit())
}

// fit returns the given mask if a megaflow already uses it or the port's quota has
// room for it. Otherwise fit returns the narrow mask. The second result is the record
// of the returned mask's users, or nil if no megaflow uses the mask.
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
