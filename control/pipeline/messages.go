// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"weft/control/counters"
	"weft/control/megaflows"
	"weft/internal/clock"
	"weft/openflow"
)

// MaxFlows is the limit of flows in all tables.
const MaxFlows = counters.MaxRules

// Requests of OpenFlow connections are like those of the API, but carry parsed
// changes. Errors have OpenFlow's codes (*openflow.CodedError).

// errUnsaved is the error of a change in force that could not be saved.
func errUnsaved(err error) error {
	return errors.New("the change is in force but could not be saved: " + err.Error())
}

// Changes by ApplyEach are on the disk after saveDelay. A client that sends a barrier
// after each flow_mod would otherwise wait for the disk every time. A crash of
// control within saveDelay loses these changes.
const saveDelay = 100 * time.Millisecond

// ApplyEach saves at once at maxUnsaved unsaved changes, because rows of removed
// rules are free only after the save.
const maxUnsaved = 1 << 16

// unsaved has the changes that wait for saveDelay. The lock of changes guards it.
type unsaved struct {
	rules map[*openflow.Rule]struct{} // added and modified rules
	rows  []uint32                    // rows of removed rules
	armed bool
}

// ApplyEach applies changes of flows in order. errs has the error of each change, or
// nil. After it, no frame uses the old rules. The changes are saved within saveDelay.
func (pl *Pipeline) ApplyEach(mods []openflow.FlowMod) (errs []error) {
	pl.change.Lock()
	defer pl.change.Unlock()
	pl.mu.Lock()
	pl.pullAll()
	changes, errs := pl.tables.ApplyEach(mods, clock.Monotonic())
	removed := pl.rules.enter(&changes)
	pl.mu.Unlock()
	pl.refresh(&changes)
	u := &pl.unsaved
	if u.rules == nil {
		u.rules = map[*openflow.Rule]struct{}{}
	}
	for _, list := range [][]*openflow.Rule{changes.Added, changes.Modified} {
		for _, r := range list {
			u.rules[r] = struct{}{}
		}
	}
	u.rows = append(u.rows, removed...)
	switch {
	case len(u.rules)+len(u.rows) > maxUnsaved:
		pl.saveChanges()
	case !u.armed && len(u.rules)+len(u.rows) > 0:
		u.armed = true
		time.AfterFunc(saveDelay, pl.SaveChanges)
	}
	return errs
}

// SaveChanges saves the changes of ApplyEach now.
func (pl *Pipeline) SaveChanges() {
	pl.change.Lock()
	defer pl.change.Unlock()
	pl.saveChanges()
}

// SaveUnderLock is SaveChanges for callers that hold the lock of changes.
func (pl *Pipeline) SaveUnderLock() { pl.saveChanges() }

func (pl *Pipeline) saveChanges() {
	u := pl.unsaved
	pl.unsaved = unsaved{}
	if len(u.rules)+len(u.rows) == 0 {
		return
	}
	rules := make([]*openflow.Rule, 0, len(u.rules))
	for r := range u.rules {
		if !r.Removed {
			rules = append(rules, r)
		}
	}
	if err := pl.store.ChangeFlows(pl.rules.saved(rules), u.rows); err != nil {
		pl.log.Error("flows", "error", errUnsaved(err))
	}
	pl.releaseRows(u.rows)
}

// refresh updates megaflows and monitors after a change of flows. The caller holds
// the lock of changes.
func (pl *Pipeline) refresh(changes *openflow.Changes) {
	var tables openflow.TableSet
	changedTables(changes, &tables)
	pl.revalidate(func(m *megaflows.Megaflow) bool { return m.Tables.Meets(&tables) })
	pl.tell(changes)
}

// finishFlows saves changed flows and calls refresh. n is the number of requested
// changes. The caller holds the lock of changes.
func (pl *Pipeline) finishFlows(changes *openflow.Changes, removed []uint32, n int) error {
	err := pl.store.ChangeFlows(pl.rules.saved(slices.Concat(changes.Added, changes.Modified)), removed)
	pl.refresh(changes)
	pl.releaseRows(removed)
	if n >= largeChange {
		time.AfterFunc(largeChangePause, returnMemory)
	}
	return err
}

// ApplyBundle applies all changes or none. failed is the index of the refused change.
func (pl *Pipeline) ApplyBundle(items []openflow.BundleItem) (failed int, err error) {
	pl.change.Lock()
	defer pl.change.Unlock()
	pl.saveChanges() // a large bundle may need the rows of removed rules
	pl.mu.Lock()
	pl.pullAll()
	changes, err := pl.tables.ApplyBundle(items, clock.Monotonic())
	if err != nil {
		pl.mu.Unlock()
		var at *openflow.ApplyError
		if errors.As(err, &at) {
			failed = at.Index
		}
		return failed, err
	}
	removed := pl.rules.enter(&changes)
	pl.mu.Unlock()
	groups := slices.ContainsFunc(items, func(i openflow.BundleItem) bool { return i.Group != nil })
	if groups {
		texts, meters := pl.tableTexts()
		err = pl.store.ChangeTables(texts, meters, nil)
		pl.ports.UpdateLiveness()
		pl.revalidate(func(*megaflows.Megaflow) bool { return true })
	}
	if saved := pl.finishFlows(&changes, removed, len(items)); saved != nil {
		err = saved
	}
	if err != nil {
		pl.log.Error("bundle", "error", errUnsaved(err))
	}
	return 0, nil
}

// ApplyGroups applies changes of groups, all of them or none.
func (pl *Pipeline) ApplyGroups(mods []openflow.GroupMod) error {
	return pl.applyTable(len(mods), func() (openflow.Changes, error) { return pl.tables.ApplyGroups(mods, clock.Monotonic()) })
}

// ApplyMeters applies changes of meters, all of them or none.
func (pl *Pipeline) ApplyMeters(mods []openflow.MeterMod) error {
	return pl.applyTable(len(mods), func() (openflow.Changes, error) {
		changes, changed, err := pl.tables.ApplyMeters(mods, clock.Monotonic())
		for _, m := range changed {
			sendMeter(pl.workers, m)
		}
		return changes, err
	})
}

func (pl *Pipeline) applyTable(n int, apply func() (openflow.Changes, error)) error {
	pl.change.Lock()
	defer pl.change.Unlock()
	var refused error
	_, err := pl.changeTable(n, func() (openflow.Changes, error) {
		changes, err := apply()
		refused = err
		return changes, err
	})
	if refused != nil {
		return refused
	}
	if err != nil {
		pl.log.Error("groups and meters", "error", err)
	}
	return nil
}

// PullCounts updates the statistics of rules and groups from all workers.
func (pl *Pipeline) PullCounts() {
	pl.change.Lock()
	defer pl.change.Unlock()
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.pullAll()
}

// scanMost limits the rules of one call of ScanRules.
const scanMost = 256

// ScanRules appends copies of selected rules from slot from on. It returns the next
// slot, and false at the end.
func (pl *Pipeline) ScanRules(filter *openflow.FlowMod, from uint32, rules []openflow.Rule) ([]openflow.Rule, uint32, bool) {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	next, more := pl.tables.Scan(filter, from, scanMost, func(r *openflow.Rule) { rules = append(rules, *r) })
	return rules, next, more
}

// GroupState is a group with its statistics. Flows is the number of flows that name it.
type GroupState struct {
	*openflow.Group
	Stats openflow.GroupStats
	Flows int
}

// Groups returns a group, or all groups for openflow.GroupAny, with present statistics.
func (pl *Pipeline) Groups(id uint32) []GroupState {
	pl.PullCounts()
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	var list []GroupState
	flows := pl.tables.GroupFlows()
	for _, g := range pl.tables.Groups(id) {
		s := pl.tables.GroupStats(g)
		s.Buckets = slices.Clone(s.Buckets)
		list = append(list, GroupState{Group: g, Stats: s, Flows: flows[g.ID]})
	}
	return list
}

// MeterState is a meter with its statistics. Bands has the frames that each band has
// dropped.
type MeterState struct {
	*openflow.Meter
	Flows          int
	Packets, Bytes uint64
	AgeNS          uint64 // since the meter was added
	Dropped        []openflow.BucketStats
}

// Meters returns a meter, or all meters for openflow.MeterAll, with present statistics.
func (pl *Pipeline) Meters(id uint32) []MeterState {
	pl.change.Lock()
	defer pl.change.Unlock()
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	var list []MeterState
	flows, now := pl.tables.MeterFlows(), clock.Monotonic()
	for _, m := range pl.tables.Meters(id) {
		s := MeterState{Meter: m, AgeNS: now - min(now, m.CreatedNS), Flows: flows[m.ID], Dropped: make([]openflow.BucketStats, len(m.Bands))}
		for i := range m.Bands {
			for _, sh := range pl.workers.Shared() {
				c := &sh.Meters[m.Bands[i].Slot]
				if i == 0 { // frames that a band drops do not reach the next band
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

// TableConfigs returns the limits of all tables and the numbers of their rules.
func (pl *Pipeline) TableConfigs() (configs [openflow.Tables]openflow.TableConfig, flows [openflow.Tables]int) {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	for t := range openflow.Tables {
		configs[t], flows[t] = pl.tables.Config(uint8(t))
	}
	return configs, flows
}

// Send executes the actions of a packet-out on its frame. It returns after a worker has
// executed them.
func (pl *Pipeline) Send(out *openflow.PacketOut) error {
	if err := fillFlow(out); err != nil {
		return &openflow.CodedError{Code: openflow.ErrBadPacket, Text: err.Error()}
	}
	_, err := pl.inject(out)
	return err
}

// SendMisses makes frames that match no flow go to the controller, or drops them.
func (pl *Pipeline) SendMisses(on bool) {
	pl.change.Lock()
	defer pl.change.Unlock()
	pl.mu.Lock()
	pl.tables.SendMisses(on)
	pl.mu.Unlock()
	pl.revalidate(func(*megaflows.Megaflow) bool { return true })
}

// ControllerNote returns the note with a number that a frame for the controller carries.
func (pl *Pipeline) ControllerNote(id uint32) (openflow.ControllerNote, bool) {
	return pl.notes.Note(id)
}
