// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"weft/control/change"
	"weft/control/underlay"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
)

// Bridge has the tables and the ports of one bridge. All bridges share the megaflows, the
// tracked connections and the workers.
type Bridge struct {
	pl     *Pipeline
	number uint8
	name   string // "": the first bridge of a switch without a name
	tables *ofproto.Tables
	// forwardsBPDUs is true if the action normal forwards frames to reserved multicast addresses,
	// such as BPDUs. Pipeline.mu guards it.
	forwardsBPDUs bool
	// closed is true if the bridge has been removed. Its tables then take no changes. The
	// configuration lock and Pipeline.mu guard it.
	closed bool
}

// Number returns the bridge's number.
func (b *Bridge) Number() uint8 { return b.number }

// Pipeline returns the pipeline to which the bridge belongs, with everything that bridges share.
func (b *Bridge) Pipeline() *Pipeline { return b.pl }

// View returns the present set of the bridge's ports.
func (b *Bridge) View() *View { return b.pl.View().Of(b.number) }

// Names returns the names that a text about the bridge may use. They are the port names, unless
// words selects port numbers, and the fields tun_metadata of the bridge's Geneve options.
func (b *Bridge) Names(words PortWords) openflow.Names {
	return openflow.WithTLVs(b.View().Names(words), b.TLVs())
}

// Flows returns the number of flows in the bridge's tables.
func (b *Bridge) Flows() int {
	b.pl.mu.RLock()
	defer b.pl.mu.RUnlock()
	return b.tables.Len()
}

// First returns the bridge 0, which always exists.
func (pl *Pipeline) First() *Bridge { return pl.Bridge }

// BridgeNumber returns the number of the bridge with a name; "" names the first one.
func (pl *Pipeline) BridgeNumber(name string) (number uint8, ok bool) {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	for _, b := range pl.bridges {
		if b != nil && (b.name == name || name == "") {
			return b.number, true
		}
	}
	return 0, false
}

// AddBridge adds an empty bridge. No bridge has its number or name yet. When the control process
// starts, it calls AddBridge before Load, which fills the tables. Later, the caller calls
// PortsChanged after AddBridge, because megaflows must match in_port as soon as there are several
// bridges.
func (pl *Pipeline) AddBridge(tx *change.Tx, number uint8, name string) *Bridge {
	pl.mu.Lock()
	b := &Bridge{pl: pl, number: number, name: name, tables: pl.tables.NewBridge(number)}
	pl.mu.Unlock()
	pl.macs.SetBounds(number, fdb.Bounds{}) // an earlier bridge may have had the number
	pl.macs.ClearStatistics(number)
	pl.place(b, b)
	tx.Undo(func(error) {
		pl.place(b, nil)
		pl.PortsChanged(tx)
	})
	return b
}

// place stores "present" in the list of bridges, at the number of b. The argument "present" is b, or
// nil to remove the bridge.
func (pl *Pipeline) place(b, present *Bridge) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	bridges := make([]*Bridge, max(len(pl.bridges), int(b.number)+1)) // translations may still read the old list
	copy(bridges, pl.bridges)
	bridges[b.number] = present
	for len(bridges) > 1 && bridges[len(bridges)-1] == nil {
		bridges = bridges[:len(bridges)-1]
	}
	pl.bridges = bridges
	if b.closed = present == nil; b.closed {
		pl.rules.RemoveTables(b.number)
	} else {
		pl.rules.AddTables(b.number, b.tables)
	}
}

// RemoveBridge takes a bridge out of the switch. Its tables then refuse changes and get no frames.
// It returns the indices of the bridge's flows in the state file, from which the caller deletes
// them. When the deletion is saved, the flows, groups and meters are removed from the tables. If it
// cannot be saved, the bridge is restored.
func (pl *Pipeline) RemoveBridge(tx *change.Tx, b *Bridge) (rows []uint32) {
	pl.Save(tx) // so that no deferred write of the bridge's flows comes later
	pl.mu.RLock()
	rows = pl.rules.Rows(b.tables.Select(&openflow.FlowMod{Table: openflow.TableAll}))
	pl.mu.RUnlock()
	put := func(present *Bridge) {
		pl.place(b, present)
		pl.PortsChanged(tx)
		pl.watchAgain(tx)
	}
	put(nil)
	stays, ended := false, false
	tx.Undo(func(error) {
		if stays = !ended; stays {
			put(b)
		}
	})
	tx.At(change.Close, b, func() error {
		if ended = !stays; ended {
			pl.empty(tx, b)
		}
		return nil
	})
	return rows
}

// empty removes the flows, groups and meters of a removed bridge. No megaflow of a worker depends on
// them any more.
func (pl *Pipeline) empty(tx *change.Tx, b *Bridge) {
	var changed []*openflow.Meter
	flows, removed, err := pl.alter(tx, func(now uint64) (flows ofproto.Changes, err error) {
		flows, err = b.tables.Apply([]openflow.FlowMod{{Command: openflow.Delete, Table: openflow.TableAll}}, now)
		_, _ = b.tables.ApplyGroups([]openflow.GroupMod{{Command: openflow.GroupDelete, Group: openflow.Group{ID: openflow.GroupAny}}}, now)
		_, changed, _ = b.tables.ApplyMeters([]openflow.MeterMod{{Command: openflow.MeterDelete, Meter: openflow.Meter{ID: openflow.MeterAll}}}, now)
		return flows, err
	})
	if err != nil {
		pl.log.Error("flows of a deleted bridge", "error", err)
	}
	for _, m := range changed {
		sendMeter(pl.workers, m)
	}
	pl.tell(tx, &flows)
	pl.releaseRows(&changes{rows: removed})
}

// alter changes the bridge's tables like Pipeline.alter. It refuses the change if the bridge has
// been removed.
func (b *Bridge) alter(tx *change.Tx, apply func(now uint64) (ofproto.Changes, error)) (ofproto.Changes, []uint32, error) {
	if b.closed {
		return ofproto.Changes{}, nil, errClosed
	}
	return b.pl.alter(tx, apply)
}

var errClosed = &openflow.CodedError{Code: openflow.ErrFlowEPERM, Text: "the bridge has been deleted"}

// visitTables calls fn for the tables of all bridges. The caller holds Pipeline.mu, or the configuration
// lock.
func (pl *Pipeline) visitTables(fn func(tables *ofproto.Tables)) {
	for _, b := range pl.bridges {
		if b != nil {
			fn(b.tables)
		}
	}
}

// tablesOf returns the tables of a bridge, or nil.
func (pl *Pipeline) tablesOf(number uint8) *ofproto.Tables {
	if int(number) >= len(pl.bridges) || pl.bridges[number] == nil {
		return nil
	}
	return pl.bridges[number].tables
}

// creditLookups adds look-ups to the table statistics of all bridges. packets is the number of
// frames. "rules" has the rules that each frame matched, and "missed" the tables in which it matched
// no rule.
func (pl *Pipeline) creditLookups(rules []*ofproto.Rule, missed []ofproto.BridgeTable, packets uint64) {
	pl.visitTables(func(tables *ofproto.Tables) { tables.CreditLookups(rules, missed, packets) })
}

// creditGroups adds frames to the statistics of the groups and buckets of all bridges.
func (pl *Pipeline) creditGroups(hits []ofproto.GroupHit, packets, bytes uint64) {
	if len(hits) > 0 {
		pl.visitTables(func(tables *ofproto.Tables) { tables.CreditGroups(hits, packets, bytes) })
	}
}

// creditPatches adds frames to the counters of patch ports and mirrors. The workers do not know
// these ports, so only the control process counts for them. The counters are in the shared memory
// that outlives the control process. The caller holds Pipeline.mu for writing.
func (pl *Pipeline) creditPatches(list []xlate.Crossing, packets, bytes uint64) {
	for _, c := range list {
		out, in := &pl.counters.Ports[c.Out], &pl.counters.Ports[c.In]
		out.TxPackets += packets
		out.TxBytes += bytes
		if c.In != 0 {
			in.RxPackets += packets
			in.RxBytes += bytes
		}
	}
}

// applyLearned adds the flows of learn actions to the tables of their bridges. It ignores the flows
// of a removed bridge. refused is the number of flows that the tables refused, for example at a
// limit.
func (pl *Pipeline) applyLearned(flows []openflow.FlowMod, nowNS uint64) (changes ofproto.Changes, refused int) {
	for len(flows) > 0 {
		n := 1
		for n < len(flows) && flows[n].Bridge == flows[0].Bridge {
			n++
		}
		if tables := pl.tablesOf(flows[0].Bridge); tables != nil {
			c, no := tables.ApplyLearned(flows[:n], nowNS)
			changes.Added = append(changes.Added, c.Added...)
			changes.Modified = append(changes.Modified, c.Modified...)
			changes.Removed = append(changes.Removed, c.Removed...)
			refused += no
		}
		flows = flows[n:]
	}
	return changes, refused
}

// env returns what a look-up of a frame in this bridge's tables reads: ports, addresses, tunnels.
// The caller holds Pipeline.mu.
func (b *Bridge) env() *env {
	list := b.pl.envs()
	if b.closed {
		return b.pl.envOf(b, list)
	}
	return list[b.number]
}

// env returns what a look-up in the first bridge reads. From there, a frame reaches other bridges
// over patch ports. The caller holds Pipeline.mu.
func (pl *Pipeline) env() *env { return pl.envs()[0] }

// envs returns what a look-up reads, for each bridge. The index is the bridge's number.
func (pl *Pipeline) envs() []*env {
	list := make([]*env, len(pl.bridges))
	for number, b := range pl.bridges {
		if b != nil {
			list[number] = pl.envOf(b, list)
		}
	}
	return list
}

func (pl *Pipeline) envOf(b *Bridge, bridges []*env) *env {
	return &env{View: pl.view.Of(b.number), tables: b.tables, bridges: bridges, tunnels: pl.templates, vlanLimit: pl.vlanLimit, forwardsBPDUs: b.forwardsBPDUs,
		Table: pl.macs, RecircTable: pl.recircs, NoteTable: pl.notes, OptionTable: pl.options}
}

// env has what one look-up of a frame in one bridge's tables reads. It implements xlate.Env.
type env struct {
	*View
	tables  *ofproto.Tables
	bridges []*env // by number; nil: no bridge
	tunnels *underlay.Templates

	vlanLimit     int
	forwardsBPDUs bool
	*fdb.Table
	*xlate.RecircTable
	*xlate.NoteTable
	*xlate.OptionTable
}

// Bridge returns the tables of another bridge and what a look-up there reads. It implements
// xlate.Bridges.
func (e *env) Bridge(number uint8) (*ofproto.Tables, xlate.Env) {
	if int(number) >= len(e.bridges) || e.bridges[number] == nil {
		return nil, nil
	}
	return e.bridges[number].tables, e.bridges[number]
}

// Several reports whether the switch has several bridges. It implements xlate.Bridges.
func (e *env) Several() bool { return len(e.bridges) > 1 }

// VLANLimit returns the number of VLAN tags that flows see. It implements xlate.VLANLimiter.
func (e *env) VLANLimit() int { return e.vlanLimit }

// ForwardsBPDUs reports whether the action normal forwards frames to reserved multicast addresses.
// It implements xlate.BPDUForwarder.
func (e *env) ForwardsBPDUs() bool { return e.forwardsBPDUs }
