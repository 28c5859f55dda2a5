// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"context"
	"time"

	"weft/control/change"
	"weft/control/loop"
	"weft/control/store"
	"weft/engine"
)

// loadPort makes a saved port. "device" is the port's device, which an earlier control process has
// left in the engine, or nil. If the device cannot be opened, retryPorts tries again later.
func (ps *Ports) loadPort(saved store.Port, device *engine.Kept) {
	p, err := ps.newPort(saved)
	if err != nil {
		ps.log.Error("cannot make a saved port, leaving it out", "port", saved.Name, "error", err)
		if device != nil {
			device.CloseFDs()
		}
		return
	}
	ps.byNumber[saved.Number] = p
	if err := p.driver.open(device); err != nil {
		ps.log.Error("port cannot be set up, trying again later", "port", saved.Name, "error", err)
		p.fail(err)
		return
	}
	p.opened = true
}

// attachPort passes a port's device to the engine. It stores a failure in p.problem, and retryPorts
// tries again.
func (ps *Ports) attachPort(p *switchPort, resume bool) {
	if !p.opened {
		return
	}
	if err := ps.Held(p.saved.Number); err != nil {
		p.fail(err)
		return
	}
	if err := p.driver.attach(resume); err != nil {
		ps.log.Error("port cannot be attached, trying again later", "port", p.saved.Name, "error", err)
		p.fail(err)
		return
	}
	p.problem.Store(nil) // an earlier failure concerned an earlier engine
}

const (
	// retryInterval is the time between two attempts to set up a failed port.
	retryInterval = 2 * time.Second
	// firstRetry is the time from the start of the control process to the first attempt. It is short,
	// because the sockets and XDP programs of a killed process disappear within a moment. The time
	// between attempts doubles up to retryInterval.
	firstRetry = 50 * time.Millisecond
)

// retryPorts tries to set up failed ports again until ctx ends. It also checks the devices of the other
// ports.
func (ps *Ports) retryPorts(ctx context.Context) {
	atStart := map[*switchPort]bool{}
	ps.configuration.View(func(tx *change.Tx) {
		for _, p := range ps.byNumber {
			atStart[p] = p.problem.Load() != nil
		}
	})
	for pause := firstRetry; loop.Sleep(ctx, pause); pause = min(2*pause, retryInterval) {
		ps.configuration.Do(func(tx *change.Tx) {
			changed := ps.checkDevices(tx)
			for _, p := range ps.byNumber {
				if pause == retryInterval || atStart[p] {
					changed = ps.retryPort(tx, p) || changed
				}
			}
			if changed {
				ps.touch(tx)
			}
		})
	}
}

// retryPort tries to set up a failed port. If it succeeds, the caller updates what depends on the
// ports.
func (ps *Ports) retryPort(_ *change.Tx, p *switchPort) (succeeded bool) {
	if p.problem.Load() == nil || ps.engine.Client() == nil {
		return false
	}
	if err := ps.Held(p.saved.Number); err != nil {
		p.fail(err)
		return false
	}
	resume := p.opened // if the device stayed open, it may have ring positions of an earlier engine
	if !p.opened {
		if err := p.driver.open(nil); err != nil {
			p.fail(err)
			return false
		}
		p.opened = true
	}
	if err := p.driver.attach(resume); err != nil {
		p.fail(err)
		return false
	}
	p.problem.Store(nil)
	ps.log.Info("port is set up now", "port", p.saved.Name)
	return true
}
