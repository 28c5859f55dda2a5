// SPDX-License-Identifier: Apache-2.0

package megaflows

import (
	"time"

	"weft/control/limits"
	"weft/flowtable"
	"weft/internal/share"
)

// This file limits the use of the workers' caches by one port: masks, slots and actions
// each have a quota (share.Ports). Whatever a guest sends, other ports have room.
//
// If a port has used up its quota of masks, its next megaflow gets a reserved mask. The
// reserved mask matches more bits than necessary, so the megaflow is still correct.

const (
	// The idle timeout of a megaflow is Idle while its port uses at most half of its
	// quota. The timeout falls to LeastIdle as the quota fills (Stays).
	Idle      = 10 * time.Second
	LeastIdle = time.Second
	// crowdPart is the part of all slots beyond which a port's megaflows that got a single frame
	// have a shorter idle timeout: one in. A sender who invents addresses has many of them.
	crowdPart = 64
	// onceIdlePart is the part of the idle timeout for these: one in. Ports with 500,000
	// connections each, of which all get a frame in turn, need some seconds until the second one.
	onceIdlePart = 2
)

// Timeouts are the idle timeouts of a port's megaflows.
type Timeouts struct {
	Idle time.Duration
	Once time.Duration // of megaflows that got a single frame
}

// NarrowMasks is the number of masks that narrow can return.
const NarrowMasks = 2

// changing has the header bits that often differ between frames of one connection.
var changing = flowtable.Key{
	flowtable.WIP: 0xff<<48 | 0xff<<40 | 0xffff, // nw_tos, nw_ttl, tcp_flags
	flowtable.WL4: 0xffffffff,                   // ipv6_label
}

// narrow returns the reserved mask that replaces mask. The reserved mask has all header
// bits except changing (bits that vary within a connection). If mask has one of the
// changing bits, the reserved mask has these bits, too.
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

// mostActions is the number of usable entries of the action store. A quarter stays
// unused, because free pieces may be too small for a list of actions.
func mostActions(limits flowtable.Sizes) int { return limits.Actions / 4 * 3 }

// Stays returns the idle timeouts of each port's megaflows. The scarcest of slots, masks
// and actions determines them.
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

// idleTime returns the idle timeout of megaflows. used is the number of entries in use,
// and limit the largest number. The fewer entries are free, the shorter is the timeout.
func idleTime(used, limit int) time.Duration {
	free, half := max(limit-used, 0), max(limit/2, 1)
	if free >= half {
		return Idle
	}
	return LeastIdle + (Idle-LeastIdle)*time.Duration(free)/time.Duration(half)
}

// idleOf returns the idle timeout for the megaflows of port owner. p has the ports' use
// of one resource, such as masks.
func idleOf(p *share.Ports, owner uint32) time.Duration {
	return idleTime(p.Own(owner)+p.Count(), p.Limit())
}

// fit returns mask if some megaflow already uses it, or if the quota of port owner has
// room for a new mask. Otherwise it returns the reserved mask (narrow). The second
// result is the index's record of the returned mask, or nil.
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

// LimitRows reports the use and the limits of slots, masks and actions; it is a
// limits.Source.
func (f *Index) LimitRows(emit func(limits.Row)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, p := range map[string]*share.Ports{"megaflows": f.flowShares, "masks": f.maskShares, "megaflow_actions": f.actionShares} {
		refused := p.Each(limits.ShareRow(emit, name))
		emit(limits.Row{Name: name, Unit: "entries", Holder: limits.All(), Used: uint64(p.Count()), Limit: uint64(p.Limit()), Refused: refused})
	}
}
