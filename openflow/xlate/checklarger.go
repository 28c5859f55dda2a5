// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"slices"

	"weft/flowtable"
	"weft/openflow"
)

// The action check_pkt_larger(BYTES)->FIELD[BIT] (ovs-actions(7)). A key has no length, so one megaflow
// matches frames of any length. The data path compares the length and looks the frame up again. Two
// translations execute the actions that follow check_pkt_larger: one with the bit set, one with the bit
// clear.

// checkLarger executes check_pkt_larger. restActions has the actions that follow it in the same list. As
// in Open vSwitch, the actions of outer lists do not see the bit.
func (x *xlate) checkLarger(a *openflow.Action, restActions []openflow.Action) {
	if len(restActions) == 0 {
		return
	}
	x.commit()
	start := len(x.actions)
	x.emit(flowtable.Action{Op: flowtable.OpLonger, U32: uint32(a.Value[1])})
	set := x.actionSet
	for _, bit := range []uint64{1, 0} {
		x.actionSet = set
		load := openflow.Action{Kind: openflow.ActLoad, Dst: a.Dst, Value: openflow.Value64(bit)}
		x.continueLater(slices.Concat([]openflow.Action{load}, restActions), fmt.Sprintf("continues with the bit %d", bit))
	}
	x.exited = false // as in Open vSwitch, an exit in restActions does not end the outer lists
	if x.halted {
		x.actions = x.actions[:start] // OpLonger needs both look-ups
	}
}

// noteAgain adds a step to the trace. The step says that the last emitted datapath action looks the
// frame up again.
func (x *xlate) noteAgain(text string) {
	if x.hook != nil && !x.halted {
		x.hook(TraceStep{Bridge: x.p.Bridge(), Depth: x.depth, Table: x.table, Flow: x.flow, Note: text, Recirc: x.actions[len(x.actions)-1].U32})
	}
}
