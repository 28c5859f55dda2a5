package ports

import (
	"fmt"
	"time"

	"weft/control/watchdog"
)

// Blame logs why an engine is replaced, and keeps the ports to blame from the
// next engines. Caller holds change.
func (d *Ports) Blame(h *watchdog.Hang) {
	why := h.Text(d.portNameOf)
	d.log.Error("the engine hangs, replacing it", "why", why)
	for _, number := range d.suspects.Blame(*h, time.Now(), d.isForeign, why) {
		p := d.all[number]
		if p == nil {
			continue
		}
		held := d.suspects.Held(number, time.Now())
		d.log.Error("port has hung the engine", "port", p.saved.Name, "error", held)
		p.driver.fault(why) // a guest's session is ended; other devices stay open and wait
		p.fail(held)
	}
}

// portNameOf is a port's name, or its number if there is none. Caller holds change.
func (d *Ports) portNameOf(number uint32) string {
	if p := d.all[number]; p != nil {
		return p.saved.Name
	}
	return fmt.Sprint(number)
}

// isForeign tells whether a port's memory and descriptors are another process's, so
// that it decides how long an access takes. Caller holds change.
func (d *Ports) isForeign(number uint32) bool {
	p := d.all[number]
	return p != nil && p.kind == kindVhost
}

// Held is why a port is kept from the engines, nil if it is not.
func (d *Ports) Held(number uint32) error { return d.suspects.Held(number, time.Now()) }
