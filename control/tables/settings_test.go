// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"errors"
	"testing"

	"weft/api"
	"weft/control/change"
	"weft/control/pipeline"
	"weft/control/store"
	"weft/control/usererr"
	"weft/internal/waitfor"
	"weft/openflow/ofproto"
)

// Settings of a table are in force at once, and also after a restart of control.
func TestModTable(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(1)
	if err := f.tables().ModTable(api.ModTable{Table: 3, Settings: []string{"limit:2", "evict"}}); err != nil {
		t.Fatal(err)
	}
	f.End()
	f.Begin()
	f.Add("table=3,importance=1,in_port=1,actions=drop", "table=3,importance=2,in_port=2,actions=drop", "table=3,importance=3,in_port=3,actions=drop")
	if c := f.Counts(); len(c) != 2 || c["in_port=p1"] != "" {
		t.Errorf("flows %v, want those of importance 2 and 3", c)
	}
	if list := f.tables().ListTables(); len(list) != 1 || list[0] != (api.Table{Table: 3, Flows: 2, Limit: 2, Evict: true}) {
		t.Errorf("tables %+v", list)
	}
	saved, err := f.Disk.Load()
	if err != nil || len(saved.Flows) != 2 {
		t.Errorf("%d flows saved, %v", len(saved.Flows), err)
	}
	if err := f.tables().ModTable(api.ModTable{Table: -1, Settings: []string{"noevict", "limit:1"}}); err != nil {
		t.Fatal(err)
	}
	var input *usererr.Error
	if _, err := f.tables().ChangeFlows(api.ChangeFlows{Op: "add", Text: "table=3,importance=9,in_port=7,actions=drop"}); !errors.As(err, &input) {
		t.Errorf("beyond the limit: %v", err)
	}
	for _, bad := range []api.ModTable{{Table: 255}, {Table: 1, Settings: []string{"fly"}}, {Table: 1, Settings: []string{"limit:x"}}} {
		if err := f.tables().ModTable(bad); !errors.As(err, &input) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// A new limit below the number of flows removes no flow, not even after a restart of
// control.
func TestLimitBelowWhatTheTableHas(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(1)
	f.Add("table=3,in_port=1,actions=drop", "table=3,in_port=2,actions=drop", "table=3,in_port=3,idle_timeout=1000,actions=drop")
	for _, settings := range [][]string{{"limit:1", "noevict"}, {"limit:1", "evict"}} {
		if err := f.tables().ModTable(api.ModTable{Table: 3, Settings: settings}); err != nil {
			t.Fatal(err)
		}
		f.End()
		f.Begin()
		if c := f.Counts(); len(c) != 3 {
			t.Errorf("%v: flows %v after a restart, want three", settings, c)
		}
	}
}

// slowStore is a store that writes table settings only after the channel disk is closed.
type slowStore struct {
	pipeline.Store
	disk chan struct{}
}

func (s slowStore) SaveTableConfigs(tx *change.Tx, texts map[store.Key]string) {
	tx.At(change.Save, s.disk, func() error { <-s.disk; return nil })
	s.Store.SaveTableConfigs(tx, texts)
}

// A write to a slow disk does not hold the pipeline's lock.
func TestModTableDoesNotWaitForTheDisk(t *testing.T) {
	f := newRig(t)
	disk := make(chan struct{})
	tx := f.Configuration.Begin()
	f.Store = slowStore{f.Store, disk}
	tx.Commit()
	done := make(chan error, 1)
	defer func() {
		close(disk)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	go func() { done <- f.tables().ModTable(api.ModTable{Table: 3, Settings: []string{"limit:2"}}) }()
	waitfor.True(t, "the setting in force, and the lock free", func() bool {
		if f.P.ViewNow() == nil {
			return false
		}
		var c ofproto.TableConfig
		f.P.Read(func(tables *ofproto.Tables) { c, _ = tables.Config(3) })
		return c.Limit == 2
	})
}
