// SPDX-License-Identifier: Apache-2.0

package statistics

import (
	"testing"

	"weft/conntrack"
	"weft/control/limits"
	"weft/datapath"
)

// The rows about fragments count each incomplete datagram of each worker once.
func TestFragmentRows(t *testing.T) {
	r := newFragmentRows(2)
	held := func(worker int, port, datagram uint32) {
		r.add(worker, &datapath.HeldFrame{InPort: port, Track: datapath.HeldTrack{Datagram: datagram}})
	}
	held(0, 1, 7)
	held(0, 1, 7)
	held(1, 1, 7)
	held(0, 2, 8)
	held(0, 2, 0)
	var rows []limits.Row
	for port, discarded := range []uint64{0, 5, 0, 6} {
		r.emit(func(row limits.Row) { rows = append(rows, row) }, uint32(port), discarded)
	}
	r.emitAll(func(row limits.Row) { rows = append(rows, row) })
	const all = 2 * conntrack.MaxDatagrams
	free := uint64(all - 3)
	want := []limits.Row{
		{Holder: limits.Port(1), Used: 2, Limit: 2 + (free-2+1)/2, Refused: 5},
		{Holder: limits.Port(2), Used: 1, Limit: 1 + free/2},
		{Holder: limits.Port(3), Limit: (free + 1) / 2, Refused: 6},
		{Holder: limits.All(), Used: 3, Limit: all, Refused: 11},
	}
	if len(rows) != len(want) {
		t.Fatalf("rows %+v", rows)
	}
	for i, w := range want {
		w.Name, w.Unit = "fragmented_datagrams", "datagrams"
		if rows[i] != w {
			t.Errorf("%+v, want %+v", rows[i], w)
		}
	}
}
