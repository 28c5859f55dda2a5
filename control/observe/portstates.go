package observe

import (
	"time"

	"weft/api"
)

// PortStates are the states of the ports that one client knows. The zero value knows
// none.
type PortStates struct{ known map[uint32]api.PortState }

// Update notes the ports as they are now and calls send, unless it is nil, with the
// differences. initial marks those that are new to the client.
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
			if was { // its number is another's now
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
