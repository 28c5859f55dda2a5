// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"weft/api"
)

const logHelp = `Prints the settings of weftd's log, or changes one until weftd is started again or rereads its
configuration file:

  weft log level debug     least severe messages: debug, info, warn or error
  weft log format json     text, json, or ovs as Open vSwitch's

For a lasting change, set log-level and log-format in weft.toml(5).`

func (c *command) logVerb() *cobra.Command {
	show := func(*cobra.Command, []string) error { return c.logSettings("", nil) }
	log := &cobra.Command{Use: "log", Short: "print or change the settings of weftd's log", Long: logHelp, Args: words(0, 0), RunE: show}
	log.AddCommand(
		&cobra.Command{
			Use: "level [debug|info|warn|error]", Short: "least severe messages in the log", Long: logHelp, Args: words(0, 1),
			RunE: func(_ *cobra.Command, args []string) error { return c.logSettings("level", args) },
		},
		&cobra.Command{
			Use: "format [text|json|ovs]", Short: "format of the log", Long: logHelp, Args: words(0, 1),
			RunE: func(_ *cobra.Command, args []string) error { return c.logSettings("format", args) },
		})
	return log
}

// logSettings changes the setting "name" of the daemon's log to the word in args. If args is empty, it prints
// the settings.
func (c *command) logSettings(name string, args []string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	var now api.Log
	switch {
	case len(args) == 0:
		now, err = client.Log()
	case name == "level":
		now, err = client.SetLog(api.Log{Level: args[0]})
	default:
		now, err = client.SetLog(api.Log{Format: args[0]})
	}
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(now)
	}
	if len(args) == 0 {
		_, err = fmt.Fprintf(c.out, "level %s, format %s\n", now.Level, now.Format)
	}
	return err
}
