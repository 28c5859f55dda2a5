// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"slices"
	"sync/atomic"

	"weft/control/change"
	"weft/control/megaflows"
	"weft/internal/clock"
	"weft/openflow"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
)

// Read calls fn with the tables of the bridge, which fn may only read. The tables do not
// change during the call. The statistics are those of the last PullCounts.
func (b *Bridge) Read(fn func(tables *ofproto.Tables)) {
	pl := b.pl
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	fn(b.tables)
}

// Select returns the rules that the filter selects. They stay in the tables until the transaction
// ends. The caller uses Read or InTurns to read their statistics.
func (b *Bridge) Select(_ *change.Tx, filter *openflow.FlowMod) []*ofproto.Rule {
	return b.tables.Select(filter)
}

// readChunk is the number of items after which InTurns releases Pipeline.mu for a
// moment.
const readChunk = 256

// InTurns calls f(0) to f(n-1) under Pipeline.mu. It releases the lock for a moment after every
// readChunk items. The function f reads the statistics of one item. No rule, group or megaflow is
// removed before the transaction ends.
func (pl *Pipeline) InTurns(_ *change.Tx, n int, f func(i int)) {
	for from := 0; from < n; from += readChunk {
		pl.mu.RLock()
		for i := from; i < min(from+readChunk, n); i++ {
			f(i)
		}
		pl.mu.RUnlock()
	}
}

// PullCounts reads the workers' counts and updates the statistics of rules and groups. Afterwards
// they include all frames that the workers counted before the call, and perhaps later ones.
func (pl *Pipeline) PullCounts(tx *change.Tx) { pl.pullInTurns(tx) }

// Megaflows returns the megaflows in the workers' caches.
func (pl *Pipeline) Megaflows() *megaflows.Index { return pl.megaflows }

// GroupState is a group with its statistics. Flows is the number of flows that refer to the group.
type GroupState struct {
	*openflow.Group
	Stats ofproto.GroupStats
	Flows int
}

// Groups returns the group with this number, or all groups for openflow.GroupAny, with
// present statistics.
func (b *Bridge) Groups(tx *change.Tx, id uint32) []GroupState {
	pl := b.pl
	pl.PullCounts(tx)
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	var list []GroupState
	flows := b.tables.GroupFlows()
	for _, g := range b.tables.Groups(id) {
		s := b.tables.GroupStats(g)
		s.Buckets = slices.Clone(s.Buckets)
		list = append(list, GroupState{Group: g, Stats: s, Flows: flows[g.ID]})
	}
	return list
}

// MeterState is a meter with its statistics.
type MeterState struct {
	*openflow.Meter
	Flows          int
	Packets, Bytes uint64                // frames that came to the meter
	AgeNS          uint64                // since the meter was added
	Dropped        []ofproto.BucketStats // frames that each band has dropped
}

// Meters returns the meter with this number, or all meters for openflow.MeterAll, with
// present statistics.
func (b *Bridge) Meters(_ *change.Tx, id uint32) []MeterState {
	pl := b.pl
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	var list []MeterState
	flows, now := b.tables.MeterFlows(), clock.Monotonic()
	for _, m := range b.tables.Meters(id) {
		s := MeterState{Meter: m, AgeNS: now - min(now, m.CreatedNS), Flows: flows[m.ID], Dropped: make([]ofproto.BucketStats, len(m.Bands))}
		for i := range m.Bands {
			for _, sh := range pl.workers.Shared() {
				c := &sh.Meters[m.Bands[i].Slot]
				// The first band counts all frames. A later band gets only the frames that the earlier
				// bands have not dropped.
				if i == 0 {
					s.Packets += atomic.LoadUint64(&c.Packets)
					s.Bytes += atomic.LoadUint64(&c.Bytes)
				}
				s.Dropped[i].Packets += atomic.LoadUint64(&c.DroppedPackets)
				s.Dropped[i].Bytes += atomic.LoadUint64(&c.DroppedBytes)
			}
		}
		list = append(list, s)
	}
	return list
}

// ControllerNote returns what a frame for the controller needs besides its bytes, such as the
// reason. The worker passes only the number id of this record with the frame.
func (pl *Pipeline) ControllerNote(id uint32) (xlate.ControllerNote, bool) {
	return pl.notes.Note(id)
}
