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
	"weft/control/megaflows"
	"weft/control/usererr"
	"weft/internal/clock"
	"weft/openflow"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
)

// This file changes the tables. When a method returns, no frame uses the old rules,
// groups and meters. An *UnsavedError means that the change is in force but not saved.
// After any other error (*openflow.CodedError) nothing has changed. The caller holds
// the configuration lock.

// MaxFlows is the limit of flows in all tables. The build fails if the counter region has
// another number of rows for flows.
const MaxFlows = openflow.MaxRules

var _ [MaxFlows]struct{} = [counters.MaxRules]struct{}{}

// UnsavedError reports a change that is in force but not saved. A restart of control
// loses it.
type UnsavedError struct{ cause error }

func (e *UnsavedError) Error() string {
	return "the change is in force but could not be saved: " + e.cause.Error()
}

// Unwrap returns the error of the store.
func (e *UnsavedError) Unwrap() error { return e.cause }

// unsavedError returns an UnsavedError, or nil if saving succeeded.
func unsavedError(err error) error {
	if err == nil {
		return nil
	}
	return &UnsavedError{err}
}

const (
	// saveDelay is the longest time between a change by ApplyEach and the start of its
	// write to the disk. Without the delay, a client that sends a barrier after each
	// flow_mod would wait for the disk every time. If control crashes before the write
	// ends, these changes are lost.
	saveDelay = 100 * time.Millisecond
	// ApplyEach saves at once when maxUnsaved changes are unsaved. The rows (entries of
	// the counter region) of removed rules become free only after a save.
	maxUnsaved = 1 << 16
	// largeChange is the number of changed flows from which control returns memory to
	// the system. Parsing takes several times the memory that stays in use.
	largeChange = 10_000
	// pause before control returns memory to the system, so that the request has ended.
	// The first frames of the new flows come soon, and a collection delays their answers.
	largeChangePause = 100 * time.Millisecond
)

// Apply applies changes of flows, all of them or none.
func (b *Bridge) Apply(mods []openflow.FlowMod) (ofproto.Changes, error) {
	pl := b.pl
	pl.Save()
	changes, removed, err := b.alter(func(now uint64) (ofproto.Changes, error) { return b.tables.Apply(mods, now) })
	if err != nil {
		return changes, err
	}
	return changes, pl.finish(&changes, removed, false, len(mods))
}

// ApplyEach applies changes of flows in order. errs has the error of each change, or
// nil. The changes are saved within saveDelay.
func (b *Bridge) ApplyEach(mods []openflow.FlowMod) (errs []error) {
	pl := b.pl
	changes, removed, err := b.alter(func(now uint64) (changes ofproto.Changes, _ error) {
		changes, errs = b.tables.ApplyEach(mods, now)
		return changes, nil
	})
	if err != nil {
		return slices.Repeat([]error{err}, len(mods))
	}
	pl.refresh(&changes, false)
	switch waiting := pl.rules.Defer(&changes, removed); {
	case waiting > maxUnsaved:
		pl.Save()
	case waiting > 0 && !pl.saving:
		pl.saving = true
		time.AfterFunc(saveDelay, pl.saveLater)
	}
	return errs
}

// saveLater saves the changes of ApplyEach. It holds the configuration lock before and
// after the write but not during it, so that no change waits for the disk.
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
	if err := unsavedError(write()); err != nil {
		pl.log.Error("flows", "error", err)
	}
	pl.configuration.View(func(tx *change.Tx) { pl.releaseRows(removed) })
}

// Save saves the changes of ApplyEach now, and waits for earlier writes.
func (pl *Pipeline) Save() {
	pl.saving = false
	removed, err := pl.rules.SaveDeferred()
	if err != nil {
		pl.log.Error("flows", "error", unsavedError(err))
	}
	pl.releaseRows(removed)
}

// ApplyBundle applies all changes or none. failed is the index of the change or frame that
// was refused. Each frame sees the changes before it. The frames leave after all changes
// are in force.
func (b *Bridge) ApplyBundle(items []ofproto.BundleItem) (failed int, err error) {
	pl := b.pl
	pl.Save() // a large bundle may need the rows of removed rules
	frames, failed, err := b.bundledFrames(items)
	if err != nil {
		return failed, err
	}
	changes, removed, err := b.alter(func(now uint64) (ofproto.Changes, error) { return b.tables.ApplyBundle(items, now) })
	if err != nil {
		var at *ofproto.ApplyError
		if errors.As(err, &at) {
			failed = at.Index
		}
		return failed, err
	}
	groups := slices.ContainsFunc(items, func(i ofproto.BundleItem) bool { return i.Group != nil })
	err = pl.finish(&changes, removed, groups, len(items))
	for _, f := range frames {
		if err := pl.perform(f.out.Frame, f.inPort, &f.t); err != nil {
			pl.log.Error("frame of a bundle", "error", err)
		}
	}
	return 0, err
}

// bundledFrame is a frame of a bundle. Execute of its item stores its translation, with the
// tables as the earlier items of the bundle have left them.
type bundledFrame struct {
	out    *openflow.PacketOut
	inPort uint32 // number of the data path
	t      xlate.Translation
}

// bundledFrames prepares the frames of a bundle. It sets the function Execute of their
// items.
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
			if f.t, err = xlate.Execute(b.tables, out.Actions, &out.Flow, b.pl.envs()[b.number]); err != nil {
				return err
			}
			return checkLoop(&f.t)
		}
	}
	return frames, 0, nil
}

// ApplyGroups applies changes of groups, all of them or none.
func (b *Bridge) ApplyGroups(mods []openflow.GroupMod) (ofproto.Changes, error) {
	return b.applyTable(func(now uint64) (ofproto.Changes, error) { return b.tables.ApplyGroups(mods, now) })
}

// ApplyMeters applies changes of meters, all of them or none.
func (b *Bridge) ApplyMeters(mods []openflow.MeterMod) (ofproto.Changes, error) {
	pl := b.pl
	return b.applyTable(func(now uint64) (ofproto.Changes, error) {
		changes, changed, err := b.tables.ApplyMeters(mods, now)
		for _, m := range changed {
			sendMeter(pl.workers, m)
		}
		return changes, err
	})
}

// applyTable applies and saves a change of groups or meters, and of the flows that name
// them.
func (b *Bridge) applyTable(apply func(now uint64) (ofproto.Changes, error)) (ofproto.Changes, error) {
	changes, removed, err := b.alter(apply)
	if err != nil {
		return changes, err
	}
	return changes, b.pl.finish(&changes, removed, true, 0)
}

// Configure changes the settings of a table, or of all tables except weft-central's if
// table is -1. It calls set for each table. If no call returns an error, it applies and
// saves the settings. It removes no flow.
func (b *Bridge) Configure(table int, set func(*ofproto.TableConfig) error) error {
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
		configs[t], _ = b.tables.Config(uint8(t)) // changes only under the configuration lock
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
	return unsavedError(pl.rules.SaveConfigs(b.number, &configs))
}

// ChangeTLVs changes the bridge's TLV map, completely or not at all.
func (b *Bridge) ChangeTLVs(mod *openflow.TLVMod) error {
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
	pl.revalidate(func(*megaflows.Megaflow) bool { return true })
	return unsavedError(pl.rules.SaveTLVs())
}

// TLVs returns the bridge's TLV map.
func (b *Bridge) TLVs() *openflow.TLVMap { return b.tables.TLVs() }

// TLVsOf returns the TLV map of a bridge by its number.
func (pl *Pipeline) TLVsOf(bridge uint8) *openflow.TLVMap {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	if tables := pl.tablesOf(bridge); tables != nil {
		return tables.TLVs()
	}
	return nil
}

// SendExceptions decides about frames that match no flow (misses) and frames whose TTL
// dec_ttl finds expired (expired). If the argument is true, these frames go to the
// controller; otherwise they are dropped.
func (b *Bridge) SendExceptions(misses, expired bool) {
	pl := b.pl
	pl.mu.Lock()
	b.tables.SendExceptions(misses, expired)
	pl.mu.Unlock()
	pl.revalidate(func(*megaflows.Megaflow) bool { return true })
}

// alter calls apply, which changes the tables. It assigns each added rule a row (an
// entry of the counter region). It returns the rows of removed rules, which the caller
// releases after revalidation.
func (pl *Pipeline) alter(apply func(now uint64) (ofproto.Changes, error)) (changes ofproto.Changes, removed []uint32, err error) {
	pl.pullInTurns() // earlier counts belong to the old rules
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if changes, err = apply(clock.Monotonic()); err != nil {
		return changes, nil, err
	}
	return changes, pl.rules.Enter(&changes), nil
}

// finish ends a change of the tables: it saves the change in one transaction, calls refresh,
// and releases removed, the rows of removed rules. tables: groups or meters have changed, too.
// n is the number of requested changes.
func (pl *Pipeline) finish(changes *ofproto.Changes, removed []uint32, tables bool, n int) error {
	save := pl.rules.SaveFlows
	if tables {
		save = pl.rules.SaveTables
	}
	err := save(changes, removed)
	pl.refresh(changes, tables)
	pl.releaseRows(removed)
	if n >= largeChange && pl.returning.CompareAndSwap(false, true) {
		time.AfterFunc(largeChangePause, func() {
			pl.returning.Store(false)
			returnMemory()
		})
	}
	return unsavedError(err)
}

// refresh updates megaflows and monitors after a change of flows, and of groups or meters if
// tables is true. It revalidates once.
func (pl *Pipeline) refresh(changes *ofproto.Changes, tables bool) {
	var used xlate.TableSet
	changedTables(changes, &used)
	// The first group or bundle action begins to watch ports.
	moved := (tables || pl.WatchesPorts()) && pl.ports.UpdateLiveness()
	pl.revalidate(func(m *megaflows.Megaflow) bool { return tables || m.Tables.Meets(&used) || moved && m.UsedPorts })
	pl.tell(changes)
}

// releaseRows frees the counter rows of removed rules, after revalidation.
func (pl *Pipeline) releaseRows(rows []uint32) {
	if len(rows) == 0 {
		return
	}
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.rules.Release(rows)
}

// changedTables adds the tables of the changed rules to set. Megaflows that used none
// of these tables stay valid.
func changedTables(c *ofproto.Changes, set *xlate.TableSet) {
	for _, list := range [][]*ofproto.Rule{c.Added, c.Modified, c.Removed} {
		for _, r := range list {
			set.Add(r.Table)
		}
	}
}

// returnMemory returns memory to the system. It runs the garbage collection twice,
// because only the second one empties the pools.
func returnMemory() {
	runtime.GC()
	debug.FreeOSMemory()
}
