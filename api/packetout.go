package api

import "net/http"

// PacketOut asks for a frame to be sent: in_port=PORT,packet=HEX,actions=ACTIONS.
type PacketOut struct {
	Text string `json:"text"`
}

// PacketSent tells what was done with it.
type PacketSent struct {
	Actions string `json:"actions"`        // of the data path
	Drop    string `json:"drop,omitempty"` // why it was not sent, or not everywhere
}

// PacketOut has the switch execute actions on a frame.
func (c *Client) PacketOut(text string) (PacketSent, error) {
	var sent PacketSent
	return sent, c.Do(http.MethodPost, "/v1/packet-out", nil, PacketOut{Text: text}, &sent)
}
