// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"weft/control/megaflows"
	"weft/flowtable"
)

// collectRecircs frees unused recirc_ids. The caller holds Pipeline.mu.
func (pl *Pipeline) collectRecircs(list []*megaflows.Megaflow) {
	needed := map[uint32]bool{}
	for _, m := range list {
		needed[m.Key.Recirc()] = true
		for i := range m.Actions {
			if m.Actions[i].Op == flowtable.OpRecirc {
				needed[m.Actions[i].U32] = true
			}
		}
	}
	pl.recircs.Collect(func(id uint32) bool { return needed[id] })
}
