// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/openflow"
	"weft/packet"
)

// writeActions adds actions to the translation's action set.
func (x *xlate) writeActions(actions []openflow.Action) {
	x.actionSet.Add(actions)
	if x.actionSet.TooLong() {
		x.halt(packet.DropLoop)
	}
}

// runSet executes the action set and empties it. After an exit it executes nothing, as in
// Open vSwitch's switch; ovs-actions(7) says otherwise.
func (x *xlate) runSet() {
	if len(x.actionSet) == 0 || x.halted || x.exited {
		return
	}
	actions := x.actionSet.Ordered()
	x.actionSet = nil
	x.list(actions)
}
