// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"cmp"
	"slices"

	"weft/api"
	"weft/control/change"
	"weft/control/megaflows"
	"weft/control/pipeline"
	"weft/control/workers"
	"weft/datapath"
	"weft/internal/clock"
	"weft/openflow"
)

// DumpMegaflows describes all megaflows in the workers' caches.
func (ts *Tables) DumpMegaflows(words pipeline.PortWords) (flows []api.Megaflow) {
	ts.configuration.View(func(tx *change.Tx) {
		now, names, list := clock.Monotonic(), ts.pipeline.MegaflowNames(words), ts.pipeline.Megaflows().List()
		w := ts.pipeline.Workers()
		flows = make([]api.Megaflow, len(list))
		ts.pipeline.InTurns(tx, len(list), func(i int) {
			flows[i] = describeMegaflow(w, list[i], now, names)
			flows[i].InKernel, flows[i].Worker = ts.pipeline.InKernel(list[i])
		})
	})
	return flows
}

// describeMegaflow describes megaflow m with the statistics that the workers w have for it. The
// caller holds Pipeline.mu.
func describeMegaflow(w *workers.Workers, m *megaflows.Megaflow, now uint64, names openflow.Names) api.Megaflow {
	packets, bytes, usedNS := w.Statistics(m.Slot, m.Generation)
	key := m.Key()
	match := openflow.MatchOf(&key, m.Mask())
	f := api.Megaflow{
		Slot: m.Slot, Packets: packets, Bytes: bytes,
		Match:   openflow.FormatMatch(&match, names),
		Actions: openflow.FormatDatapathActions(m.Actions, names),
	}
	if usedNS != 0 {
		used := seconds(now, usedNS)
		f.UsedS = &used
	}
	return f
}

// Sample has the packet and byte counts of all megaflows at one time.
type Sample map[*megaflows.Megaflow]hotCount

type hotCount struct{ packets, bytes uint64 }

// Sample returns the present counts of all megaflows.
func (ts *Tables) Sample() Sample {
	w, release := ts.pipeline.Hold()
	defer release()
	list := ts.pipeline.Megaflows().List()
	counts := make(Sample, len(list))
	for _, m := range list {
		packets, bytes, _ := w.Statistics(m.Slot, m.Generation)
		counts[m] = hotCount{packets, bytes}
	}
	return counts
}

// Hottest describes the n megaflows that got the most packets between two samples.
// seconds is the time between the samples.
func (ts *Tables) Hottest(old, new Sample, n int, seconds float64) []api.Hot {
	type row struct {
		m *megaflows.Megaflow
		hotCount
	}
	var rows []row
	for m, c := range new {
		was := old[m] // zero for a megaflow that the old sample lacks
		if c.packets > was.packets {
			rows = append(rows, row{m, hotCount{c.packets - was.packets, c.bytes - min(was.bytes, c.bytes)}})
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.packets, a.packets), cmp.Compare(a.m.Slot, b.m.Slot))
	})
	names := ts.pipeline.MegaflowNames(pipeline.ByName)
	w, release := ts.pipeline.Hold()
	defer release()
	hot := []api.Hot{}
	for _, r := range rows[:min(n, len(rows))] {
		hot = append(hot, api.Hot{
			Megaflow:    describeMegaflow(w, r.m, clock.Monotonic(), names),
			PacketsPerS: float64(r.packets) / seconds, BytesPerS: float64(r.bytes) / seconds,
		})
	}
	return hot
}

// HitMegaflow returns the match of the megaflow that the captured frame f used. It
// returns "" if that megaflow was removed.
func (ts *Tables) HitMegaflow(f *datapath.Captured) string {
	m := ts.pipeline.Megaflows().At(f.Slot)
	if m == nil || !slices.Equal(m.Actions[:min(len(m.Actions), len(f.Actions))], f.Actions) {
		return ""
	}
	key := m.Key()
	for i := range key {
		if f.Key[i]&m.Mask()[i] != key[i] {
			return "" // the slot belongs to a newer megaflow
		}
	}
	match := openflow.MatchOf(&key, m.Mask())
	return openflow.FormatMatch(&match, ts.pipeline.View())
}
