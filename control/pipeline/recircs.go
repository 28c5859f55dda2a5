// SPDX-License-Identifier: Apache-2.0

package pipeline

import "weft/flowtable"

// collectRecircs frees unused recirc_ids. The caller holds Pipeline.mu.
func (pl *Pipeline) collectRecircs(list []*megaflow) {
	needed := map[uint32]bool{}
	for _, m := range list {
		needed[m.key.Recirc()] = true
		for i := range m.actions {
			if m.actions[i].Op == flowtable.OpRecirc {
				needed[m.actions[i].U32] = true
			}
		}
	}
	pl.recircs.Collect(func(id uint32) bool { return needed[id] })
}
