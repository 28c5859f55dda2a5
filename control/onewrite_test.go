// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.etcd.io/bbolt"

	"weft/api"
	"weft/control/agent"
	"weft/control/change"
	"weft/control/ovsdb"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// copyState copies the state file into a new state directory, as it would be if control were killed now.
func (f *fakes) copyState() (dir string) {
	f.t.Helper()
	dir = f.t.TempDir()
	text, err := os.ReadFile(filepath.Join(f.config.StateDir, "state.db"))
	if err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "state.db"), text, 0o600); err != nil {
		f.t.Fatal(err)
	}
	return dir
}

// writes returns the number of transactions that have changed the state file so far.
func (f *fakes) writes() (transactions int) {
	f.t.Helper()
	db, err := bbolt.Open(filepath.Join(f.copyState(), "state.db"), 0o600, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	defer db.Close()
	if err := db.View(func(tx *bbolt.Tx) error { transactions = tx.ID(); return nil }); err != nil {
		f.t.Fatal(err)
	}
	return transactions
}

// saved returns the number of ports that a control process would load if this one were killed now.
func (f *fakes) saved() (ports int) {
	f.t.Helper()
	return len(f.stateIn(f.copyState()).Ports)
}

// cost counts the work that a change causes: transactions of the state file, views of the ports and
// walks of the megaflows.
type cost struct{ writes, views, walks int }

// Each change of the switch is one transaction of the state file, so that a killed control process
// leaves the state before the change or after it. A change makes at most one view and one walk.
func TestChangeIsOneWrite(t *testing.T) {
	f := newFakes(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var stages [change.Stages]int
	f.d.configuration.View(func(*change.Tx) {
		f.d.configuration.Observe = func(stage change.Stage) { stages[stage]++ }
	})
	costs := func(name string, want cost, fn func() error) {
		t.Helper()
		before := f.writes()
		f.d.configuration.View(func(*change.Tx) { clear(stages[:]) })
		must(fn())
		var got cost
		f.d.configuration.View(func(*change.Tx) { got = cost{f.writes() - before, stages[change.Show], stages[change.Walk]} })
		if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	once := func(name string, fn func() error) { t.Helper(); costs(name, cost{1, 1, 1}, fn) }
	costs("add-br", cost{1, 0, 1}, func() error { _, err := f.d.bridges.Add(api.AddBridge{Name: "br1", Bare: true}); return err })
	for i := range 5 {
		once("add-port", func() error {
			_, err := f.d.ports.Add(fmt.Sprint("p", i), []string{"type=patch", fmt.Sprint("peer=p", i^1), "bridge=br1"})
			return err
		})
	}
	once("mod-port", func() error { _, err := f.d.ports.Modify("p0", []string{"tag=7"}); return err })
	once("del-port", func() error { return f.d.ports.Delete("p4") })
	tables := f.d.bridges.Named("br1").Tables
	costs("apply of a file with a bridge, 100 ports, a group and flows", cost{1, 1, 1}, func() error {
		list := appliedFile(100)
		return f.d.rest.ChangeAll(slices.Concat(list[:1], list[2:105])) // leaves out the changes of br1
	})
	once("del-br of a bridge with 100 ports", func() error { return f.d.bridges.Delete("br2") })
	costs("add-group", cost{1, 0, 1}, func() error {
		_, err := tables.ChangeGroups(api.ChangeTable{Op: "add", Text: "group_id=1,type=all,bucket=output:p1"})
		return err
	})
	costs("a bundle of 1,000 flows and a group", cost{1, 0, 1}, func() error {
		group, err := openflow.ParseGroupMod("group_id=2,type=all,bucket=output:1", openflow.GroupAdd, nil)
		must(err)
		items := []ofproto.BundleItem{{Group: &group}}
		for i := range 1000 {
			mods, err := openflow.ParseFlowMods(fmt.Sprintf("priority=%d,actions=group:2", i+1), openflow.Add, nil)
			must(err)
			items = append(items, ofproto.BundleItem{Flow: &mods[0]})
		}
		return f.d.configuration.Update(func(tx *change.Tx) error {
			_, err := f.d.bridges.Named("br1").Pipeline.ApplyBundle(tx, items)
			return err
		})
	})
	once("del-br", func() error { return f.d.bridges.Delete("br1") })

	var declared []agent.Port
	for i := range 100 {
		declared = append(declared, agent.Port{Name: fmt.Sprint("q", i), VNI: 5, Unchecked: true})
	}
	costs("a declaration, which the agent saves", cost{0, 1, 1}, func() error {
		return f.d.fleet.Apply(&agent.Changes{Endpoint: netip.MustParseAddr("192.0.2.1"), Nets: []agent.Net{{VNI: 5}}, Ports: declared})
	})

	const rows = 100
	once("a transaction of the database", func() error {
		ruled{f.d}.ChangePorts(func(ports ovsdb.PortChanges) {
			for i := range rows {
				must(ports.Add(fmt.Sprint("r", i), []string{"type=patch", "peer=x"}, func(err error) { t.Error(err) }))
			}
			tx := ports.(portChanges).tx
			for stage, want := range map[change.Stage]int{change.Show: 0, change.Walk: 0, change.Attach: 0, change.Close: rows, change.Tell: rows} {
				tx.At(stage, t, func() error {
					if n := f.saved(); n != want {
						t.Errorf("a kill at stage %d leaves %d ports, want %d", stage, n, want)
					}
					return nil
				})
			}
		})
		return nil
	})
}
