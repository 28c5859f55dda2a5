// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"weft/api"
)

// tlvVerbs returns the commands of ovs-ofctl(8) for the TLV map of a bridge, which maps Geneve options
// to the match fields tun_metadata0 to tun_metadata63.
func (c *command) tlvVerbs() []*cobra.Command {
	return []*cobra.Command{
		{
			Use:   "add-tlv-map {class=NUMBER,type=NUMBER,len=BYTES}->tun_metadataN[,...]",
			Short: "map options of Geneve headers to the fields tun_metadata0 to tun_metadata63",
			Long: `Map options of Geneve headers to the fields tun_metadata0 to tun_metadata63 of a bridge, for example
  weft add-tlv-map '{class=0x0102,type=0x80,len=4}->tun_metadata0'
len is the length of the option without its header: a multiple of 4, at most 124 bytes. All options of a bridge
take at most 256 bytes. A field has one mapping, and so has an option.`,
			Args: words(1, 1), RunE: c.changeTLVs("add"),
		},
		{
			Use:   "del-tlv-map [{class=NUMBER,type=NUMBER,len=BYTES}->tun_metadataN[,...]]",
			Short: "delete the mappings of fields, or all mappings; refused if a flow or group uses one",
			Args:  words(0, 1), RunE: c.changeTLVs("delete"),
		},
		{Use: "dump-tlv-map", Short: "print the map of Geneve options to fields", Args: words(0, 0), RunE: c.dumpTLVs},
	}
}

func (c *command) changeTLVs(op string) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		client, err := c.client()
		if err != nil {
			return err
		}
		return client.ChangeTLVs(api.ChangeTLVs{Op: op, Text: strings.Join(args, "")})
	}
}

// dumpTLVs prints the TLV map of the bridge in the format of ovs-ofctl.
func (c *command) dumpTLVs(*cobra.Command, []string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	m, err := client.TLVMap()
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(m)
	}
	fmt.Fprintf(c.out, " max option space=%d max fields=%d\n allocated option space=%d\n\n", m.MaxSpace, m.MaxFields, m.Space)
	_, err = fmt.Fprint(c.out, " mapping table:\n  class  type  length  match field\n ------  ----  ------  --------------\n")
	for _, t := range m.Mappings {
		_, err = fmt.Fprintf(c.out, " %6s  %4s  %6d  %s\n", hexOrZero(t.Class), hexOrZero(uint16(t.Type)), t.Len, t.Field)
	}
	return err
}

// hexOrZero returns a number as printf's %#x prints it: 0 without 0x.
func hexOrZero(n uint16) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%#x", n)
}
