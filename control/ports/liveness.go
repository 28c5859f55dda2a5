// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"context"
	"time"

	"weft/control/loop"
)

// livenessInterval is the interval at which groups that watch ports are updated.
const livenessInterval = 50 * time.Millisecond

// watchPorts updates groups when a port that they watch goes down or up, until ctx
// ends. While no group watches a port it sleeps: each look takes time from the core
// on which it runs.
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
// ports are down and reports whether that has changed; watchPorts then repeats this
// at intervals. The caller holds the lock of changes.
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
