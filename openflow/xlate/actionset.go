// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/openflow"
	"weft/packet"
)

// writeActions executes the action write_actions: it merges actions into the frame's action set. A
// set that becomes too long ends the translation.
func (x *xlate) writeActions(actions []openflow.Action) {
	x.actionSet.Add(actions)
	if x.actionSet.TooLong() {
		x.halt(packet.DropLoop)
	}
}

// runSet executes the action set and empties it. After the action exit it executes nothing. Open
// vSwitch does the same, although ovs-actions(7) says otherwise.
func (x *xlate) runSet() {
	if len(x.actionSet) == 0 || x.halted || x.exited {
		return
	}
	actions := x.actionSet.Ordered()
	x.actionSet = nil
	x.list(actions)
}
