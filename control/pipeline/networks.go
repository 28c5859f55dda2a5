// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"weft/control/change"
	"weft/control/counters"
	"weft/internal/clock"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
	"weft/port"
)

// This file has what weft-central, the service that configures the networks of many hosts,
// configures on this host: addresses, and a flow for each of its ports. The agent of weft-central
// saves the configuration, not the pipeline.

// Addresses returns the table of MAC and IP addresses, both those that the switch has learned and
// those from the service weft-central. After a change of the table, the caller calls
// RevalidateAddresses or PortsChanged, which update the megaflows.
func (pl *Pipeline) Addresses() *fdb.Table { return pl.macs }

// declaredPorts has the ports that are in a network of the service weft-central.
type declaredPorts struct {
	numbers []declaredNumbers          // ports with a flow in openflow.CentralTable, sorted
	seen    [port.MaxPorts]atomic.Bool // declared ports that have sent a frame
	events  Declared                   // nil: nobody receives events
}

// declaredNumbers has the two numbers of a port: the datapath number in the upper 32 bits, and the
// number in flows in the lower 32 bits. They differ if ofport_request is too large for the datapath.
type declaredNumbers uint64

func (n declaredNumbers) datapath() uint32 { return uint32(n >> 32) }

func (n declaredNumbers) inFlows() uint32 { return uint32(n) }

// update replaces the list of ports by those of v that are in a network of the service weft-central.
// It returns the changes of flows in the table openflow.CentralTable, and the datapath numbers of
// the ports that are no longer in the list. The caller holds Pipeline.mu for writing.
func (p *declaredPorts) update(v *View) (mods []openflow.FlowMod, removed []uint32) {
	var now []declaredNumbers
	for i := range v.infos {
		if info := &v.infos[i]; info.Central {
			now = append(now, declaredNumbers(info.At())<<32|declaredNumbers(info.No))
		}
	}
	slices.Sort(now)
	before := p.numbers
	p.numbers = now
	for _, port := range before {
		if _, still := slices.BinarySearch(now, port); !still {
			mods, removed = append(mods, ofproto.CentralFlow(openflow.DeleteStrict, port.inFlows())), append(removed, port.datapath())
		}
	}
	for _, port := range now {
		if _, was := slices.BinarySearch(before, port); !was {
			mods = append(mods, ofproto.CentralFlow(openflow.Add, port.inFlows()))
			p.seen[port.datapath()].Store(false)
		}
	}
	return mods, removed
}

// noteSeen tells the agent of the service weft-central when a port sends its first frame.
func (p *declaredPorts) noteSeen(v *View, port uint32) {
	info, ok := v.byDatapath[port]
	if !ok || !info.Central || info.Kind != xlate.PortNormal || p.events == nil {
		return
	}
	if seen := &p.seen[port]; !seen.Load() && !seen.Swap(true) {
		p.events.Seen(info.Name)
	}
}

// setCentralFlows adds and deletes flows of openflow.CentralTable, so that the table has one flow
// for each port in a network of the service weft-central. The caller holds Pipeline.mu for writing.
func (pl *Pipeline) setCentralFlows(_ *change.Tx, v *View) ofproto.Changes {
	mods, removed := pl.declared.update(v)
	if len(mods) == 0 {
		return ofproto.Changes{}
	}
	for _, port := range removed {
		pl.counters.Rules[counters.CentralRow(port)] = counters.Rule{}
	}
	changes, err := pl.tables.ApplyCentral(mods, clock.Monotonic())
	if err != nil {
		pl.log.Error("flows of declared ports are missing", "error", err)
	}
	for _, r := range changes.Added { // added rules continue with the counts of an earlier control process
		match := r.Match.Unpack()
		pl.rules.EnterAt(r, counters.CentralRow(v.Datapath(match.Value.Key().InPort())))
	}
	return changes
}

// Declared is the agent of the service weft-central, which gets events about its ports. The methods
// return without waiting.
type Declared interface {
	// Seen reports the first frame of a port since the port was attached or assigned to a network.
	Seen(port string)
	// Ask asks the service weft-central where an IP address is, or where a MAC address is if ip is
	// invalid. It returns false if no answer will come.
	Ask(port string, vni uint32, mac uint64, ip netip.Addr) bool
}

// AnswerQuestions forwards the stored frames that wait for the location of an address, if the switch
// knows the address now. "absent" has the addresses that no host has. Frames to them are treated
// like frames to unknown addresses.
func (pl *Pipeline) AnswerQuestions(absent []fdb.Question) { pl.questions.Answer(absent) }

// ForgetSeen makes the next frame of the port count as the first one, about which the service
// weft-central gets an event.
func (pl *Pipeline) ForgetSeen(port uint32) { pl.declared.seen[port].Store(false) }
