// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

const packetOutHelp = `Executes actions on a frame, as ovs-ofctl's packet-out does:

  weft packet-out in_port=vm1,packet=ffffffffffff02000000000108060001...,actions=TABLE

packet is the frame in hexadecimal digits. in_port is the port that the frame matches
as its input (default: CONTROLLER). metadata, reg0 to reg15 and tun_id may be set.
The action TABLE sends the frame through the tables. There it counts for flows, and
normal and learn learn from it, as from any other frame. No port counts it as
received.`

func (c *command) packetOutVerb() *cobra.Command {
	return &cobra.Command{
		Use: "packet-out [in_port=PORT,]packet=HEX,actions=ACTIONS", Short: "send a frame by actions or through the tables", Long: packetOutHelp, Args: words(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			client, err := c.client()
			if err != nil {
				return err
			}
			sent, err := client.PacketOut(args[0])
			if err != nil || !c.json {
				return err
			}
			return c.printJSON(sent)
		},
	}
}
