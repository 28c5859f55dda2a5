// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"errors"
	"fmt"
	"time"

	"weft/api"
	"weft/control/change"
	"weft/engine"
)

// If the engine ends while a port is added, the port is rarely the cause. So the port keeps its open
// device, and the addition waits for the next engine, which gets the port like all others.

const (
	// nextEngineTimeout is how long the addition of a port waits for the next engine. A busy machine may
	// need seconds to start one. After the timeout the port is deleted again.
	nextEngineTimeout = 30 * time.Second
	// nextEngineInterval is the interval at which a waiting addition checks whether an engine has its
	// port.
	nextEngineInterval = 20 * time.Millisecond
)

// attachFirst passes a new port's device to the engine. If the engine ends meanwhile, it returns
// true and no error, because the next engine gets the port.
func (p *switchPort) attachFirst() (interrupted bool, err error) {
	if err = p.driver.attach(false); errors.Is(err, engine.ErrGone) {
		p.fail(err)
		return true, nil
	}
	return false, err
}

// completeAddition waits until the next engine has a new port, and describes the port. If no engine gets
// the port in time, it deletes the port and returns the reason as an error.
func (ps *Ports) completeAddition(p *switchPort) (api.Port, error) {
	ps.log.Info("a new port waits for the next engine", "port", p.saved.Name)
	ps.awaitAttachment(p)
	var described api.Port
	var failure error
	err := ps.configuration.Update(func(tx *change.Tx) error {
		p.interrupted = false
		problem := p.problem.Load()
		if problem == nil || ps.byNumber[p.saved.Number] != p {
			described = ps.describeChanged(tx, p)
			return nil
		}
		failure = fmt.Errorf("port %s: %s; the port is not added, try again", p.saved.Name, *problem)
		ps.delete(tx, p)
		return nil
	})
	return described, errors.Join(failure, err)
}

// awaitAttachment returns when an engine has the port, after nextEngineTimeout, or when the daemon
// stops (Ports.Run ends). It also returns if no engine gets the port for now, because the port has
// hung an earlier engine.
func (ps *Ports) awaitAttachment(p *switchPort) {
	timeout := time.NewTimer(nextEngineTimeout)
	defer timeout.Stop()
	look := time.NewTicker(nextEngineInterval)
	defer look.Stop()
	for p.problem.Load() != nil && ps.Held(p.saved.Number) == nil {
		select {
		case <-look.C:
		case <-timeout.C:
			return
		case <-ps.ended:
			return
		}
	}
}
