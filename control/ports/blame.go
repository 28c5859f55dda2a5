// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"fmt"
	"time"

	"weft/control/watchdog"
)

// Blame logs a hang. The next engines do not get the ports on which the engine hung
// for a while. The caller holds the lock of changes.
func (ps *Ports) Blame(h *watchdog.Hang) {
	reason := h.Text(ps.portNameOf)
	ps.log.Error("the engine hangs, replacing it", "why", reason)
	for _, number := range ps.suspects.Blame(*h, time.Now(), ps.isForeign, reason) {
		p := ps.byNumber[number]
		if p == nil {
			continue
		}
		held := ps.suspects.Held(number, time.Now())
		ps.log.Error("port has hung the engine", "port", p.saved.Name, "error", held)
		p.driver.fault(reason) // ends a guest's session; other devices stay open
		p.fail(held)
	}
}

// portNameOf returns a port's name, or its number. The caller holds the lock of
// changes.
func (ps *Ports) portNameOf(number uint32) string {
	if p := ps.byNumber[number]; p != nil {
		return p.saved.Name
	}
	return fmt.Sprint(number)
}

// isForeign reports whether another process owns a port's memory and can delay
// accesses to it. The caller holds the lock of changes.
func (ps *Ports) isForeign(number uint32) bool {
	p := ps.byNumber[number]
	return p != nil && p.kind == kindVhost
}

// Held returns why a port is held back from the engines, or nil.
func (ps *Ports) Held(number uint32) error { return ps.suspects.Held(number, time.Now()) }
