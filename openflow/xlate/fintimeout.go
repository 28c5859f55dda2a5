// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/openflow"
	"weft/openflow/ofproto"
)

// TCP flags that end a connection (RFC 9293 section 3.1).
var finFlag, rstFlag = openflow.Subfield{Field: openflow.FTCPFlags, Offset: 0, Bits: 1}, openflow.Subfield{Field: openflow.FTCPFlags, Offset: 2, Bits: 1}

// finTimeout adds the current flow to x.finished if the frame is a TCP FIN or RST. Each such frame then
// reduces the flow's timeouts. The megaflow matches both TCP flags.
func (x *xlate) finTimeout(a *openflow.Action) {
	if x.rule == nil || !x.hasField(openflow.FTCPFlags) {
		return
	}
	fin, rst := x.read(finFlag), x.read(rstFlag)
	if fin[1]|rst[1] != 0 {
		x.finished = append(x.finished, ofproto.Finished{Rule: x.rule, Idle: uint16(a.Value[0]), Hard: uint16(a.Value[1])})
		x.note("FIN or RST: the flow gets its shorter timeouts")
	}
}
