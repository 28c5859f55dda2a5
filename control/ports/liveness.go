// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"context"
	"time"

	"weft/control/loop"
)

// livenessInterval is the interval of liveness checks.
const livenessInterval = 50 * time.Millisecond

// watchPorts checks the liveness of the ports that groups watch, until ctx ends. It
// sleeps while no group watches a port.
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

// UpdateLiveness implements pipeline.Ports. The caller holds the configuration lock.
func (ps *Ports) UpdateLiveness() (changed bool) {
	if !ps.pipeline.WatchesPorts() {
		return false
	}
	loop.Notify(ps.watched)
	for _, p := range ps.byNumber {
		down := p.info.Off || p.problem.Load() != nil || p.driver.status().state != StateUp
		if down != p.info.Down {
			p.info.Down, changed = down, true
		}
	}
	if changed {
		ps.updateView()
	}
	return changed
}
