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
	// sweepInterval is the time between two sweeps. A sweep updates statistics and removes what has
	// timed out.
	sweepInterval = time.Second
	// askAgain is the lifetime of a megaflow whose look-up lacked the location of an address or room
	// in a quota (Megaflow.Brief). The next frame afterwards is a miss, so the look-up is repeated.
	askAgain = 5 * time.Second
)

// A sweep reads the counts of all megaflows in parts of megaflows.PartSlots. Each part is a
// transaction and holds Pipeline.mu for less than a millisecond. So a change, a request of the API
// and a miss wait for at most one part, however many megaflows there are.
//
// Flows and addresses expire at the end of the sweep. The sweep compares their timeouts with the
// time of its start, because it has counted all frames until then. So no flow expires too early. A
// flow expires too late by at most the duration of the sweep.

// sweeping is the state of one sweep.
type sweeping struct {
	pl    *Pipeline
	began uint64 // CLOCK_MONOTONIC
	stays map[uint32]megaflows.Timeouts
	part  []*megaflows.Megaflow
	idle  []*megaflows.Megaflow
	// templates, recircs and options have the tunnel headers, recirc_ids and Geneve options that the
	// megaflows of the parts so far use. A megaflow that is installed meanwhile needs no entry,
	// because each of these tables records when an item is used.
	templates, recircs map[uint32]bool
	options            map[uint64]bool
}

// sweep updates statistics, and removes what has expired: megaflows, flows, addresses and tunnel
// headers.
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

// sweepPart handles the part of the megaflows that begins at the index "from". It returns the first
// index of the next part, or 0 if there is none.
func (s *sweeping) sweepPart(tx *change.Tx, from uint32) (next uint32) {
	pl := s.pl
	s.part, next = pl.megaflows.Part(s.part, from)
	s.pull()
	pl.evict(tx, s.idle)
	return next
}

// pull updates the statistics from the megaflows of the part, and lists those that had no frame for
// too long.
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

// staysFor returns the time for which megaflow m stays without frames. The caller has read its
// counts.
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

// noteUses records the recirc_ids, tunnel headers and Geneve options that megaflow m uses.
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

// expire removes the flows and addresses that timed out before the sweep began. It frees the
// recirc_ids, tunnel headers and Geneve options that no megaflow uses. It reports whether addresses
// were removed.
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
