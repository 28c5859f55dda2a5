// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"sync"

	"weft/openflow/ofp"
	"weft/openflow/ofproto"
)

// Services has the OpenFlow service of each bridge, by the bridge's number. Its zero value is
// empty.
type Services struct {
	mu   sync.RWMutex // no lock is taken under it
	list map[uint8]*Service
}

// Put makes s the OpenFlow service of the bridge with this number.
func (ss *Services) Put(bridge uint8, s *Service) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.list == nil {
		ss.list = map[uint8]*Service{}
	}
	ss.list[bridge] = s
}

// Remove removes the OpenFlow service of a bridge from the set.
func (ss *Services) Remove(bridge uint8) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.list, bridge)
}

// Of returns the service of a bridge, or nil if it has none.
func (ss *Services) Of(bridge uint8) *Service {
	ss.mu.RLock()
	defer ss.mu.RUnlock()
	return ss.list[bridge]
}

// CountMonitors returns the number of connections of all bridges that want events about flows.
func (ss *Services) CountMonitors() (n int) {
	ss.mu.RLock()
	defer ss.mu.RUnlock()
	for _, s := range ss.list {
		n += s.Count()
	}
	return n
}

// TellFlow reports a change of rule r to the connections of its bridge. The caller holds the
// lock that guards the rule.
func (ss *Services) TellFlow(event ofp.FlowEvent, r *ofproto.Rule) {
	if s := ss.Of(r.Bridge); s != nil && s.Count() > 0 {
		s.TellFlow(event, r)
	}
}
