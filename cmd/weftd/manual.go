// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft/cmd/manpage"
)

const weftdText = `weftd is a virtual switch in user space. It joins vhost-user ports of virtual machines, tap
devices and uplinks by flows with the syntax of ovs-ofctl(8), and by tunnels (VXLAN, Geneve).

weftd is the control process. It starts "weftd engine", whose workers forward the frames. The
engine forwards on while weftd is stopped, restarted or upgraded.

A setting on the command line overrides the one of the configuration file, weft.toml(5).`

const weftdSignals = `  SIGTERM  weftd ends. The engine forwards on, and the next weftd takes it over.
  SIGINT   weftd and the engine end, and taps, XDP programs and sockets of ports are
           removed, as with weft shutdown.
  SIGHUP   weftd rereads the configuration file. log-level and log-format apply at once, other
           settings at the next start.`

const weftdFiles = `  /etc/weft/weft.toml  configuration of the unit weftd.service
  /run/weft/weft.sock  socket of the API
  /run/weft/weft.mgmt  socket of OpenFlow, for ovs-ofctl
  /var/lib/weft        ports, flows, and tracked connections`

const tomlText = `The configuration file of weftd(8), which weftd --config names, is a file of TOML:

  socket = "/run/weft/weft.sock"
  cores = "2-3"
  spin-us = 50

An unknown key and a wrong value are refused with the line. A key that is missing has its
default. Each key has the name of an option of weftd, which overrides it.`

// manPages returns the manual pages weftd(8) and weft.toml(5).
func manPages(root *cobra.Command) []manpage.Page {
	return []manpage.Page{
		{Name: "weftd", Section: 8, Summary: "virtual switch for virtual machines and containers", Root: root, Text: weftdText,
			Chapters: []manpage.Chapter{{Title: "SIGNALS", Text: weftdSignals}, {Title: "FILES", Text: weftdFiles},
				{Title: "SEE ALSO", Text: "weft(8), weft.toml(5), weft-ports(7), weft-flows(7), weft-central(8)"}}},
		{Name: "weft.toml", Section: 5, Summary: "configuration of weftd", Text: tomlText,
			Chapters: []manpage.Chapter{{Title: "KEYS", Text: keysText()}, {Title: "SEE ALSO", Text: "weftd(8), weft(8)"}}},
	}
}

// keysText lists the keys of the configuration file.
func keysText() string {
	var defaults settings
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	defaults.register(flags)
	var paragraphs []string
	for _, name := range settingNames() {
		f := flags.Lookup(name)
		kind := "string"
		if f.Value.Type() != "string" {
			kind = "number"
		}
		text := name + " (" + kind + "): " + f.Usage
		if f.DefValue != "" && f.DefValue != "0" {
			text += " (default " + f.DefValue + ")"
		}
		paragraphs = append(paragraphs, text)
	}
	return strings.Join(paragraphs, "\n\n")
}
