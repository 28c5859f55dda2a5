// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"net/netip"
	"slices"

	"weft/control/counters"
	"weft/control/limits"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/openflow"
)

// Networks that weft-central has declared: their settings, their addresses, and the
// flows of their ports. Nothing of this is saved: weft-central's agent has it on disk.

// NetworkChange is a change of declared networks.
type NetworkChange struct {
	// Networks has the new settings of networks by segment, which is the VNI plus
	// one. A nil value removes the network.
	Networks  map[openflow.Segment]*openflow.Network
	Addresses []openflow.NetAddress
	Removed   []openflow.RemovedNetAddress
}

// ChangeNetworks changes the declared networks. It returns the number of addresses
// that it has left out because the limit openflow.MaxNetAddresses was reached.
// Megaflows change only when the caller calls RevalidateNetworks or PortsChanged. The
// caller holds the lock of changes.
func (pl *Pipeline) ChangeNetworks(c *NetworkChange) (left int) {
	return pl.macs.changeNetworks(c)
}

// RevalidateNetworks removes the megaflows that have become wrong because addresses
// or settings of declared networks have changed. When it returns, no frame uses the
// removed megaflows. After a network is added or removed, the caller calls
// PortsChanged instead. The caller holds the lock of changes.
func (pl *Pipeline) RevalidateNetworks() { pl.revalidateAddresses() }

// HasNetwork reports whether the network of a segment is declared.
func (pl *Pipeline) HasNetwork(s openflow.Segment) bool { return pl.macs.network(s) != nil }

// setCentralFlows gives each port with Central its flow in openflow.CentralTable, and
// removes the flows of other ports. The caller holds the lock of changes, and mu for
// writing.
func (pl *Pipeline) setCentralFlows(v *View) openflow.Changes {
	var now []uint32 // sorted, like View.infos
	for i := range v.infos {
		if v.infos[i].Central {
			now = append(now, v.infos[i].No)
		}
	}
	before := pl.centralPorts
	if slices.Equal(now, before) {
		return openflow.Changes{}
	}
	pl.centralPorts = now
	var mods []openflow.FlowMod
	for _, port := range before {
		if _, still := slices.BinarySearch(now, port); !still {
			mods = append(mods, openflow.CentralFlow(openflow.DeleteStrict, port))
			pl.counters.Rules[counters.CentralRow(port)] = counters.Rule{}
		}
	}
	for _, port := range now {
		if _, was := slices.BinarySearch(before, port); !was {
			mods = append(mods, openflow.CentralFlow(openflow.Add, port))
			pl.seen[port].Store(false)
		}
	}
	changes, err := pl.tables.ApplyCentral(mods, clock.Monotonic())
	if err != nil {
		pl.log.Error("flows of declared ports are missing", "error", err)
	}
	for _, r := range changes.Added {
		match := r.Match.Unpack()
		pl.enterCentralFlow(r, uint32(match.Value[flowtable.WPort]>>32))
	}
	return changes
}

// enterCentralFlow gives a flow of CentralTable its slot in the counter region, and the
// counts that an earlier control process left there.
func (pl *Pipeline) enterCentralFlow(r *openflow.Rule, port uint32) {
	pl.rules.setRow(r, counters.CentralRow(port))
	pl.rules.read(r)
}

// Declared receives the events of declared ports. Its methods return without waiting.
type Declared interface {
	// Seen reports the first frame of a port since it was declared or attached.
	Seen(port string)
	// Ask asks for an address of a network, for a frame of a port: a MAC address if ip is
	// invalid. It returns false if there will be no answer.
	Ask(port string, vni uint32, mac uint64, ip netip.Addr) bool
}

// AttachDeclared sets the receiver of events of declared ports. It is called before
// anything else, or not at all.
func (pl *Pipeline) AttachDeclared(d Declared) { pl.declared = d }

// ForgetSeen makes the port's next first frame an event again: the port is declared anew.
func (pl *Pipeline) ForgetSeen(port uint32) { pl.seen[port].Store(false) }

// noteSeen reports the port's first frame. The caller holds mu.
func (pl *Pipeline) noteSeen(port uint32) {
	info, ok := pl.view.byNo[port]
	if !ok || !info.Central || info.Kind != openflow.PortNormal || pl.declared == nil {
		return
	}
	if seen := &pl.seen[port]; !seen.Load() && !seen.Swap(true) {
		pl.declared.Seen(info.Name)
	}
}

func (m *macs) changeNetworks(c *NetworkChange) (left int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s, network := range c.Networks {
		m.table.SetNetwork(s, network)
	}
	return m.table.SetNetAddresses(c.Addresses, c.Removed)
}

// netLimitRows emits the use of the table of declared addresses.
func (m *macs) netLimitRows(emit func(limits.Row)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	emit(limits.Row{Name: "net_addresses", Unit: "entries", Holder: limits.All(), Used: uint64(m.table.NetAddresses()),
		Limit: openflow.MaxNetAddresses, Refused: m.table.RefusedNetAddresses()})
}

func (m *macs) network(s openflow.Segment) *openflow.Network {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.Network(s)
}

func (m *macs) place(s openflow.Segment, mac uint64) (openflow.Place, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.Place(s, mac)
}

func (m *macs) hostOf(s openflow.Segment, ip netip.Addr) (uint64, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.HostOf(s, ip)
}

// env implements openflow.Networks.

func (e *env) Central() bool { return e.view.anyCentral }

func (e *env) CentralTunnel() (openflow.PortInfo, bool) {
	if e.view.centralTunnel == nil {
		return openflow.PortInfo{}, false
	}
	return *e.view.centralTunnel, true
}

func (e *env) Network(s openflow.Segment) *openflow.Network { return e.macs.network(s) }

func (e *env) Place(s openflow.Segment, mac uint64) (openflow.Place, bool) {
	return e.macs.place(s, mac)
}

func (e *env) HostOf(s openflow.Segment, ip netip.Addr) (uint64, bool) { return e.macs.hostOf(s, ip) }
