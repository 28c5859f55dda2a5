// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"maps"
	"time"

	"weft/openflow/ofp"
)

// ControllerState is the state of the connection to a controller, for the API and Open
// vSwitch's database.
type ControllerState struct {
	Connected bool
	Role      string    // master, slave or other; "": not connected
	Since     time.Time // start of the connection, or end of the last one; zero: it was never connected
	Problem   string    // reason why the last attempt or connection ended; "": none
}

// Controllers returns the states of the controllers to which the switch connects, by target.
func (s *Service) Controllers() map[string]ControllerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := map[string]ControllerState{}
	for target, c := range s.controllers {
		state := c.state
		state.Connected = c.connected.Load()
		list[target] = state
	}
	for conn := range s.conns {
		if c := conn.controller; c != nil && c.connected.Load() {
			state := list[c.target]
			state.Role = conn.roleWord()
			list[c.target] = state
		}
	}
	return list
}

func (s *Service) showControllers(running map[string]*controller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.controllers = maps.Clone(running)
}

// roleWord returns the peer's role as a controller in the spelling of Open vSwitch's database:
// master, slave or other.
func (c *Conn) roleWord() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.master {
	case ofp.RoleMaster:
		return "master"
	case ofp.RoleSlave:
		return "slave"
	}
	return "other"
}

// noteState calls the function "change" with the controller's state under the lock of the service.
// Controllers returns the changed state.
func (c *controller) noteState(change func(state *ControllerState)) {
	c.service.mu.Lock()
	defer c.service.mu.Unlock()
	change(&c.state)
}
