// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"time"

	"weft/api"
)

// PortStates has the states of the ports that one client has last received.
type PortStates struct{ known map[uint32]api.PortState }

// Update compares the ports with their last states, and calls send with an event for each change. send
// may be nil. If initial is true, a new port gets the event "initial" instead of "added".
func (p *PortStates) Update(list []api.Port, initial bool, send func(*api.Event) error) (err error) {
	now := map[uint32]api.PortState{}
	emit := func(event string, s api.PortState) {
		if send != nil && err == nil {
			err = send(&api.Event{Time: time.Now(), Kind: api.EventPort, Event: event, Port: &s})
		}
	}
	for _, port := range list {
		s := api.PortState{Number: port.Number, Name: port.Name, Type: port.Type, State: port.State, Detail: port.Detail}
		now[s.Number] = s
		old, was := p.known[s.Number]
		switch {
		case was && old == s:
		case was && old.Name == s.Name && old.Type == s.Type:
			emit(s.State, s)
		case initial:
			emit(api.EventInitial, s)
		default:
			if was { // the number now belongs to another port
				emit(api.EventDeleted, old)
			}
			emit(api.EventAdded, s)
		}
	}
	for no, old := range p.known {
		if _, is := now[no]; !is {
			emit(api.EventDeleted, old)
		}
	}
	p.known = now
	return err
}
