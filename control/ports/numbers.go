// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"fmt"
	"maps"
	"strconv"

	"weft/control/change"
	"weft/control/store"
	"weft/control/usererr"
	"weft/port"
)

// Each port has two numbers. Its datapath number is unique in the weftd. Its number in flows is
// unique in its bridge. In the first bridge both numbers are equal, except for LOCAL and for
// requested numbers that are too large for the datapath. In other bridges the numbers in flows begin
// at 1, and each port gets the highest free datapath number.

const (
	requestOption = "ofport_request"
	// maxRequest is the largest number of a port in flows (OFPP_MAX of OpenFlow 1.0 less 1).
	// Larger numbers are reserved, such as LOCAL.
	maxRequest = 0xfeff
	// numberMask selects the bits of a store.NumberKey with the number in flows.
	numberMask = 0xffff
)

var numberOptions = optionTable{requestOption: {check: numberIn(1, maxRequest)}}

// chooseNumbers sets the two numbers of a new port. It only checks the options that it reads.
// newPort checks the others.
func (ps *Ports) chooseNumbers(saved *store.Port) (err error) {
	kind, values, _, err := parseOptions(saved.Options)
	if err != nil {
		return err
	}
	bridge, err := ps.bridgeNumber(values)
	if err != nil {
		return err
	}
	request, _ := strconv.Atoi(values[requestOption]) // the option table has checked the number; "" is 0
	wanted := uint32(request)
	switch {
	case kind == kindLocal && wanted != 0:
		return usererr.Errorf("%s=%d: flows call the port LOCAL; expected no such option", requestOption, wanted)
	case kind == kindLocal || portKinds[kind].kind.Hidden() || kind == kindBond && wanted == 0: // hidden ports are in no flow
		saved.Number, err = ps.lastNumber()
		return err
	case wanted != 0:
		if p := ps.inFlows(bridge, wanted); p != nil {
			return usererr.Errorf("%s=%d: port %s has this number; expected another", requestOption, wanted, p.saved.Name)
		}
	}
	if bridge == 0 && wanted < port.MaxPorts {
		return ps.chooseFirst(saved, wanted)
	}
	if saved.InFlows = wanted; wanted == 0 {
		saved.InFlows = ps.freeInFlows(bridge, saved.Name)
	}
	saved.Number, err = ps.lastNumber()
	return err
}

// chooseFirst sets the number of a port of the first bridge. wanted is 0, or a number that
// no port of the bridge has.
func (ps *Ports) chooseFirst(saved *store.Port, wanted uint32) (err error) {
	if wanted == 0 {
		saved.Number, err = ps.freeNumber(saved.Name)
		return err
	}
	if p := ps.byNumber[wanted]; p != nil {
		return usererr.Errorf("%s=%d: port %s has this number in the data path; expected another", requestOption, wanted, p.saved.Name)
	}
	saved.Number = wanted
	return nil
}

// inFlows returns the port of a bridge that has this number in flows, or nil.
func (ps *Ports) inFlows(bridge uint8, number uint32) *switchPort {
	for _, p := range ps.inBridge(bridge) {
		if p.info.No == number {
			return p
		}
	}
	return nil
}

// freeInFlows returns a number that no port has in the flows of the bridge. The bridge is not the
// first one. freeInFlows has the same preferences as the method free.
func (ps *Ports) freeInFlows(bridge uint8, name string) uint32 {
	used := map[uint32]bool{}
	for _, p := range ps.inBridge(bridge) {
		used[p.info.No] = true
	}
	for key, last := range ps.numbers { // PreferIn may have set a number that the method free does not consider
		if n := key & numberMask; last == name && store.BridgeOf(key) == bridge && n >= port.MaxPorts && !used[n] {
			return n
		}
	}
	// A bridge has fewer ports than there are numbers, so one is free.
	return ps.free(name, port.MaxPorts, func(n uint32) bool { return used[n] }, func(n uint32) uint32 { return store.NumberKey(bridge, n) })
}

// PreferIn records that a port with this name last had the number in the flows of the bridge. A port
// that is added later under this name gets the number. Other ports get other numbers as long as
// there are some. PreferIn has no effect while a port has the number.
func (ps *Ports) PreferIn(_ *change.Tx, bridge, name string, number uint32) {
	b, err := ps.bridgeNumber(map[string]string{"bridge": bridge})
	if err != nil || number == 0 || number > maxRequest {
		return
	}
	if ps.inFlows(b, number) == nil {
		ps.numbers[store.NumberKey(b, number)] = name
	}
}

// free returns a number from 1 to "highest" that is not taken, or 0. It prefers the last number of a
// port with this name, so that flows with the number keep their meaning. Otherwise it prefers the
// lowest number that no port has ever had. The function key returns a number's key in the map
// Ports.numbers.
func (ps *Ports) free(name string, highest uint32, taken func(n uint32) bool, key func(n uint32) uint32) uint32 {
	fresh, free := uint32(0), uint32(0)
	for n := highest; n > 0; n-- {
		if taken(n) {
			continue
		}
		free = n
		switch last, was := ps.numbers[key(n)]; {
		case !was:
			fresh = n
		case last == name:
			return n
		}
	}
	if fresh == 0 {
		return free
	}
	return fresh
}

// remember stores a new port's name under both of its numbers. The method free reads these names.
func (ps *Ports) remember(p *switchPort) {
	ps.numbers[p.saved.Number] = p.saved.Name
	if p.saved.InFlows != 0 {
		ps.numbers[store.NumberKey(p.info.Bridge, p.saved.InFlows)] = p.saved.Name
	}
}

// forgetNumbers deletes the names stored under the numbers of a deleted bridge.
func (ps *Ports) forgetNumbers(bridge uint8) {
	maps.DeleteFunc(ps.numbers, func(key uint32, _ string) bool { return store.BridgeOf(key) == bridge })
}

// freeNumber returns a free datapath number, chosen by the method free.
func (ps *Ports) freeNumber(name string) (uint32, error) {
	n := ps.free(name, port.MaxPorts-1, func(n uint32) bool { return ps.byNumber[n] != nil }, func(n uint32) uint32 { return n })
	if n == 0 {
		return 0, fmt.Errorf("%d ports exist already, which is the limit; delete one first", port.MaxPorts-1)
	}
	return n, nil
}

// lastNumber returns the highest free datapath number. It is for ports with another number in flows,
// so that low numbers stay free for the first bridge's ports.
func (ps *Ports) lastNumber() (uint32, error) {
	for n := uint32(port.MaxPorts - 1); n > 0; n-- {
		if ps.byNumber[n] == nil && n != centralNumber {
			return n, nil
		}
	}
	return ps.freeNumber("")
}
