package pipeline

import (
	"time"

	"weft/control/limits"
	"weft/flowtable"
	"weft/internal/share"
)

// What one port may take of the workers' caches, so that frames made up on it
// leave room for the flows of the others: its share (share.Ports) of masks, slots
// and actions.
//
// A flow whose mask finds no room is installed under a narrow mask that is kept
// free for that: it then matches more bits than it would have to, which is sound,
// and no frame is executed by control for want of a mask.

// narrowMasks is the number of rows of masks kept for narrow ones.
const narrowMasks = 2

// Bits that a connection's frames differ in, and few rules look at.
var changing = flowtable.Key{
	flowtable.WIP: 0xff<<48 | 0xff<<40 | 0xffff, // nw_tos, nw_ttl, tcp_flags
	flowtable.WL4: 0xffffffff,                   // ipv6_label
}

// narrow is the mask kept free for one that has no room: all bits, but for those
// that change within a connection unless it has one of them.
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

// mostActions is how much of the action store is used: it may be in pieces, so that
// what is left may have no room in a row.
func mostActions(limits flowtable.Sizes) int { return limits.Actions / 4 * 3 }

// stays are the times that ports' megaflows stay without a hit, by port: as short as
// that one asks for which runs out first, what the port may have of slots and masks,
// or actions.
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

// idleOf is how long a port's megaflows stay for what the port has of p.
func idleOf(p *share.Ports, owner uint32) time.Duration {
	return idleTime(p.Own(owner)+p.Count(), p.Limit())
}

// fit is the mask, of those that mask allows, that there is room for, and its use
// if it has one.
func (f *megaflows) fit(owner uint32, mask *flowtable.Key) (*flowtable.Key, *maskUse) {
	if use := f.masks[*mask]; use != nil || f.maskShares.MayHave(owner, 1) {
		return mask, use
	}
	f.maskShares.Refuse(owner)
	fits := narrow(mask)
	return &fits, f.masks[fits]
}

// ownerOf is the port that a key counts for.
func ownerOf(key *flowtable.Key) uint32 { return uint32(key[flowtable.WPort] >> 32) }

// limitRows are the rows of slots, masks and actions. A port holds at most as much as
// it leaves free, so its limit moves with the use of the others.
func (f *megaflows) limitRows(emit func(limits.Row)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, p := range map[string]*share.Ports{"megaflows": f.flowShares, "masks": f.maskShares, "megaflow_actions": f.actionShares} {
		refused := p.Each(shareRow(emit, name))
		emit(limits.Row{Name: name, Unit: "entries", Holder: limits.All(), Used: uint64(p.Count()), Limit: uint64(p.Limit()), Refused: refused})
	}
}
