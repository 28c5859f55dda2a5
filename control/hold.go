package control

import "weft/control/observe"

// Hold is observe.Engine's: it returns the workers of the present engine, which stay
// until release.
func (d *Pipeline) Hold() (w observe.Workers, release func()) {
	d.mu.RLock()
	if d.workers == nil {
		return nil, d.mu.RUnlock
	}
	return d.workers, d.mu.RUnlock
}
