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

// This file has the networks of weft-central: settings, addresses, and the flows of
// their ports. The agent saves them, not the pipeline.

// Addresses returns the table of learned and declared addresses. After a change of the
// table, the caller calls RevalidateAddresses or PortsChanged, which update the
// megaflows.
func (pl *Pipeline) Addresses() *fdb.Table { return pl.macs }

// declaredPorts has the ports of the present View that weft-central has declared.
type declaredPorts struct {
	numbers []declaredNumbers          // ports with a flow in openflow.CentralTable, sorted
	seen    [port.MaxPorts]atomic.Bool // declared ports that have sent a frame
	events  Declared                   // nil: nobody receives events
}

// declaredNumbers has the numbers of a port: in the data path in the upper 32 bits, and in
// flows in the lower ones. They differ if ofport_request is too large for the data path.
type declaredNumbers uint64

func (n declaredNumbers) datapath() uint32 { return uint32(n >> 32) }

func (n declaredNumbers) inFlows() uint32 { return uint32(n) }

// update makes declaredPorts match the ports of view v. It returns the changes of
// CentralTable and the removed ports, by their numbers in the data path. The caller holds
// Pipeline.mu for writing.
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

// noteSeen reports the first frame of a declared port to the receiver of events, and
// ignores later frames.
func (p *declaredPorts) noteSeen(v *View, port uint32) {
	info, ok := v.byDatapath[port]
	if !ok || !info.Central || info.Kind != xlate.PortNormal || p.events == nil {
		return
	}
	if seen := &p.seen[port]; !seen.Load() && !seen.Swap(true) {
		p.events.Seen(info.Name)
	}
}

// setCentralFlows adds and deletes flows of openflow.CentralTable, so that each
// declared port has one. Pipeline.mu is locked for
// writing.
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

// Declared receives the events of declared ports. Its methods return without waiting.
type Declared interface {
	// Seen reports the first frame of a port after its declaration or attachment.
	Seen(port string)
	// Ask requests the location of an IP address, or of a MAC address if ip is invalid.
	// It returns false if no answer will come.
	Ask(port string, vni uint32, mac uint64, ip netip.Addr) bool
}

// AnswerQuestions ends the wait of held frames for answers of weft-central. It resumes frames to
// addresses that the switch knows now. It treats frames to the absent addresses, which nobody has,
// like frames to unknown addresses.
func (pl *Pipeline) AnswerQuestions(absent []fdb.Question) { pl.questions.Answer(absent) }

// ForgetSeen makes the next frame of the port count as its first frame.
func (pl *Pipeline) ForgetSeen(port uint32) { pl.declared.seen[port].Store(false) }
