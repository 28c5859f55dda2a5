// SPDX-License-Identifier: Apache-2.0

package store

import (
	"maps"
	"slices"
	"testing"

	"go.etcd.io/bbolt"
)

// A deleted bridge leaves nothing in the state file, the other bridges keep all. One
// transaction deletes it, so a crash leaves the whole bridge or nothing of it.
func TestDeleteBridgeIsOneTransaction(t *testing.T) {
	s := openTestStore(t, t.TempDir())
	defer s.Close()
	both := func(text string) map[Key]string {
		return map[Key]string{{0, 7}: text, {1, 7}: text, {1, 255}: text, {2, 7}: text}
	}
	must := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for number := range uint8(3) {
		must(s.SaveBridge(Bridge{Number: number, Name: "br" + string('0'+rune(number))}),
			s.SavePort(Port{Number: uint32(number) + 1, Name: "p", InFlows: 1, Bridge: number}),
			s.ChangeFlows(slices.Values([]Flow{{number, uint32(number), 1, "actions=drop"}}), nil))
	}
	must(s.ChangeTables(both("group"), both("meter"), nil, nil), s.SaveTableConfigs(both("table")), s.SaveTLVs(both("tlv")))
	committed := func() (transactions int) {
		must(s.db.View(func(tx *bbolt.Tx) error { transactions = tx.ID(); return nil }))
		return transactions
	}
	before := committed()
	must(s.DeleteBridge(1, []uint32{2}, []uint32{1}))
	if n := committed() - before; n != 1 {
		t.Errorf("%d transactions", n)
	}
	state, err := s.Load()
	must(err)
	if len(state.Bridges) != 2 || len(state.Ports) != 2 || len(state.Flows) != 2 {
		t.Errorf("%+v", state)
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
