// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"weft/control/counters"
	"weft/control/limits"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
)

// LimitRows reports the use and limit of each shared resource of the pipeline. It is a
// limits.Source.
func (pl *Pipeline) LimitRows(emit func(limits.Row)) {
	pl.megaflows.LimitRows(emit)
	pl.tableLimitRows(emit)
	pl.learner.limitRows(emit)
	pl.addressLimitRows(emit)
	pl.questions.LimitRows(emit)
	pl.leases.LimitRows(emit)
	emit(limits.Row{Name: "costly_megaflows", Unit: "entries", Holder: limits.All(), Evicted: pl.untranslated.Load()})
	emit(limits.Row{Name: "unused_megaflows", Unit: "entries", Holder: limits.All(), Evicted: pl.unused.Load()})
	notes, evicted := pl.notes.Shares(limits.ShareRow(emit, "controller_notes"))
	emit(limits.Row{Name: "controller_notes", Unit: "entries", Holder: limits.All(), Used: uint64(notes), Limit: xlate.MaxNotes, Evicted: evicted})
}

// tableLimitRows reports the use and limits of the OpenFlow tables. A change that exceeds a limit is
// refused as a whole.
func (pl *Pipeline) tableLimitRows(emit func(limits.Row)) {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	flows, groups, bands, bridges := 0, 0, 0, 0
	pl.visitTables(func(tables *ofproto.Tables) {
		bridges++
		flows += tables.Len()
		groups += len(tables.Groups(openflow.GroupAny))
		for _, m := range tables.Meters(openflow.MeterAll) {
			bands += len(m.Bands)
		}
	})
	for _, r := range []limits.Row{
		{Name: "flows", Unit: "entries", Used: uint64(flows), Limit: counters.MaxRules},
		{Name: "groups", Unit: "entries", Used: uint64(groups), Limit: uint64(bridges * openflow.MaxGroups)},
		{Name: "meter_bands", Unit: "entries", Used: uint64(bands), Limit: openflow.MaxBands},
	} {
		r.Holder = limits.All()
		emit(r)
	}
	taught, most, untaught := pl.First().tables.LearnedShares(limits.ShareRow(emit, "learned_flows"))
	emit(limits.Row{Name: "learned_flows", Unit: "entries", Holder: limits.All(), Used: uint64(taught), Limit: uint64(most), Refused: untaught})
	used, refused := pl.recircs.Shares(limits.ShareRow(emit, "recirculation_ids"))
	kept, unkept := pl.options.Shares(limits.ShareRow(emit, "geneve_options"))
	emit(limits.Row{Name: "geneve_options", Unit: "entries", Holder: limits.All(), Used: uint64(kept), Limit: xlate.MaxOptions, Refused: unkept})
	emit(limits.Row{Name: "recirculation_ids", Unit: "entries", Holder: limits.All(), Used: uint64(used), Limit: xlate.MaxFrozen, Refused: refused})
}

// addressLimitRows reports the number of learned MAC addresses, for each port and in total, and the
// number of addresses from the service weft-central. The refusals of a port count the addresses that
// it learned too fast, and the addresses of another port that it used.
func (pl *Pipeline) addressLimitRows(emit func(limits.Row)) {
	var learned, moves uint64
	for _, s := range pl.macs.Shares() {
		r := &s.Refused
		refused := r.Declared + r.OtherVNI + r.Moves
		learned += r.Rate
		moves += refused
		if s.Used != 0 || r.Rate != 0 {
			emit(limits.Row{Name: "macs", Unit: "entries", Holder: limits.Port(s.Port), Used: uint64(s.Used),
				Guarantee: uint64(pl.macs.Guarantee()), Limit: uint64(pl.macs.PortLimit()), Refused: r.Rate})
		}
		if refused != 0 {
			emit(limits.Row{Name: "mac_moves", Unit: "moves", Holder: limits.Port(s.Port), Refused: refused})
		}
	}
	emit(limits.Row{Name: "macs", Unit: "entries", Holder: limits.All(), Used: uint64(pl.macs.Len()), Limit: fdb.DefaultLimit, Refused: learned})
	emit(limits.Row{Name: "mac_moves", Unit: "moves", Holder: limits.All(), Refused: moves})
	emit(limits.Row{Name: "net_addresses", Unit: "entries", Holder: limits.All(), Used: uint64(pl.macs.NetAddresses()),
		Limit: fdb.MaxNetAddresses, Refused: pl.macs.RefusedNetAddresses()})
}

// limitRows reports the use of the queue of flows that wait to be learned.
func (l *learner) limitRows(emit func(limits.Row)) {
	emit(limits.Row{Name: "lessons", Unit: "entries", Holder: limits.All(), Used: uint64(len(l.lessons)),
		Limit: learnQueue, Refused: l.refused.Load()})
}
