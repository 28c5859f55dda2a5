// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"context"
	"slices"
	"time"

	"weft/control/change"
	"weft/control/loop"
)

// livenessInterval is the interval of liveness checks.
const livenessInterval = 50 * time.Millisecond

// watchPorts checks the liveness of the ports that groups watch, of the members of bonds, and of
// the remotes of ports with several remotes and BFD, until ctx ends. It sleeps while there are none.
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

// updateLiveness makes the commit make a new view and call LivenessChanged, if the liveness of ports has
// changed and a group or a bundle action watches ports, or if a remote is lost or returns (PortInfo.Lost).
func (ps *Ports) updateLiveness(tx *change.Tx) {
	if ps.followLiveness(tx) {
		ps.look(tx)
		ps.pipeline.LivenessChanged(tx)
	}
}

// followLiveness updates the liveness of ports. If it has changed, the caller makes a new view.
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
