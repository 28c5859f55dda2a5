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

// An engine that ends while a port is added is rarely the port's fault. The port keeps its open
// device then, and the addition waits for the next engine, which gets the port like all others.

const (
	// nextEngineTimeout is how long the addition of a port waits for the next engine. A busy
	// machine may need seconds to start one. After it the port is deleted again.
	nextEngineTimeout = 30 * time.Second
	// nextEngineInterval is the interval at which a waiting addition looks for it.
	nextEngineInterval = 20 * time.Millisecond
)

// attachFirst passes a new port's device to the engine. If the engine ends meanwhile, it returns
// no error and sets p.interrupted.
func (p *switchPort) attachFirst() error {
	err := p.driver.attach(false)
	if errors.Is(err, engine.ErrGone) {
		p.fail(err)
		p.interrupted = true
		return nil
	}
	return err
}

// added calls add in a transaction and describes the port. If the engine has ended meanwhile, it
// waits until the next engine has the port.
func (ps *Ports) added(add func(tx *change.Tx) (*switchPort, error)) (api.Port, error) {
	var p *switchPort
	var waits bool
	described, err := change.Result(ps.configuration, func(tx *change.Tx) (a api.Port, err error) {
		if p, err = add(tx); err != nil {
			return api.Port{}, err
		}
		waits = p.interrupted
		return ps.describeChanged(p), nil
	})
	if err != nil || !waits {
		return described, err
	}
	ps.log.Info("a new port waits for the next engine", "port", p.saved.Name)
	ps.awaitAttachment(p)
	return change.Result(ps.configuration, func(tx *change.Tx) (api.Port, error) {
		p.interrupted = false
		problem := p.problem.Load()
		if problem == nil || ps.byNumber[p.saved.Number] != p {
			return ps.describeChanged(p), nil
		}
		return api.Port{}, errors.Join(fmt.Errorf("port %s: %s; the port is not added, try again", p.saved.Name, *problem), ps.delete(p))
	})
}

// awaitAttachment returns when an engine has the port, when the port is held back from engines
// because it has hung one, after nextEngineTimeout, or when Run ends.
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
