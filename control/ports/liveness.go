package ports

import (
	"context"
	"time"

	"weft/control/loop"
)

// livenessInterval is how long a port may have been down before groups that
// watch it are told.
const livenessInterval = 50 * time.Millisecond

// watchPorts tells groups of ports that come and go until ctx ends. While none wants
// to know it rests: each look takes time from whoever is on this core.
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

// UpdateLiveness is the pipeline's: it notes which ports are down, if a group watches
// ports, and reports whether that has changed; watchPorts does so again before long.
// Caller holds change.
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
