package control

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"weft/api"
	"weft/control/loop"
	"weft/internal/clock"
)

const (
	// maxHot bounds the megaflows of an answer, maxHotInterval the time watched.
	maxHot         = 1000
	maxHotInterval = time.Minute
)

// hotCount is what a megaflow had counted at a moment.
type hotCount struct{ packets, bytes uint64 }

// hottest watches what megaflows count for a while. Nothing is put into words but
// those that are asked for, however many there are.
func (d *Daemon) hottest(r *http.Request) ([]api.Hot, error) {
	q := r.URL.Query()
	n, err := numberWord(q.Get("n"), "n")
	if err != nil {
		return nil, err
	}
	ms, err := numberWord(q.Get("interval_ms"), "interval_ms")
	if err != nil {
		return nil, err
	}
	interval := time.Duration(ms) * time.Millisecond
	if n > maxHot || ms == 0 || interval > maxHotInterval {
		return nil, inputf("n=%d, interval_ms=%d: expected at most %d megaflows and an interval of 1 to %d ms",
			n, ms, maxHot, maxHotInterval.Milliseconds())
	}
	before := d.hotCounts()
	began := time.Now()
	if !loop.Sleep(r.Context(), interval) {
		return nil, r.Context().Err()
	}
	after := d.hotCounts()
	return d.hotList(before, after, int(n), time.Since(began).Seconds()), nil
}

func (d *Daemon) hotCounts() map[*megaflow]hotCount {
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

func (d *Daemon) hotList(before, after map[*megaflow]hotCount, n int, seconds float64) []api.Hot {
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
			Megaflow:    d.describeMegaflow(r.m, clock.Monotonic(), byName),
			PacketsPerS: float64(r.packets) / seconds, BytesPerS: float64(r.bytes) / seconds,
		})
	}
	return hot
}
