// SPDX-License-Identifier: Apache-2.0

package megaflows

import (
	"time"

	"weft/control/limits"
	"weft/flowtable"
	"weft/internal/share"
)

// Quotas of one port in the workers' caches (share.Ports): masks, slots and actions.
// They leave room for other ports, whatever a guest sends.
//
// A port beyond its quota of masks gets a reserved mask for its next megaflow. This
// mask matches more bits than necessary, so the megaflow is still correct.

const (
	// A megaflow's idle timeout is Idle while its port uses at most half of its
	// quota, and falls to LeastIdle as the quota fills (Stays).
	Idle      = 10 * time.Second
	LeastIdle = time.Second
)

// NarrowMasks is the number of masks that narrow can return.
const NarrowMasks = 2

// changing has the header bits that often differ between a connection's frames.
var changing = flowtable.Key{
	flowtable.WIP: 0xff<<48 | 0xff<<40 | 0xffff, // nw_tos, nw_ttl, tcp_flags
	flowtable.WL4: 0xffffffff,                   // ipv6_label
}

// narrow returns the reserved mask to use in place of mask. It has all header bits,
// without those of changing unless mask has one of them.
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

// mostActions is the number of usable entries of the action store. A quarter is left,
// because a free piece may be too small.
func mostActions(limits flowtable.Sizes) int { return limits.Actions / 4 * 3 }

// Stays returns the idle timeout of megaflows by port. The scarcest of slots, masks
// and actions determines it.
func (f *Index) Stays() map[uint32]time.Duration {
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

// idleTime returns the idle timeout if used of limit entries are in use. It falls as
// entries become scarce.
func idleTime(used, limit int) time.Duration {
	free, half := max(limit-used, 0), max(limit/2, 1)
	if free >= half {
		return Idle
	}
	return LeastIdle + (Idle-LeastIdle)*time.Duration(free)/time.Duration(half)
}

// idleOf returns the idle timeout of the megaflows of port owner. p is the use of one
// resource.
func idleOf(p *share.Ports, owner uint32) time.Duration {
	return idleTime(p.Own(owner)+p.Count(), p.Limit())
}

// fit returns mask if a megaflow uses it or the port's quota has room, otherwise the
// narrow mask. The second result is the record of the mask, or nil.
func (f *Index) fit(owner uint32, mask *flowtable.Key) (*flowtable.Key, *maskRecord) {
	if record := f.masks[*mask]; record != nil || f.maskShares.MayHave(owner, 1) {
		return mask, record
	}
	f.maskShares.Refuse(owner)
	fits := narrow(mask)
	return &fits, f.masks[fits]
}

// OwnerOf returns the port whose quota counts a megaflow.
func OwnerOf(key *flowtable.Key) uint32 { return uint32(key[flowtable.WPort] >> 32) }

// LimitRows is a limits.Source for slots, masks and actions.
func (f *Index) LimitRows(emit func(limits.Row)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, p := range map[string]*share.Ports{"megaflows": f.flowShares, "masks": f.maskShares, "megaflow_actions": f.actionShares} {
		refused := p.Each(limits.ShareRow(emit, name))
		emit(limits.Row{Name: name, Unit: "entries", Holder: limits.All(), Used: uint64(p.Count()), Limit: uint64(p.Limit()), Refused: refused})
	}
}
