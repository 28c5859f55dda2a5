// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"slices"

	"weft/control/change"
	"weft/control/counters"
	"weft/control/megaflows"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
)

// This file has what the commit of a transaction does for the OpenFlow tables. A change alters the
// tables at once. The commit looks up the affected megaflows again, once for all changes, saves,
// frees the indices of removed rules, and tells the flow monitors. When it returns, no frame uses
// the old rules, groups and meters.

// changes has what a transaction has changed in the pipeline, until the commit has updated the
// megaflows.
type changes struct {
	full      bool                             // all megaflows are translated again
	picks     []func(*megaflows.Megaflow) bool // each selects megaflows that are translated again
	tables    xlate.TableSet                   // megaflows that used one of these tables are translated again
	addresses bool                             // megaflows that used changed addresses are translated again
	rows      []uint32                         // rows of removed rules, which the commit frees
	events    []ofproto.Changes                // changes of flows, of which the commit tells the monitors
}

// walks returns what a transaction has changed so far. It makes the commit call walk, which looks up
// the affected megaflows again.
func (pl *Pipeline) walks(tx *change.Tx) *changes {
	c := change.State[changes](tx, pl)
	tx.At(change.Walk, pl, func() error { pl.walk(tx, c); return nil })
	return c
}

// walk looks up megaflows in the tables again, after the changes of a transaction. When it returns,
// no worker uses a megaflow whose actions differ from the result.
func (pl *Pipeline) walk(tx *change.Tx, c *changes) {
	picks, tables := c.picks, c.tables
	full, addresses := c.full, c.addresses
	c.full, c.picks, c.tables, c.addresses = false, nil, xlate.TableSet{}, false
	if full {
		_ = pl.macs.TakeChanges()
		pl.revalidate(tx, anyMegaflow)
		return
	}
	var users []*megaflows.Megaflow
	if addresses {
		moved := pl.macs.TakeChanges()
		if moved.All() {
			picks = append(picks, (*megaflows.Megaflow).Addresses)
		} else {
			users = pl.megaflows.Using(&moved)
		}
	}
	if tables != (xlate.TableSet{}) {
		picks = append(picks, func(m *megaflows.Megaflow) bool { return m.Tables.Meets(&tables) })
	}
	if len(picks) == 0 {
		pl.evict(tx, pl.stale(users, anyMegaflow))
		return
	}
	among := make(map[*megaflows.Megaflow]bool, len(users))
	for _, m := range users {
		among[m] = true
	}
	pl.revalidate(tx, func(m *megaflows.Megaflow) bool {
		return among[m] || slices.ContainsFunc(picks, func(pick func(*megaflows.Megaflow) bool) bool { return pick(m) })
	})
}

// PortsChanged makes the commit look up all megaflows again, with the ports that SetView has set.
func (pl *Pipeline) PortsChanged(tx *change.Tx) { pl.walks(tx).full = true }

// LivenessChanged makes the commit look up again the megaflows that depend on which ports are up.
func (pl *Pipeline) LivenessChanged(tx *change.Tx) {
	c := pl.walks(tx)
	c.picks = append(c.picks, func(m *megaflows.Megaflow) bool { return m.UsedPorts })
}

// RevalidateAddresses makes the commit remove the megaflows that are wrong because MAC or IP
// addresses have moved. If a network was added or removed, the caller calls PortsChanged instead.
func (pl *Pipeline) RevalidateAddresses(tx *change.Tx) { pl.walks(tx).addresses = true }

// entered makes the commit look up the megaflows that used the changed tables, and tell the flow
// monitors. removed has the indices of the removed rules, which the commit frees.
func (pl *Pipeline) entered(tx *change.Tx, flows *ofproto.Changes, removed []uint32) {
	c := pl.walks(tx)
	changedTables(flows, &c.tables)
	pl.tell(tx, flows)
	if c.rows = append(c.rows, removed...); len(c.rows) > 0 {
		tx.At(change.Close, pl, func() error { pl.releaseRows(c); return nil })
	}
}

// releaseRows frees the indices of removed rules in the state file and in the statistics. No
// megaflow counts for these rules any more.
func (pl *Pipeline) releaseRows(c *changes) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.rules.Release(c.rows)
	c.rows = nil
}

// makeRoom makes sure that n more rules find a free index in the state file and in the statistics.
// The indices of the rules that the transaction has removed become free when it has updated the
// megaflows. If they are needed, makeRoom updates the megaflows at once (Tx.Settle).
func (pl *Pipeline) makeRoom(tx *change.Tx, n int) {
	if c := change.State[changes](tx, pl); len(c.rows) > 0 && pl.Counts().Flows+len(c.rows)+n > 2*counters.MaxRules {
		tx.Settle()
	}
}
