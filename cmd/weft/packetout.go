package main

import "github.com/spf13/cobra"

const packetOutHelp = `Has the switch execute actions on a frame, as ovs-ofctl's packet-out does:

  weft packet-out in_port=vm1,packet=ffffffffffff02000000000108060001...,actions=TABLE

packet is the frame in hexadecimal digits, in_port the port it shall be taken to
have come from (CONTROLLER if there is none). metadata, reg0 to reg15 and tun_id
may have values. TABLE among the actions sends it through the tables, where it
counts and teaches as any other frame; no port counts it as received.`

func (c *command) packetOutVerb() *cobra.Command {
	return &cobra.Command{
		Use: "packet-out [in_port=PORT,]packet=HEX,actions=ACTIONS", Short: "send a frame, through actions or the tables", Long: packetOutHelp, Args: words(1, 1),
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
