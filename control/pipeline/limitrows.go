// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"sync/atomic"

	"weft/control/counters"
	"weft/control/limits"
	"weft/datapath"
	"weft/openflow"
	"weft/packet"
)

// tableLimitRows emits the rows of the OpenFlow tables. The API refuses changes
// beyond a limit as a whole.
func (pl *Pipeline) tableLimitRows(emit func(limits.Row)) {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	bands := 0
	for _, m := range pl.tables.Meters(openflow.MeterAll) {
		bands += len(m.Bands)
	}
	for _, r := range []limits.Row{
		{Name: "flows", Unit: "entries", Used: uint64(pl.tables.Len()), Limit: counters.MaxRules},
		{Name: "groups", Unit: "entries", Used: uint64(len(pl.tables.Groups(openflow.GroupAny))), Limit: openflow.MaxGroups},
		{Name: "meter_bands", Unit: "entries", Used: uint64(bands), Limit: openflow.MaxBands},
	} {
		r.Holder = limits.All()
		emit(r)
	}
	used, refused := pl.recircs.Shares(limits.ShareRow(emit, "recirculation_ids"))
	emit(limits.Row{Name: "recirculation_ids", Unit: "entries", Holder: limits.All(), Used: uint64(used), Limit: openflow.MaxFrozen, Refused: refused})
}

// learnedLimitRows emits the rows of state that frames create.
func (pl *Pipeline) learnedLimitRows(emit func(limits.Row)) {
	emit(limits.Row{Name: "lessons", Unit: "entries", Holder: limits.All(), Used: uint64(len(pl.learner.lessons)),
		Limit: learnQueue, Refused: pl.learner.refused.Load()})
}

// heldLimitRows emits the held frames by port. The count is approximate, because
// workers continue.
func (pl *Pipeline) heldLimitRows(emit func(limits.Row)) {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	if pl.workers == nil {
		return
	}
	held, slots, all := map[uint32]uint64{}, uint64(0), uint64(0)
	parts := newFragmentRows(len(pl.workers.Shared()))
	for worker, sh := range pl.workers.Shared() {
		slots += uint64(len(sh.Held))
		for i := range sh.Held {
			h := &sh.Held[i]
			if atomic.LoadUint32(&h.State) == datapath.HeldWaiting {
				held[atomic.LoadUint32(&h.InPort)]++
				all++
				parts.add(worker, h)
			}
		}
	}
	var refused uint64
	for no := range pl.view.byNo {
		live, old := pl.livePort(no), &pl.counters.Ports[no]
		n := live.RxDrops[packet.DropHeldShare] + live.RxDrops[packet.DropHeldFull] +
			old.RxDrops[packet.DropHeldShare] + old.RxDrops[packet.DropHeldFull]
		refused += n
		parts.emit(emit, no, live.RxDrops[packet.DropBadFragment]+old.RxDrops[packet.DropBadFragment])
		if held[no] == 0 && n == 0 {
			continue
		}
		// A port may hold as many slots as are free: at most half of all slots but
		// those of other ports.
		free := slots - min(all, slots)
		emit(limits.Row{Name: "held_frames", Unit: "frames", Holder: limits.Port(no),
			Used: held[no], Limit: held[no] + (free-min(held[no], free)+1)/2, Refused: n})
	}
	emit(limits.Row{Name: "held_frames", Unit: "frames", Holder: limits.All(), Used: all, Limit: slots, Refused: refused})
	parts.emitAll(emit)
}
