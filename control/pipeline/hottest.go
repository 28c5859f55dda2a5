package pipeline

import (
	"cmp"
	"slices"

	"weft/api"
	"weft/datapath"
	"weft/internal/clock"
	"weft/openflow"
)

// hotCount is what a megaflow had counted at a moment.
type hotCount struct{ packets, bytes uint64 }

func (d *Pipeline) Sample() map[*megaflow]hotCount {
	d.mu.RLock()
	defer d.mu.RUnlock()
	list := d.megaflows.list()
	counts := make(map[*megaflow]hotCount, len(list))
	for _, m := range list {
		packets, bytes, _ := d.workers.Statistics(m.slot, m.generation)
		counts[m] = hotCount{packets, bytes}
	}
	return counts
}

func (d *Pipeline) Hottest(before, after map[*megaflow]hotCount, n int, seconds float64) []api.Hot {
	type row struct {
		m *megaflow
		hotCount
	}
	var rows []row
	for m, c := range after {
		was := before[m] // all 0 for one that is new
		if c.packets > was.packets {
			rows = append(rows, row{m, hotCount{c.packets - was.packets, c.bytes - min(was.bytes, c.bytes)}})
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.packets, a.packets), cmp.Compare(a.m.slot, b.m.slot))
	})
	d.mu.RLock()
	defer d.mu.RUnlock()
	hot := []api.Hot{}
	for _, r := range rows[:min(n, len(rows))] {
		hot = append(hot, api.Hot{
			Megaflow:    d.describeMegaflow(r.m, clock.Monotonic(), ByName),
			PacketsPerS: float64(r.packets) / seconds, BytesPerS: float64(r.bytes) / seconds,
		})
	}
	return hot
}

// HitMegaflow is the match of the megaflow that a live trace has hit, "" if it is gone.
func (d *Pipeline) HitMegaflow(f *datapath.Capture) string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	d.megaflows.mu.Lock()
	defer d.megaflows.mu.Unlock()
	if int(f.Slot) >= len(d.megaflows.slots) {
		return ""
	}
	m := d.megaflows.slots[f.Slot]
	if m == nil || !slices.Equal(m.actions[:min(len(m.actions), len(f.Actions))], f.Actions) {
		return ""
	}
	for i := range m.key {
		if f.Key[i]&m.mask()[i] != m.key[i] {
			return "" // the slot is another's by now
		}
	}
	match := openflow.MatchOf(&m.key, m.mask())
	return openflow.FormatMatch(&match, d.view)
}
