package control

import (
	"net/http"
	"sync/atomic"

	"weft/api"
	"weft/control/counters"
	"weft/control/limits"
	"weft/control/observe"
	"weft/datapath"
	"weft/internal/share"
	"weft/openflow"
	"weft/packet"
)

// registerLimits names every owner of a shared resource. To add one: write a function
// of type limits.Source beside the resource, in its package if it has one (see
// megaflows.limitRows), and register it here with one line. The function is called
// without locks, at any time after newDaemon. A resource must not emit two rows of one
// name for one holder: the metrics would fail, and TestLimitRowsAreUnique does.
func (d *Daemon) registerLimits() {
	// Tests replace d.megaflows after newDaemon.
	d.limits.Add(func(emit func(limits.Row)) { d.megaflows.limitRows(emit) })
	d.limits.Add(d.captures.LimitRows)
	d.limits.Add(d.tableLimitRows)
	d.limits.Add(d.workerLimitRows)
	d.limits.Add(d.learnedLimitRows)
	d.limits.Add(d.macs.limitRows)
}

func (d *Daemon) limitRoutes(route func(pattern string, answer func(r *http.Request) (any, error))) {
	route("GET /v1/limits", func(r *http.Request) (any, error) { return d.listLimits(r.URL.Query().Get("port")) })
}

// listLimits lists all rows, or those that the named port holds.
func (d *Daemon) listLimits(port string) ([]api.Limit, error) {
	rows := d.limits.Rows()
	if port == "" {
		return d.limitList(rows), nil
	}
	d.mu.RLock()
	no, ok := d.view.byName[port]
	d.mu.RUnlock()
	if !ok {
		d.change.Lock()
		defer d.change.Unlock()
		return nil, d.noPort(port)
	}
	return d.limitList(limits.Select(rows, limits.Port(no))), nil
}

func (d *Daemon) limitList(rows []limits.Row) []api.Limit {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return limits.JSON(rows, func(no uint32) string { return observe.PortWord(d.view, no) })
}

// tableLimitRows are the rows of the OpenFlow tables, which only the API fills: beyond
// a limit a change is refused as a whole.
func (d *Daemon) tableLimitRows(emit func(limits.Row)) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	bands := 0
	for _, m := range d.pipeline.Meters(openflow.MeterAll) {
		bands += len(m.Bands)
	}
	for _, r := range []limits.Row{
		{Name: "flows", Unit: "entries", Used: uint64(d.pipeline.Len()), Limit: counters.MaxRules},
		{Name: "groups", Unit: "entries", Used: uint64(len(d.pipeline.Groups(openflow.GroupAny))), Limit: openflow.MaxGroups},
		{Name: "meter_bands", Unit: "entries", Used: uint64(bands), Limit: openflow.MaxBands},
	} {
		r.Holder = limits.All()
		emit(r)
	}
	used, refused := d.recircs.Shares(shareRow(emit, "recirculation_ids"))
	emit(limits.Row{Name: "recirculation_ids", Unit: "entries", Holder: limits.All(), Used: uint64(used), Limit: openflow.MaxFrozen, Refused: refused})
}

// shareRow emits a row of what one port has of a resource.
func shareRow(emit func(limits.Row), name string) func(port uint32, u share.Use) {
	return func(port uint32, u share.Use) {
		emit(limits.Row{Name: name, Unit: "entries", Holder: limits.Port(port), Used: uint64(u.Used),
			Guarantee: uint64(u.Guarantee), Limit: uint64(u.Limit), Refused: u.Refused})
	}
}

// learnedLimitRows are the rows of what frames teach.
func (d *Daemon) learnedLimitRows(emit func(limits.Row)) {
	emit(limits.Row{Name: "lessons", Unit: "entries", Holder: limits.All(), Used: uint64(len(d.lessons)),
		Limit: learnQueue, Refused: d.unlearnt.Load()})
}

// workerLimitRows are the rows of the memory shared with the workers: frames held for
// control by port, and the table of connections.
func (d *Daemon) workerLimitRows(emit func(limits.Row)) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.workers == nil {
		return
	}
	d.heldLimitRows(emit)
	m, err := d.connections()
	if err != nil {
		return
	}
	trackingRows(m, emit)
}

// heldLimitRows counts the held frames by port. A worker writes the slots meanwhile, so
// a count may be off by the frames that come and go. Caller holds mu.
func (d *Daemon) heldLimitRows(emit func(limits.Row)) {
	held, slots, all := map[uint32]uint64{}, uint64(0), uint64(0)
	for _, sh := range d.workers.Shared() {
		slots += uint64(len(sh.Held))
		for i := range sh.Held {
			h := &sh.Held[i]
			if atomic.LoadUint32(&h.State) == datapath.HeldWaiting {
				held[atomic.LoadUint32(&h.InPort)]++
				all++
			}
		}
	}
	var refused uint64
	for no := range d.view.byNo {
		live, old := d.livePort(no), &d.counters.Ports[no]
		n := live.RxDrops[packet.DropHeldShare] + live.RxDrops[packet.DropHeldFull] +
			old.RxDrops[packet.DropHeldShare] + old.RxDrops[packet.DropHeldFull]
		refused += n
		if held[no] == 0 && n == 0 {
			continue
		}
		// A port holds at most as many of a worker's slots as it leaves free.
		free := slots - min(all, slots)
		emit(limits.Row{Name: "held_frames", Unit: "frames", Holder: limits.Port(no),
			Used: held[no], Limit: held[no] + (free-min(held[no], free)+1)/2, Refused: n})
	}
	emit(limits.Row{Name: "held_frames", Unit: "frames", Holder: limits.All(), Used: all, Limit: slots, Refused: refused})
}
