// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"context"
	"time"

	"weft/control/loop"
)

// livenessInterval is the time between two checks of the ports that groups watch.
const livenessInterval = 50 * time.Millisecond

// watchPorts updates groups when a port that they watch goes down or up, until ctx
// ends. It checks the ports only while a group watches one, because each check takes
// time from the core on which it runs.
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
		ps.change.Lock()
		if ps.UpdateLiveness() {
			ps.pipeline.LivenessChanged()
		}
		ps.change.Unlock()
	}
}

// UpdateLiveness implements pipeline.Ports. If a group watches ports, it stores which
// ports are down, reports whether the liveness of a port has changed, and makes
// watchPorts repeat the check at intervals. The caller holds the lock of changes.
func (ps *Ports) UpdateLiveness() (changed bool) {
	if !ps.pipeline.WatchesPorts() {
		return false
	}
	loop.Notify(ps.watched)
	for _, p := range ps.all {
		down := p.problem.Load() != nil || p.driver.status().state != StateUp
		if down != p.info.Down {
			p.info.Down, changed = down, true
		}
	}
	if changed {
		ps.updateView()
	}
	return changed
}
