// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"net/netip"

	"weft/control/limits"
	"weft/openflow"
)

// Networks that weft-central has declared: their settings, their addresses, and the
// flows of their ports. Nothing of this is saved: weft-central's agent has it on disk.

// NetworkChange is a change of declared networks.
type NetworkChange struct {
	// Networks has new settings by segment; nil: the network is gone.
	Networks  map[openflow.Segment]*openflow.Network
	Addresses []openflow.NetAddress
	Removed   []openflow.RemovedNetAddress
}

// ChangeNetworks changes the declared networks. It returns the number of addresses that
// were left out at openflow.MaxNetAddresses. Megaflows stay until RevalidateNetworks or
// PortsChanged. The caller holds the lock of changes.
func (pl *Pipeline) ChangeNetworks(c *NetworkChange) (left int) {
	return pl.macs.changeNetworks(c)
}

// RevalidateNetworks removes the megaflows that a change of declared networks has made
// wrong. When it returns, no frame uses them. The caller holds the lock of changes.
func (pl *Pipeline) RevalidateNetworks() { pl.revalidate(usesMACs) }

// HasNetwork reports whether the network of a segment is declared.
func (pl *Pipeline) HasNetwork(s openflow.Segment) bool { return pl.macs.network(s) != nil }

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
