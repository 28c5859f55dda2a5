// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"fmt"
	"time"

	"weft/control/change"
	"weft/control/watchdog"
)

// Blame logs that the engine hangs, and marks the ports that may have caused it: new engines do not
// get these ports for a while. It ends the vhost-user sessions of these ports.
func (ps *Ports) Blame(tx *change.Tx, h *watchdog.Hang) {
	reason := h.Text(func(number uint32) string { return ps.portNameOf(tx, number) })
	ps.log.Error("the engine hangs, replacing it", "why", reason)
	isForeign := func(number uint32) bool { return ps.isForeign(tx, number) }
	for _, number := range ps.suspects.Blame(*h, time.Now(), isForeign, reason) {
		p := ps.byNumber[number]
		if p == nil {
			continue
		}
		held := ps.suspects.Held(number, time.Now())
		ps.log.Error("port has hung the engine", "port", p.saved.Name, "error", held)
		p.driver.fault(reason) // ends the session of a guest's port; devices of other ports stay open
		p.fail(held)
	}
}

// portNameOf returns the name of a port, or its number as text if the port does not exist.
func (ps *Ports) portNameOf(_ *change.Tx, number uint32) string {
	if p := ps.byNumber[number]; p != nil {
		return p.saved.Name
	}
	return fmt.Sprint(number)
}

// isForeign reports whether the port's frames are in the memory of a guest. The guest can delay the
// worker's accesses to its memory.
func (ps *Ports) isForeign(_ *change.Tx, number uint32) bool {
	p := ps.byNumber[number]
	return p != nil && p.kind == kindVhost
}

// Held returns the reason why engines do not get the port for now (it has hung an engine), or nil.
func (ps *Ports) Held(number uint32) error { return ps.suspects.Held(number, time.Now()) }

// MemoryFiles returns duplicates of the descriptors of a port's guest memory files. The caller closes
// them. A port of a kernel device has none. The caller needs no lock.
func (ps *Ports) MemoryFiles(port uint32) []int { return ps.sessions.files(port) }
