// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"context"
	"slices"
	"time"

	"weft/control/change"
	"weft/control/loop"
)

// livenessInterval is the time between two checks of the ports' liveness.
const livenessInterval = 50 * time.Millisecond

// watchPorts checks, until ctx ends, the liveness of ports that OpenFlow groups watch, of bond members,
// and of tunnel remotes with BFD on ports with several remotes. It sleeps while there is nothing to
// check.
func (ps *Ports) watchPorts(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-ps.watched:
		}
		if !loop.Sleep(ctx, livenessInterval) {
			return
		}
		ps.configuration.Do(ps.updateLiveness)
	}
}

// updateLiveness checks which ports are up. If this has changed, the commit tells the look-ups of
// frames, and looks up the megaflows that depend on it again. A change counts only in three cases: a
// group or a bundle action watches ports, other members of a bond send now, or a tunnel's remote is
// lost or returns (PortInfo.Lost).
func (ps *Ports) updateLiveness(tx *change.Tx) {
	if ps.followLiveness(tx) {
		ps.look(tx)
		ps.pipeline.LivenessChanged(tx)
	}
}

// followLiveness stores in the PortInfo of each port whether the port is up. If this has changed,
// the caller makes a new copy of the set of ports for the look-ups of frames.
func (ps *Ports) followLiveness(tx *change.Tx) (changed bool) {
	watches := ps.pipeline.WatchesPorts(tx)
	again := watches || len(ps.bonds) > 0
	for name := range ps.bonds {
		if p := ps.portByName(name); p != nil {
			changed = ps.stepBond(p) || changed
		}
	}
	for _, p := range ps.byNumber {
		if watches {
			down := p.info.Off || p.problem.Load() != nil || p.driver.status().state != StateUp
			if down != p.info.Down {
				p.info.Down, changed = down, true
			}
		}
		if p.info.BFD && len(p.info.Remotes) > 0 {
			again = true
			if lost := ps.templates.Lost(p.saved.Number); !slices.Equal(lost, p.info.Lost) {
				p.info.Lost, changed = lost, true
			}
		}
	}
	if again {
		loop.Notify(ps.watched)
	}
	return changed
}
