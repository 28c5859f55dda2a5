// SPDX-License-Identifier: Apache-2.0

package api

import "net/http"

// PacketOut is a request to execute actions on a frame. Its text has the form
// in_port=PORT,packet=HEX,actions=ACTIONS.
type PacketOut struct {
	Text string `json:"text"`
}

// PacketSent has the actions that were executed for a PacketOut. It has a drop reason if the frame did
// not reach all outputs.
type PacketSent struct {
	Actions string `json:"actions"`        // datapath actions that were executed
	Drop    string `json:"drop,omitempty"` // drop reason if the frame did not reach all outputs
}

// PacketOut makes the switch execute actions on a frame. text has the form
// in_port=PORT,packet=HEX,actions=ACTIONS.
func (c *Client) PacketOut(text string) (PacketSent, error) {
	var sent PacketSent
	return sent, c.Do(http.MethodPost, "/v1/packet-out", nil, PacketOut{Text: text}, &sent)
}
