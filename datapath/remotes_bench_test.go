// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"testing"

	"weft/flowtable"
	"weft/port/porttest"
)

// BenchmarkRemotes measures a pass whose frames go through tunnels to many remotes,
// each with its own flow and template. One operation is one frame.
func BenchmarkRemotes(b *testing.B) {
	for _, remotes := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint(remotes), func(b *testing.B) { benchmarkRemotes(b, remotes) })
	}
}

func benchmarkRemotes(b *testing.B, remotes int) {
	sizes := testSizes
	sizes.Cache = flowtable.Sizes{Megaflows: 16384, Exact: 32768, Masks: 32, Actions: 65536}
	sizes.Templates = 16384
	sizes.CommandRing = 1 << 23
	r := newRig(b, sizes)
	r.w.config.SpinUS = forever
	r.addPort(1, porttest.Options{Slots: 16384, SlotBytes: 128}, false)
	r.addPort(2, porttest.Options{}, false)
	r.tx(2).Discard.Store(true)
	t := benchTemplate(b)
	for i := range remotes {
		r.command(AppendTemplate(nil, uint32(i), &t))
		r.install(uint32(i), 1, uint64(0x020000000000+i), flowtable.Action{Op: flowtable.OpTunnel, U16: 1, U32: uint32(i), U64: 100})
		if i%32 == 0 {
			r.turn()
		}
	}
	for range 1 + 2*remotes/maxCommandsPerPass {
		r.turn()
	}
	for i := range remotes {
		r.inject(1, ethernet(uint64(0x020000000000+i), 64, uint32(i)))
	}
	r.measureFrames(b)
}
