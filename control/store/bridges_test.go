// SPDX-License-Identifier: Apache-2.0

package store

import (
	"maps"
	"slices"
	"testing"

	"go.etcd.io/bbolt"

	"weft/control/change"
)

// All changes of one transaction of the configuration are written by one transaction of the
// state file.
func TestChangesAreSavedTogether(t *testing.T) {
	s := openTestStore(t, t.TempDir())
	defer s.Close()
	before := s.committed(t)
	inTx(t, func(tx *change.Tx) {
		for number := range uint32(100) {
			s.SavePort(tx, Port{Number: number + 1, Name: "p"})
		}
		s.DeletePort(tx, 7)
	})
	if n := s.committed(t) - before; n != 1 {
		t.Errorf("%d transactions", n)
	}
	if state, err := s.Load(); err != nil || len(state.Ports) != 99 {
		t.Errorf("%d ports, %v", len(state.Ports), err)
	}
}

// committed returns the number of transactions that the state file has committed.
func (s *Store) committed(t *testing.T) (transactions int) {
	t.Helper()
	if err := s.db.View(func(tx *bbolt.Tx) error { transactions = tx.ID(); return nil }); err != nil {
		t.Fatal(err)
	}
	return transactions
}

// A deleted bridge leaves nothing in the state file, and the other bridges keep everything. One
// transaction deletes the bridge, so after a crash the file has the whole bridge or nothing of
// it.
func TestDeleteBridgeIsOneTransaction(t *testing.T) {
	s := openTestStore(t, t.TempDir())
	defer s.Close()
	both := func(text string) map[Key]string {
		return map[Key]string{{0, 7}: text, {1, 7}: text, {1, 255}: text, {2, 7}: text}
	}
	for number := range uint8(3) {
		inTx(t, func(tx *change.Tx) {
			s.SavePort(tx, Port{Number: uint32(number) + 1, Name: "p", InFlows: 1, Bridge: number})
			s.SaveBridge(tx, Bridge{Number: number, Name: "br" + string('0'+rune(number))})
			s.ChangeFlows(tx, slices.Values([]Flow{{number, uint32(number), 1, "actions=drop"}}), nil)
		})
	}
	inTx(t, func(tx *change.Tx) {
		s.ReplaceGroups(tx, both("group"), both("meter"))
		s.SaveTableConfigs(tx, both("table"))
		s.SaveTLVs(tx, both("tlv"))
	})
	before := s.committed(t)
	inTx(t, func(tx *change.Tx) {
		s.DeletePort(tx, 2)
		s.DeleteBridge(tx, 1, []uint32{1})
	})
	if n := s.committed(t) - before; n != 1 {
		t.Errorf("%d transactions", n)
	}
	state, err := s.Load()
	if err != nil || len(state.Bridges) != 2 || len(state.Ports) != 2 || len(state.Flows) != 2 {
		t.Errorf("%+v, %v", state, err)
	}
	for name, texts := range map[string]map[Key]string{"groups": state.Groups, "meters": state.Meters, "tables": state.Tables, "TLVs": state.TLVs} {
		keys := slices.SortedFunc(maps.Keys(texts), func(a, b Key) int { return int(a.Bridge) - int(b.Bridge) })
		if !slices.Equal(keys, []Key{{0, 7}, {2, 7}}) {
			t.Errorf("%s of %v are left", name, keys)
		}
	}
	for key := range state.Names {
		if BridgeOf(key) == 1 {
			t.Errorf("the last name of port number %d is left", key)
		}
	}
}
