package ports

import (
	"fmt"
	"time"

	"weft/control/watchdog"
)

// Blame logs why an engine is replaced, and keeps the ports to blame from the
// next engines. Caller holds change.
func (ps *Ports) Blame(h *watchdog.Hang) {
	why := h.Text(ps.portNameOf)
	ps.log.Error("the engine hangs, replacing it", "why", why)
	for _, number := range ps.suspects.Blame(*h, time.Now(), ps.isForeign, why) {
		p := ps.all[number]
		if p == nil {
			continue
		}
		held := ps.suspects.Held(number, time.Now())
		ps.log.Error("port has hung the engine", "port", p.saved.Name, "error", held)
		p.driver.fault(why) // a guest's session is ended; other devices stay open and wait
		p.fail(held)
	}
}

// portNameOf is a port's name, or its number if there is none. Caller holds change.
func (ps *Ports) portNameOf(number uint32) string {
	if p := ps.all[number]; p != nil {
		return p.saved.Name
	}
	return fmt.Sprint(number)
}

// isForeign tells whether a port's memory and descriptors are another process's, so
// that it decides how long an access takes. Caller holds change.
func (ps *Ports) isForeign(number uint32) bool {
	p := ps.all[number]
	return p != nil && p.kind == kindVhost
}

// Held is why a port is kept from the engines, nil if it is not.
func (ps *Ports) Held(number uint32) error { return ps.suspects.Held(number, time.Now()) }
