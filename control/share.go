package control

import (
	"time"

	"weft/control/limits"
	"weft/flowtable"
)

// What one port may take of the workers' caches, so that frames made up on it
// leave room for the flows of the others: as much as is left free, of masks and
// of slots. One port so gets half at most, two a third each, and there always is
// some for the next.
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

// mayHave tells whether a port that has some of count in use out of limit may
// have one more.
func mayHave(has, count, limit int) bool { return has < limit-count }

// mostActions is how much of the action store is used: it may be in pieces, so that
// what is left may have no room in a row.
func (f *megaflows) mostActions() int { return f.limits.Actions / 4 * 3 }

// stays are the times that ports' megaflows stay without a hit, by port: as short as
// that one asks for which runs out first, what the port may have of slots and masks,
// or actions.
func (f *megaflows) stays() map[uint32]time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	stays := make(map[uint32]time.Duration, len(f.ownFlows))
	for owner, own := range f.ownFlows {
		stays[owner] = min(
			idleTime(own+f.count, f.limits.Megaflows),
			idleTime(f.ownMasks[owner]+len(f.masks), f.limits.Masks-narrowMasks),
			idleTime(f.actions, f.mostActions()))
	}
	return stays
}

// fit is the mask, of those that mask allows, that there is room for, and its use
// if it has one.
func (f *megaflows) fit(owner uint32, mask *flowtable.Key) (*flowtable.Key, *maskUse) {
	if use := f.masks[*mask]; use != nil || mayHave(f.ownMasks[owner], len(f.masks), f.limits.Masks-narrowMasks) {
		return mask, use
	}
	f.refusals.masks.add(owner)
	fits := narrow(mask)
	return &fits, f.masks[fits]
}

// ownerOf is the port that a key counts for.
func ownerOf(key *flowtable.Key) uint32 { return uint32(key[flowtable.WPort] >> 32) }

// tally takes one off a port's count.
func tally(own map[uint32]int, owner uint32) {
	if own[owner]--; own[owner] == 0 {
		delete(own, owner)
	}
}

// shareRefusals counts megaflows that found no room. Guarded by megaflows.mu.
type shareRefusals struct {
	masks, flows perPort
	actions      uint64
}

// perPort counts by port number.
type perPort map[uint32]uint64

func (p *perPort) add(owner uint32) {
	if *p == nil {
		*p = perPort{}
	}
	(*p)[owner]++
}

// limitRows are the rows of slots, masks and actions. A port holds at most as much as
// it leaves free, so its limit moves with the use of the others.
func (f *megaflows) limitRows(emit func(limits.Row)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	emit(limits.Row{Name: "megaflow_actions", Unit: "actions", Holder: limits.All(),
		Used: uint64(f.actions), Limit: uint64(f.mostActions()), Refused: f.refusals.actions})
	shareRows(emit, "megaflows", f.ownFlows, f.count, f.limits.Megaflows, f.refusals.flows)
	shareRows(emit, "masks", f.ownMasks, len(f.masks), f.limits.Masks-narrowMasks, f.refusals.masks)
}

// shareRows are the rows of a resource that mayHave shares out: one for all and one
// for each port that holds some or was refused.
func shareRows(emit func(limits.Row), name string, own map[uint32]int, count, limit int, refused perPort) {
	all := limits.Row{Name: name, Unit: "entries", Holder: limits.All(), Used: uint64(count), Limit: uint64(limit)}
	holders := map[uint32]bool{}
	for no := range own {
		holders[no] = true
	}
	for no, n := range refused {
		holders[no] = true
		all.Refused += n
	}
	for no := range holders {
		has := own[no]
		most := has + (max(limit-count-has, 0)+1)/2
		emit(limits.Row{Name: name, Unit: "entries", Holder: limits.Port(no),
			Used: uint64(has), Limit: uint64(most), Refused: refused[no]})
	}
	emit(all)
}
