// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"strconv"

	"weft/control/change"
	"weft/datapath"
)

// A port's weight decides its share of a worker's time (datapath/account.go). It is an option, so
// that it is saved, exported and changed like other options.

// weightOptions has the option weight=. Ports with a device have it, except uplinks.
var weightOptions = optionTable{
	"weight": {check: numberIn(1, datapath.MaxWeight)},
}

// setWeights passes the weights of all ports to the pipeline, which sends changed ones to the workers.
func (ps *Ports) setWeights(tx *change.Tx) {
	weights := map[uint32]uint32{}
	for number, p := range ps.byNumber {
		if weight, err := strconv.ParseUint(p.values["weight"], 10, 32); err == nil && weight > 1 {
			weights[number] = uint32(weight)
		}
	}
	ps.pipeline.SetPortWeights(tx, weights)
}
