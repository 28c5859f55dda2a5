// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"strconv"

	"weft/control/change"
	"weft/datapath"
)

// Weights of ports in the division of a worker's time (datapath/account.go). A weight is an
// option, so that it is saved, exported and applied like others.

// weightOptions are options of the ports that pay for the time of their frames.
var weightOptions = optionTable{
	"weight": {check: numberIn(1, datapath.MaxWeight)},
}

// setWeights sends the workers the weights that have changed.
func (ps *Ports) setWeights(tx *change.Tx) {
	weights := map[uint32]uint32{}
	for number, p := range ps.byNumber {
		if weight, err := strconv.ParseUint(p.values["weight"], 10, 32); err == nil && weight > 1 {
			weights[number] = uint32(weight)
		}
	}
	ps.pipeline.SetPortWeights(tx, weights)
}
