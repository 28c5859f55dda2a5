// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"weft/flowtable"
)

func longer(length, larger, fitting uint32) []flowtable.Action {
	return []flowtable.Action{{Op: flowtable.OpLonger, U32: length}, {Op: flowtable.OpRecirc, U32: larger}, {Op: flowtable.OpRecirc, U32: fitting}}
}

// OpLonger selects the second look-up by the length of the frame, or of a large frame's segments. The
// actions behind it see the frame as it was before.
func TestLongerSelectsTheLookup(t *testing.T) {
	for _, c := range []struct {
		name         string
		n, size      int
		limit        uint32
		larger, last bool
	}{
		{name: "as long", n: 946, limit: 1000, last: true},
		{name: "longer", n: 947, limit: 1000, larger: true, last: true},
		{name: "segments fit", n: 20000, size: 946, limit: 1000, last: true},
		{name: "segments exceed", n: 20000, size: 947, limit: 1000, larger: true},
		{name: "in the middle", n: 946, limit: 1000},
	} {
		r := withOffloads(t)
		list := longer(c.limit, 7, 8)
		if !c.last {
			list = append(list, output(2))
		}
		install := func(slot, id uint32, list []flowtable.Action) {
			key := flowtable.Key{flowtable.WPort: 1<<32 | uint64(id)}
			mask := flowtable.Key{flowtable.WPort: ^uint64(0)}
			r.command(AppendInstall(nil, slot, &key, &mask, list))
		}
		install(0, 0, list)
		for _, id := range []uint32{7, 8} {
			install(id, id, []flowtable.Action{{Op: flowtable.OpSetEthSrc, U64: uint64(id)}, output(5)})
		}
		f, o := undo(large(0xa, c.n), c.size)
		r.rx(1).InjectUndone(f, o)
		r.turn()
		got, _ := r.tx(5).TakeUndone()
		want := byte(8)
		if c.larger {
			want = 7
		}
		if len(got) != len(f) || got[11] != want {
			t.Fatalf("%s: sent %d bytes, want %d by look-up %d", c.name, len(got), len(f), want)
		}
		for _, whole := range r.tx(2).TakeAll() {
			if c.last || whole[11] != 1 {
				t.Errorf("%s: port 2 got a frame from %d", c.name, whole[11])
			}
		}
		r.drops(nil)
	}
}
