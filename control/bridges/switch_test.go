// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"weft/control/change"
	"weft/control/pipeline"
	"weft/control/pipeline/pipelinetest"
	"weft/control/store"
	"weft/openflow"
	"weft/openflow/ofproto"
)

func testSwitch(t *testing.T) (*ofSwitch, *pipelinetest.Rig, *bytes.Buffer) {
	f, log := pipelinetest.New(t), new(bytes.Buffer)
	f.VXLANPorts(1)
	return newSwitch(&f.Configuration, f.P.First(), nil, nil, slog.New(slog.NewTextHandler(log, nil))), f, log
}

func group(t *testing.T, text string) openflow.GroupMod {
	t.Helper()
	mod, err := openflow.ParseGroupMod(text, openflow.GroupAdd, nil)
	if err != nil {
		t.Fatal(err)
	}
	return mod
}

// The error of a refused bundle has the index of the refused change. The bundle changes neither flows
// nor groups.
func TestRefusedBundle(t *testing.T) {
	s, f, _ := testSwitch(t)
	mod := group(t, "group_id=1,type=all,bucket=output:1")
	flow, err := openflow.ParseFlowMod("actions=group:2", openflow.Add, f.P.View())
	if err != nil {
		t.Fatal(err)
	}
	if failed, err := s.ApplyBundle([]ofproto.BundleItem{{Group: &mod}, {Flow: &flow}}, noAuthor{}); failed != 1 || err == nil {
		t.Errorf("failed %d, %v; want change 1", failed, err)
	}
	if groups, flows := s.Groups(openflow.GroupAny), f.Rules(""); len(groups)+len(flows) != 0 {
		t.Errorf("%d groups, %d flows", len(groups), len(flows))
	}
}

// brokenStore is a store that cannot save groups.
type brokenStore struct{ pipeline.Store }

func (brokenStore) ReplaceGroups(tx *change.Tx, _, _ map[store.Key]string) {
	tx.At(change.Save, brokenStore{}, func() error { return errors.New("no space") })
}

// If a change is in force but cannot be saved, this is logged, and the OpenFlow peer gets no error.
func TestUnsavedChangeIsInForce(t *testing.T) {
	s, f, log := testSwitch(t)
	tx := f.Configuration.Begin()
	f.Store = brokenStore{f.Store}
	tx.Commit()
	mods := []openflow.GroupMod{group(t, "group_id=1,type=all,bucket=output:1")}
	if err := s.ApplyGroups(mods, noAuthor{}); err != nil || !strings.Contains(log.String(), "no space") {
		t.Errorf("%v, log %q", err, log)
	}
	if groups := s.Groups(openflow.GroupAny); len(groups) != 1 || groups[0].ID != 1 {
		t.Errorf("groups %+v", groups)
	}
	var coded *openflow.CodedError
	if err := s.ApplyGroups(mods, noAuthor{}); !errors.As(err, &coded) {
		t.Errorf("the same group again: %v", err)
	}
}

// Setting the eviction of all tables does not change weft-central's table.
func TestEvictionOfAllTables(t *testing.T) {
	s, _, _ := testSwitch(t)
	if err := s.SetEviction(openflow.TableAll, true); err != nil {
		t.Fatal(err)
	}
	list := s.Tables()
	for _, table := range list {
		if table.Evict != (table.ID != ofproto.CentralTable) || table.MaxEntries != pipeline.MaxFlows {
			t.Errorf("%+v", table)
		}
	}
	if len(list) != openflow.Tables-1 {
		t.Errorf("%d tables", len(list))
	}
	if err := s.SetEviction(ofproto.CentralTable, true); err == nil {
		t.Error("weft-central's table evicts flows")
	}
}
