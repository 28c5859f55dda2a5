// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"testing"

	"weft/internal/share"
)

// Two workers miss frames with the same options at the same time. The first translation does not need
// the options and calls Forget. The megaflow of the other translation still needs them.
func TestForgetKeepsOptionsOfAnotherMiss(t *testing.T) {
	table := NewOptionTable()
	raw := []byte{1, 2, 0, 1, 0, 0, 0, 1}
	if !table.Put(1, 7, raw) || table.Put(1, 7, raw) {
		t.Fatal("the options are new once")
	}
	table.Forget(7)
	if _, known := table.Options(7); !known {
		t.Error("the options of the second miss are forgotten")
	}
	table.Collect(func(uint64) bool { return false })
	table.Collect(func(uint64) bool { return false })
	if _, known := table.Options(7); known {
		t.Error("unused options stay")
	}
	table.Put(1, 7, raw)
	table.Forget(7)
	if used, _ := table.Shares(func(uint32, share.Use) {}); used != 0 {
		t.Errorf("%d options stay; one miss alone needed them", used)
	}
}
