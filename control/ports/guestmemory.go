// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"weft/control/limits"
	"weft/vhost"
)

// guestMemoryLimits returns the limit of the memory that one guest may map, and the limit for all guests
// together. gib is weftd's option --guest-memory-gib; 0 means the default. One guest may map at most
// half of the limit for all guests.
func guestMemoryLimits(gib int) vhost.MemoryLimits {
	l := vhost.DefaultMemoryLimits()
	if gib > 0 {
		l.Guest = min(uint64(gib)<<30, l.All/2)
	}
	return l
}

// LimitRows reports, for `weft show limits`, the guest memory that the switch has mapped, and the
// use of the limits for messages of vhost-user front ends.
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
