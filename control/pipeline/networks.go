// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"net/netip"
	"slices"

	"weft/control/addresses"
	"weft/control/counters"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/openflow"
)

// Networks of weft-central: settings, addresses, and flows of ports. The agent saves
// them, not the pipeline.

// ChangeNetworks changes the declared networks. Megaflows follow with
// RevalidateNetworks or PortsChanged. It returns the number of addresses beyond
// openflow.MaxNetAddresses, which it leaves out. The caller holds the lock of
// changes.
func (pl *Pipeline) ChangeNetworks(c *addresses.Change) (refused int) {
	return pl.macs.Change(c)
}

// RevalidateNetworks removes the megaflows that changed networks have made wrong.
// After it, no frame uses them. An added or removed network needs PortsChanged
// instead. The caller holds the lock of changes.
func (pl *Pipeline) RevalidateNetworks() { pl.revalidateAddresses() }

// HasNetwork reports whether the network of a segment is declared.
func (pl *Pipeline) HasNetwork(s openflow.Segment) bool { return pl.macs.Network(s) != nil }

// setCentralFlows makes the flows of openflow.CentralTable match the declared ports.
// The caller holds the lock of changes, and mu for writing.
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

// enterCentralFlow gives a flow of CentralTable its row, with the counts of an
// earlier control process.
func (pl *Pipeline) enterCentralFlow(r *openflow.Rule, port uint32) {
	pl.rules.setRow(r, counters.CentralRow(port))
	pl.rules.read(r)
}

// Declared receives the events of declared ports. Its methods return without waiting.
type Declared interface {
	// Seen reports the first frame of a port after its declaration or attachment.
	Seen(port string)
	// Ask asks for the host of an IP address, or of a MAC address if ip is invalid.
	// It returns false if no answer will come.
	Ask(port string, vni uint32, mac uint64, ip netip.Addr) bool
}

// AttachDeclared sets the receiver of events, before any other method is called.
func (pl *Pipeline) AttachDeclared(d Declared) { pl.declared = d }

// ForgetSeen makes the port's next frame a first frame again.
func (pl *Pipeline) ForgetSeen(port uint32) { pl.seen[port].Store(false) }

// The caller holds mu.
func (pl *Pipeline) noteSeen(port uint32) {
	info, ok := pl.view.byNo[port]
	if !ok || !info.Central || info.Kind != openflow.PortNormal || pl.declared == nil {
		return
	}
	if seen := &pl.seen[port]; !seen.Load() && !seen.Swap(true) {
		pl.declared.Seen(info.Name)
	}
}

// env implements openflow.Networks.

func (e *env) Central() bool { return e.view.anyCentral }

func (e *env) CentralTunnel() (openflow.PortInfo, bool) {
	if e.view.centralTunnel == nil {
		return openflow.PortInfo{}, false
	}
	return *e.view.centralTunnel, true
}
