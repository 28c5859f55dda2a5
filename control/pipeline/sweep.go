// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"maps"
	"time"

	"weft/control/change"
	"weft/control/megaflows"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/openflow/ofproto"
)

const (
	// sweepInterval is the interval of sweeps, which update statistics and apply
	// timeouts.
	sweepInterval = time.Second
	// askAgain is the lifetime of a megaflow whose translation lacked an address or room in
	// a quota (Megaflow.Brief). Afterwards, a frame asks again.
	askAgain = 5 * time.Second
)

// A sweep goes through all megaflows in parts of megaflows.PartSlots slots. Each part is a
// transaction of its own and holds Pipeline.mu for less than a millisecond. So changes, answers of
// the API and answers to misses wait for one part at most, however many megaflows there are. Flows
// and addresses expire at the end of the sweep, by the time of its start, because all frames until
// its start have been counted by then. So no timeout passes early, and one passes late by the
// duration of a sweep at most.

// sweeping is the state of one sweep.
type sweeping struct {
	pl    *Pipeline
	began uint64 // CLOCK_MONOTONIC
	stays map[uint32]megaflows.Timeouts
	part  []*megaflows.Megaflow
	idle  []*megaflows.Megaflow
	// templates, recircs and options have what the megaflows of the parts so far use. A megaflow that
	// is installed in one of these parts meanwhile needs no entry, because the tables of templates,
	// recirc_ids and options note each use themselves.
	templates, recircs map[uint32]bool
	options            map[uint64]bool
}

// sweep updates statistics, and removes expired megaflows, flows, addresses and
// tunnel templates.
func (pl *Pipeline) sweep() {
	s := sweeping{pl: pl, began: clock.Monotonic(), stays: pl.megaflows.Stays(),
		templates: map[uint32]bool{}, recircs: map[uint32]bool{}, options: map[uint64]bool{}}
	for next := uint32(0); ; {
		pl.configuration.Do(func(tx *change.Tx) { next = s.sweepPart(tx, next) })
		if next == 0 {
			break
		}
	}
	aged := false
	err := pl.configuration.Update(func(tx *change.Tx) error { aged = s.expire(tx); return nil })
	if err != nil {
		pl.log.Error("cannot remove expired flows from the state file", "error", err)
	}
	if aged {
		pl.revalidateAddressesInTurns()
	}
}

// sweepPart handles the part of the megaflows that begins with slot from, and returns the
// first slot of the next one; 0: there is none.
func (s *sweeping) sweepPart(tx *change.Tx, from uint32) (next uint32) {
	pl := s.pl
	s.part, next = pl.megaflows.Part(s.part, from)
	s.pull()
	pl.evict(tx, s.idle)
	return next
}

// pull updates the statistics of the part, and lists its idle megaflows.
func (s *sweeping) pull() {
	pl := s.pl
	pl.mu.Lock()
	defer pl.mu.Unlock()
	now := clock.Monotonic()
	s.idle = s.idle[:0]
	for _, m := range s.part {
		pl.pull(m)
		if now-min(now, m.UsedNS) > uint64(s.staysFor(m)) || m.Brief && now-min(now, m.MadeNS) > uint64(askAgain) {
			s.idle = append(s.idle, m)
		}
		s.noteUses(m)
	}
}

// staysFor returns the idle timeout of megaflow m, whose frames have been counted.
func (s *sweeping) staysFor(m *megaflows.Megaflow) time.Duration {
	stays, known := s.stays[m.Owner]
	if !known {
		return megaflows.Idle // its port had no megaflow at the start of the sweep
	}
	if s.pl.counters.Slots[m.Slot].Packets <= 1 {
		return stays.Once
	}
	return stays.Idle
}

// noteUses notes the recirc_ids, templates and options that megaflow m uses.
func (s *sweeping) noteUses(m *megaflows.Megaflow) {
	if id := m.Recirc(); id != 0 {
		s.recircs[id] = true
	}
	if m.Mask()[flowtable.WTunOpts] != 0 {
		key := m.Key()
		s.options[key[flowtable.WTunOpts]] = true
	}
	for i := range m.Actions {
		switch a := &m.Actions[i]; a.Op {
		case flowtable.OpTunnel:
			s.templates[a.U32] = true
		case flowtable.OpRecirc:
			s.recircs[a.U32] = true
		}
	}
}

// expire removes the flows and addresses whose timeouts passed before the sweep, and frees what
// no megaflow uses. It reports whether addresses were removed.
func (s *sweeping) expire(tx *change.Tx) (aged bool) {
	pl := s.pl
	var expired []*ofproto.Rule
	pl.mu.Lock()
	pl.visitTables(func(tables *ofproto.Tables) { expired = append(expired, tables.Expire(s.began)...) })
	rows := pl.rules.Rows(expired)
	aged = pl.macs.Expire(s.began) > 0
	pl.templates.MarkUsed(maps.Keys(s.templates))
	pl.recircs.Collect(func(id uint32) bool { return s.recircs[id] })
	pl.options.Collect(func(hash uint64) bool { return s.options[hash] })
	pl.mu.Unlock()
	if len(expired) > 0 {
		removed := ofproto.Changes{Removed: expired}
		pl.rules.SaveFlows(tx, &removed, rows)
		pl.entered(tx, &removed, rows)
	}
	return aged
}
