// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"weft/control/limits"
	"weft/vhost"
)

// guestMemoryLimits returns the limits of guest memory on this machine. If gib, the
// daemon's option --guest-memory-gib, is not 0, it is the limit of one guest, but at
// most half of the limit of all guests.
func guestMemoryLimits(gib int) vhost.MemoryLimits {
	l := vhost.DefaultMemoryLimits()
	if gib > 0 {
		l.Guest = min(uint64(gib)<<30, l.All/2)
	}
	return l
}

// LimitRows is a limits.Source. It emits the limit rows of the memory that guests
// have mapped into the engine, by port and in total, and of the front ends' messages.
func (ps *Ports) LimitRows(emit func(limits.Row)) {
	ps.sessions.limitRows(emit)
	l, use := ps.guests.Use()
	for _, u := range use {
		if u.Port == 0 {
			emit(limits.Row{Name: "guest_memory", Unit: "bytes", Holder: limits.All(), Used: u.Bytes, Limit: l.All, Refused: u.Refused})
			emit(limits.Row{Name: "guest_mappings", Unit: "entries", Holder: limits.All(), Used: uint64(u.Mappings), Limit: uint64(l.Mappings)})
			continue
		}
		emit(limits.Row{Name: "guest_memory", Unit: "bytes", Holder: limits.Port(u.Port), Used: u.Bytes,
			Guarantee: l.Share, Limit: l.Guest, Refused: u.Refused})
	}
}
