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
func (d *Ports) watchPorts(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.watched:
		}
		if !loop.Sleep(ctx, livenessInterval) {
			return
		}
		d.change.Lock()
		if d.UpdateLiveness() {
			d.pipeline.LivenessChanged()
		}
		d.change.Unlock()
	}
}

// UpdateLiveness is the pipeline's: it notes which ports are down, if a group watches
// ports, and reports whether that has changed; watchPorts does so again before long.
// Caller holds change.
func (d *Ports) UpdateLiveness() (changed bool) {
	if !d.pipeline.WatchesPorts() {
		return false
	}
	loop.Notify(d.watched)
	for _, p := range d.all {
		down := p.problem.Load() != nil || p.driver.status().state != StateUp
		if down != p.info.Down {
			p.info.Down, changed = down, true
		}
	}
	if changed {
		d.updateView()
	}
	return changed
}
