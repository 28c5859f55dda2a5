// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"errors"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"weft/control/change"
	"weft/control/counters"
	"weft/control/usererr"
	"weft/internal/clock"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
)

// This file changes the OpenFlow tables. A method that returns an *openflow.CodedError has changed
// nothing. If a change cannot be saved, it stays in force, and the commit returns a
// *change.UnsavedError.

// MaxFlows is the limit of flows in all tables. The declaration below does not compile if the array
// of flow statistics in package counters has another length.
const MaxFlows = openflow.MaxRules

var _ [MaxFlows]struct{} = [counters.MaxRules]struct{}{}

const (
	// saveDelay is the longest time between a change by ApplyEach and the start of its write to the
	// disk. The write begins later only if an earlier write is still running. Without the delay, a
	// client that sends a barrier after each flow_mod would wait for the disk every time. If the
	// control process crashes before the write ends, these changes are lost.
	saveDelay = 100 * time.Millisecond
	// maxUnsaved is the number of unsaved changes beyond which ApplyEach saves at once. Until a save,
	// the state file still has the removed rules, so new rules cannot use their indices.
	maxUnsaved = 1 << 16
	// After a change of at least largeChange flows, the control process returns memory to the kernel.
	// The parser of the flows takes several times the memory that stays in use.
	largeChange = 10_000
	// largeChangePause is the time between the change and the return of memory. Without the pause,
	// the garbage collection would delay the answers to the request and to the first frames of the
	// flows.
	largeChangePause = 100 * time.Millisecond
)

// Apply applies changes of flows, all of them or none.
func (b *Bridge) Apply(tx *change.Tx, mods []openflow.FlowMod) (ofproto.Changes, error) {
	pl := b.pl
	pl.Save(tx)
	pl.makeRoom(tx, len(mods))
	changes, removed, err := b.alter(tx, func(now uint64) (ofproto.Changes, error) { return b.tables.Apply(mods, now) })
	if err != nil {
		return changes, err
	}
	pl.finish(tx, &changes, removed, false, len(mods))
	return changes, nil
}

// ApplyEach applies changes of flows in order. errs has the error of each change, or nil. The state
// file gets the changes later, about saveDelay after the first one.
func (b *Bridge) ApplyEach(tx *change.Tx, mods []openflow.FlowMod) (errs []error) {
	pl := b.pl
	pl.makeRoom(tx, len(mods))
	changes, removed, err := b.alter(tx, func(now uint64) (changes ofproto.Changes, _ error) {
		changes, errs = b.tables.ApplyEach(mods, now)
		return changes, nil
	})
	if err != nil {
		return slices.Repeat([]error{err}, len(mods))
	}
	pl.refresh(tx, false)
	pl.entered(tx, &changes, nil)
	switch waiting := pl.rules.Defer(&changes, removed); {
	case waiting > maxUnsaved:
		tx.At(change.Save, pl, func() error { pl.Save(tx); return nil })
	case waiting > 0 && !pl.saving:
		pl.saving = true
		time.AfterFunc(saveDelay, pl.saveLater)
	}
	return errs
}

// saveLater writes the changes of ApplyEach to the state file. It holds no configuration lock during
// the write, so that no change waits for the disk.
func (pl *Pipeline) saveLater() {
	var write func() error
	var removed []uint32
	pl.configuration.View(func(tx *change.Tx) {
		if !pl.saving { // Save has come before
			return
		}
		if write, removed = pl.rules.TakeDeferred(); write == nil { // an earlier write is not over
			time.AfterFunc(saveDelay, pl.saveLater)
			return
		}
		pl.saving = false
	})
	if write == nil {
		return
	}
	pl.logUnsaved(write())
	pl.configuration.View(func(tx *change.Tx) { pl.releaseRows(&changes{rows: removed}) })
}

// logUnsaved logs the error of a write to the state file, if it is not nil.
func (pl *Pipeline) logUnsaved(err error) {
	if err != nil {
		pl.log.Error("flows are in force but could not be saved", "error", err)
	}
}

// Save writes the changes of ApplyEach to the state file at once, after earlier writes have ended.
// New rules may then use the indices of the removed rules.
func (pl *Pipeline) Save(*change.Tx) {
	pl.saving = false
	removed, err := pl.rules.SaveDeferred()
	pl.logUnsaved(err)
	if len(removed) > 0 {
		pl.releaseRows(&changes{rows: removed})
	}
}

// ApplyBundle applies all changes or none. failed is the index of the change or frame that
// was refused. Each frame sees the changes before it. The frames leave after all changes
// are in force and saved.
func (b *Bridge) ApplyBundle(tx *change.Tx, items []ofproto.BundleItem) (failed int, err error) {
	pl := b.pl
	pl.Save(tx) // a large bundle may need the rows of removed rules
	pl.makeRoom(tx, len(items))
	frames, failed, err := b.bundledFrames(items)
	if err != nil {
		return failed, err
	}
	changes, removed, err := b.alter(tx, func(now uint64) (ofproto.Changes, error) { return b.tables.ApplyBundle(items, now) })
	if err != nil {
		var at *ofproto.ApplyError
		if errors.As(err, &at) {
			failed = at.Index
		}
		return failed, err
	}
	groups := slices.ContainsFunc(items, func(i ofproto.BundleItem) bool { return i.Group != nil })
	pl.finish(tx, &changes, removed, groups, len(items))
	for _, f := range frames {
		tx.At(change.Tell, f, func() error {
			if err := pl.perform(tx, f.out.Frame, f.inPort, &f.t); err != nil {
				pl.log.Error("frame of a bundle", "error", err)
			}
			return nil
		})
	}
	return 0, nil
}

// bundledFrame is a packet-out in a bundle. While the bundle is applied, the function Execute of the
// bundle's item executes the packet-out's actions with the tables as the earlier items have left
// them. It stores the result in t.
type bundledFrame struct {
	out    *openflow.PacketOut
	inPort uint32 // number of the data path
	t      xlate.Translation
}

// bundledFrames prepares the packet-outs of a bundle. It sets the function Execute of their items.
func (b *Bridge) bundledFrames(items []ofproto.BundleItem) (frames []*bundledFrame, failed int, err error) {
	for i := range items {
		out := items[i].Frame
		if out == nil {
			continue
		}
		if err := fillFlow(out); err != nil {
			return nil, i, &openflow.CodedError{Code: openflow.ErrBadPacket, Text: err.Error()}
		}
		f := &bundledFrame{out: out, inPort: b.View().Datapath(out.Flow.Key().InPort())}
		frames = append(frames, f)
		items[i].Execute = func() (err error) {
			if f.t, err = xlate.Execute(b.tables, out.Actions, &out.Flow, b.env()); err != nil {
				return err
			}
			return checkLoop(&f.t)
		}
	}
	return frames, 0, nil
}

// ApplyGroups applies changes of groups, all of them or none.
func (b *Bridge) ApplyGroups(tx *change.Tx, mods []openflow.GroupMod) (ofproto.Changes, error) {
	return b.applyTable(tx, func(now uint64) (ofproto.Changes, error) { return b.tables.ApplyGroups(mods, now) })
}

// ApplyMeters applies changes of meters, all of them or none.
func (b *Bridge) ApplyMeters(tx *change.Tx, mods []openflow.MeterMod) (ofproto.Changes, error) {
	pl := b.pl
	return b.applyTable(tx, func(now uint64) (ofproto.Changes, error) {
		changes, changed, err := b.tables.ApplyMeters(mods, now)
		for _, m := range changed {
			sendMeter(pl.workers, m)
		}
		return changes, err
	})
}

// applyTable applies a change of groups or meters, and of the flows that name them.
func (b *Bridge) applyTable(tx *change.Tx, apply func(now uint64) (ofproto.Changes, error)) (ofproto.Changes, error) {
	changes, removed, err := b.alter(tx, apply)
	if err != nil {
		return changes, err
	}
	b.pl.finish(tx, &changes, removed, true, 0)
	return changes, nil
}

// Configure changes the settings of a table. If "table" is -1, it changes all tables except the one
// that belongs to weft-central, the service that configures the networks of many hosts. It calls the
// function "set" for each table, and applies the settings if no call returns an error. It removes no
// flow.
func (b *Bridge) Configure(tx *change.Tx, table int, set func(*ofproto.TableConfig) error) error {
	pl := b.pl
	if b.closed {
		return errClosed
	}
	if table < -1 || table >= openflow.Tables {
		return usererr.Errorf("table %d: expected a table from 0 to %d, or all", table, openflow.Tables-1)
	}
	if table == ofproto.CentralTable {
		return usererr.Errorf("table %d: belongs to weft-central; expected another table", table)
	}
	var configs [openflow.Tables]ofproto.TableConfig
	for t := range configs {
		configs[t], _ = b.tables.Config(uint8(t)) // the settings change only under the configuration lock
		if table == t || table == -1 && t != ofproto.CentralTable {
			if err := set(&configs[t]); err != nil {
				return err
			}
		}
	}
	pl.mu.Lock()
	for t := range configs {
		b.tables.Configure(uint8(t), configs[t])
	}
	pl.mu.Unlock()
	tx.Lasts()
	pl.rules.SaveConfigs(tx, b.number, &configs)
	return nil
}

// ChangeTLVs changes which Geneve options the fields tun_metadata0 to tun_metadata63 of the bridge
// have (TLV map). After an error, nothing has changed.
func (b *Bridge) ChangeTLVs(tx *change.Tx, mod *openflow.TLVMod) error {
	pl := b.pl
	if b.closed {
		return errClosed
	}
	pl.mu.Lock()
	err := b.tables.ChangeTLVs(mod)
	pl.mu.Unlock()
	if err != nil {
		return err
	}
	pl.walks(tx).full = true
	tx.Lasts()
	pl.rules.SaveTLVs(tx)
	return nil
}

// TLVs returns the bridge's mapping of Geneve options to the fields tun_metadata (TLV map).
func (b *Bridge) TLVs() *openflow.TLVMap { return b.tables.TLVs() }

// TLVsOf returns the mapping of Geneve options of a bridge (TLV map), or nil if no bridge has this
// number.
func (pl *Pipeline) TLVsOf(bridge uint8) *openflow.TLVMap {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	if tables := pl.tablesOf(bridge); tables != nil {
		return tables.TLVs()
	}
	return nil
}

// SendExceptions selects what happens to two kinds of frames: frames that match no flow (misses),
// and frames whose TTL dec_ttl finds expired (expired). If the argument is true, they go to the
// controller. Otherwise they are dropped.
func (b *Bridge) SendExceptions(tx *change.Tx, misses, expired bool) {
	pl := b.pl
	pl.mu.Lock()
	b.tables.SendExceptions(misses, expired)
	pl.mu.Unlock()
	pl.walks(tx).full = true
}

// SetFragments changes how the bridge's look-ups treat IP fragments.
func (b *Bridge) SetFragments(tx *change.Tx, mode ofproto.Fragments) {
	pl := b.pl
	pl.mu.Lock()
	b.tables.SetFragments(mode)
	pl.mu.Unlock()
	pl.walks(tx).full = true
}

// SetVLANLimit changes the number of VLAN tags that the flows of all bridges see: 1 or 2.
func (pl *Pipeline) SetVLANLimit(tx *change.Tx, limit int) {
	pl.mu.Lock()
	changed := pl.vlanLimit != limit
	pl.vlanLimit = limit
	pl.mu.Unlock()
	if changed {
		pl.walks(tx).full = true
	}
}

// Learning is how a bridge's action normal forwards and learns, as Open vSwitch's other_config of a
// bridge sets it. The zero value is the default.
type Learning struct {
	Bounds        fdb.Bounds // of the bridge's addresses
	ForwardsBPDUs bool       // forward frames to reserved addresses too
}

// Learning returns the bridge's settings.
func (b *Bridge) Learning() Learning {
	b.pl.mu.RLock()
	defer b.pl.mu.RUnlock()
	return Learning{Bounds: b.pl.macs.BoundsOf(b.number), ForwardsBPDUs: b.forwardsBPDUs}
}

// SetLearning changes the bridge's settings.
func (b *Bridge) SetLearning(tx *change.Tx, l Learning) {
	pl := b.pl
	pl.mu.Lock()
	if b.forwardsBPDUs != l.ForwardsBPDUs {
		b.forwardsBPDUs = l.ForwardsBPDUs
		pl.walks(tx).full = true
	}
	pl.mu.Unlock()
	if pl.macs.SetBounds(b.number, l.Bounds) > 0 {
		pl.RevalidateAddresses(tx)
	}
}

// Fragments returns how the bridge's look-ups treat IP fragments.
func (b *Bridge) Fragments() ofproto.Fragments {
	b.pl.mu.RLock()
	defer b.pl.mu.RUnlock()
	return b.tables.Fragments()
}

// alter calls apply, which changes the tables. It gives each added rule an index in the arrays of
// statistics. It returns the indices of the removed rules. The caller frees them after no megaflow
// counts for these rules any more.
func (pl *Pipeline) alter(tx *change.Tx, apply func(now uint64) (ofproto.Changes, error)) (changes ofproto.Changes, removed []uint32, err error) {
	pl.pullInTurns(tx) // earlier counts belong to the old rules
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if changes, err = apply(clock.Monotonic()); err != nil {
		return changes, nil, err
	}
	return changes, pl.rules.Enter(&changes), nil
}

// finish makes the commit save a change of the tables and update the megaflows. removed has the
// indices of the removed rules. tables is true if groups or meters have changed, too. n is the
// number of requested changes.
func (pl *Pipeline) finish(tx *change.Tx, changes *ofproto.Changes, removed []uint32, tables bool, n int) {
	tx.Lasts()
	pl.rules.SaveFlows(tx, changes, removed)
	if tables {
		pl.rules.SaveGroups(tx)
	}
	pl.refresh(tx, tables)
	pl.entered(tx, changes, removed)
	if n >= largeChange && pl.returning.CompareAndSwap(false, true) {
		time.AfterFunc(largeChangePause, func() {
			pl.returning.Store(false)
			returnMemory()
		})
	}
}

// refresh makes the commit look up all megaflows again if groups or meters have changed (tables is
// true). If a group or a bundle action may now depend on the liveness of other ports, refresh makes
// package ports check these ports.
func (pl *Pipeline) refresh(tx *change.Tx, tables bool) {
	if tables {
		pl.walks(tx).full = true
	}
	if tables || pl.WatchesPorts(tx) { // the change may have added the first group or bundle action that watches ports
		pl.watchAgain(tx)
	}
}

// changedTables adds the tables of the changed rules to "set". Megaflows that used none of these
// tables stay valid.
func changedTables(c *ofproto.Changes, set *xlate.TableSet) {
	for _, list := range [][]*ofproto.Rule{c.Added, c.Modified, c.Removed} {
		for _, r := range list {
			set.Add(r.Table)
		}
	}
}

// returnMemory returns free memory to the kernel. It runs the garbage collection twice, because only
// the second one empties the pools (sync.Pool).
func returnMemory() {
	runtime.GC()
	debug.FreeOSMemory()
}
