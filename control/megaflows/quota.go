// SPDX-License-Identifier: Apache-2.0

package megaflows

import (
	"time"

	"weft/control/limits"
	"weft/flowtable"
	"weft/internal/share"
)

// This file limits one port's use of the workers' caches. Masks, slots and actions each have a
// quota (share.Ports). Whatever a guest sends, the other ports can still add megaflows.
//
// If a port has used up its quota of masks, its next megaflow gets a reserved mask. The
// reserved mask matches more bits than necessary, so the megaflow is still correct.

const (
	// Idle is the idle timeout of a port's megaflows while the port uses at most half of its
	// quota. The timeout falls to LeastIdle as the quota fills (see Stays).
	Idle      = 10 * time.Second
	LeastIdle = time.Second
	// crowdPart decides when a port has very many megaflows: more than 1/crowdPart of the largest number
	// of megaflows. Those of its megaflows that got only one frame then have a shorter idle timeout,
	// because a sender with forged addresses causes many of them.
	crowdPart = 64
	// onceIdlePart divides the idle timeout of megaflows with a single frame, if their port has very many
	// megaflows. With 2, their timeout is at most 5 s. It must not be much shorter: if several ports have
	// 500,000 connections each, some seconds pass until each connection has its second frame.
	onceIdlePart = 2
)

// Timeouts are the idle timeouts of a port's megaflows.
type Timeouts struct {
	Idle time.Duration
	Once time.Duration // for megaflows that got only one frame
}

// NarrowMasks is the number of different masks that the function narrow can return.
const NarrowMasks = 2

// changing has the header bits that often differ between the frames of one connection.
var changing = flowtable.Key{
	flowtable.WIP: 0xff<<48 | 0xff<<40 | 0xffff, // nw_tos, nw_ttl, tcp_flags
	flowtable.WL4: 0xffffffff,                   // ipv6_label
}

// narrow returns the reserved mask that replaces mask. The reserved mask has all header bits
// except those of the variable changing. If mask has one of these bits, too, the reserved mask
// has all bits.
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

// mostActions returns the number of the action store's entries that megaflows may use. A
// quarter stays unused, because free runs of entries may be too short for a list of actions.
func mostActions(limits flowtable.Sizes) int { return limits.Actions / 4 * 3 }

// Stays returns the idle timeouts of each port's megaflows. They depend on the scarcest resource: slots,
// masks or actions.
func (f *Index) Stays() map[uint32]Timeouts {
	f.mu.Lock()
	defer f.mu.Unlock()
	stays := map[uint32]Timeouts{}
	f.flowShares.Each(func(owner uint32, u share.Use) {
		if u.Used > 0 {
			idle := min(idleOf(f.flowShares, owner), idleOf(f.maskShares, owner), idleOf(f.actionShares, owner))
			once := idle
			if u.Used > f.flowShares.Limit()/crowdPart {
				once = max(idle/onceIdlePart, LeastIdle)
			}
			stays[owner] = Timeouts{Idle: idle, Once: once}
		}
	})
	return stays
}

// idleTime returns the idle timeout for megaflows that need a resource with the given number of
// used entries and limit. The fewer entries are free, the shorter is the timeout.
func idleTime(used, limit int) time.Duration {
	free, half := max(limit-used, 0), max(limit/2, 1)
	if free >= half {
		return Idle
	}
	return LeastIdle + (Idle-LeastIdle)*time.Duration(free)/time.Duration(half)
}

// idleOf returns the idle timeout that one resource, such as masks, allows for the megaflows of the port
// owner. p has the use of this resource by all ports.
func idleOf(p *share.Ports, owner uint32) time.Duration {
	return idleTime(p.Own(owner)+p.Count(), p.Limit())
}

// fit returns mask if some megaflow already uses it, or if the quota of the port owner allows a
// new mask. Otherwise it returns the reserved mask of the function narrow. The second result is
// the index's record of the returned mask, or nil if no megaflow uses it.
func (f *Index) fit(owner uint32, mask *flowtable.Key) (*flowtable.Key, *maskRecord) {
	if f.recent != nil && f.recent.mask == *mask {
		return mask, f.recent
	}
	if record := f.masks[*mask]; record != nil || f.maskShares.MayHave(owner, 1) {
		f.recent = record
		return mask, record
	}
	f.maskShares.Refuse(owner)
	fits := narrow(mask)
	return &fits, f.masks[fits]
}

// OwnerOf returns the port whose quota a megaflow with this key uses.
func OwnerOf(key *flowtable.Key) uint32 { return key.InPort() }

// LimitRows emits the rows of `weft show limits` about slots, masks and actions.
func (f *Index) LimitRows(emit func(limits.Row)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, p := range map[string]*share.Ports{"megaflows": f.flowShares, "masks": f.maskShares, "megaflow_actions": f.actionShares} {
		refused := p.Each(limits.ShareRow(emit, name))
		emit(limits.Row{Name: name, Unit: "entries", Holder: limits.All(), Used: uint64(p.Count()), Limit: uint64(p.Limit()), Refused: refused})
	}
}
