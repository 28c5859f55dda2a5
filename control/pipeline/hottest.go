// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"slices"

	"weft/api"
	"weft/control/megaflows"
	"weft/datapath"
	"weft/internal/clock"
	"weft/openflow"
)

type hotCount struct{ packets, bytes uint64 }

func (pl *Pipeline) Sample() map[*megaflows.Megaflow]hotCount {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	list := pl.megaflows.List()
	counts := make(map[*megaflows.Megaflow]hotCount, len(list))
	for _, m := range list {
		packets, bytes, _ := pl.workers.Statistics(m.Slot, m.Generation)
		counts[m] = hotCount{packets, bytes}
	}
	return counts
}

func (pl *Pipeline) Hottest(before, after map[*megaflows.Megaflow]hotCount, n int, seconds float64) []api.Hot {
	type row struct {
		m *megaflows.Megaflow
		hotCount
	}
	var rows []row
	for m, c := range after {
		was := before[m] // 0 for a megaflow that is new
		if c.packets > was.packets {
			rows = append(rows, row{m, hotCount{c.packets - was.packets, c.bytes - min(was.bytes, c.bytes)}})
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.packets, a.packets), cmp.Compare(a.m.Slot, b.m.Slot))
	})
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	hot := []api.Hot{}
	for _, r := range rows[:min(n, len(rows))] {
		hot = append(hot, api.Hot{
			Megaflow:    pl.describeMegaflow(r.m, clock.Monotonic(), ByName),
			PacketsPerS: float64(r.packets) / seconds, BytesPerS: float64(r.bytes) / seconds,
		})
	}
	return hot
}

// HitMegaflow returns the match of the megaflow that frame f hit, or "" if it was
// removed.
func (pl *Pipeline) HitMegaflow(f *datapath.Capture) string {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	m := pl.megaflows.At(f.Slot)
	if m == nil || !slices.Equal(m.Actions[:min(len(m.Actions), len(f.Actions))], f.Actions) {
		return ""
	}
	for i := range m.Key {
		if f.Key[i]&m.Mask()[i] != m.Key[i] {
			return "" // the slot belongs to a newer megaflow
		}
	}
	match := openflow.MatchOf(&m.Key, m.Mask())
	return openflow.FormatMatch(&match, pl.view)
}
