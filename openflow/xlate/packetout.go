// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/openflow"
	"weft/openflow/ofproto"
)

// Execute runs actions on one frame with the fields in flow, in the bridge of p and env. The
// translation's Mask has no meaning, because no megaflow is made.
func Execute(p *ofproto.Tables, actions []openflow.Action, flow *openflow.Flow, env Env) (Translation, error) {
	if err := p.CheckReferences(actions); err != nil {
		return Translation{}, err
	}
	x := xlates.Get().(*xlate)
	x.beginWith(p, flow, env)
	if port, ok := env.Port(x.cameIn); ok {
		x.cameIn = port.At()
	}
	x.mirrorArrival()
	x.list(actions)
	x.endLists()
	var t Translation
	x.finish(&t)
	return t, nil
}

// intoTables executes an output to the port TABLE: it runs the current frame through the tables,
// beginning with table 0.
func (x *xlate) intoTables() {
	if x.descend() {
		x.pipeline(0, true)
		x.depth--
	}
}
