// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"errors"

	"weft/api"
	"weft/control/pipeline"
	"weft/control/usererr"
	"weft/openflow"
	"weft/packet"
)

// PacketOut sends the frame of an operator's packet-out, whose text is as for ovs-ofctl. It
// returns after a worker has executed the actions.
func (ts *Tables) PacketOut(text string) (api.PacketSent, error) {
	view := ts.bridge.Names(pipeline.ByName)
	out, err := openflow.ParsePacketOut(text, view)
	if err != nil {
		return api.PacketSent{}, usererr.Mark(err)
	}
	t, err := ts.bridge.Send(&out)
	var input *openflow.CodedError
	if errors.As(err, &input) {
		err = usererr.Mark(err)
	}
	if err != nil {
		return api.PacketSent{}, err
	}
	sent := api.PacketSent{Actions: openflow.FormatDatapathActions(t.Actions, ts.pipeline.View())}
	if t.Drop != packet.DropNone {
		sent.Drop = t.Drop.String()
	}
	return sent, nil
}
