// SPDX-License-Identifier: Apache-2.0

// Command weft manages a switch and shows its state: it sends requests to the daemon weftd. It also
// declares the networks, ports and hosts of a fleet of switches: it sends them to the daemon
// weft-central.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/api"
	"weft/cmd/exit"
	"weft/cmd/manpage"
	"weft/internal/buildinfo"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run executes the command line args with the given files as standard input, output and error. It returns the
// exit code.
func run(args []string, stdin io.Reader, out, errs io.Writer) int {
	results := &output{Writer: out}
	c := &command{stdin: stdin, out: results, errs: errs}
	root := c.root()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errs)
	err := root.Execute()
	if err == nil {
		err = results.err
	}
	if err == nil {
		return 0
	}
	code := exitCode(err)
	switch {
	case err == errDiffer:
	case c.json || slices.Contains(args, "--json"): // a wrong option before --json leaves c.json unset
		printError(errs, exit.OneLine(err), code)
	default:
		fmt.Fprintf(errs, "weft: %s\n", exit.OneLine(err))
	}
	return code
}

// printError prints an error message and the exit code as a JSON object.
func printError(errs io.Writer, message string, code int) {
	object := json.NewEncoder(errs)
	object.SetEscapeHTML(false)
	_ = object.Encode(struct { // error ignored: there is no other place to report it
		Error string `json:"error"`
		Code  int    `json:"code"`
	}{message, code})
}

func exitCode(err error) int {
	var usage *exit.Usage
	var refused *api.Refused
	switch {
	case err == errDiffer:
		return exitDiffer
	case errors.As(err, &usage):
		return exit.Input
	case errors.As(err, &refused) && refused.Input, isCentralInput(err):
		return exit.Input
	}
	return exit.Failed
}

// command is one run of weft, with the state that all subcommands share.
type command struct {
	stdin  io.Reader
	out    io.Writer
	errs   io.Writer
	socket string
	json   bool
	// numbers is true for the option --no-names: the daemon then shows ports by number.
	numbers bool
	fleet   centralFlags
	// bridge is the bridge to which requests apply; "": the first bridge. It is the value of --bridge,
	// or the first argument of a command in ofctlVerbs.
	bridge string
	// names has the names of the daemon's bridges; nil: not asked for yet
	names []string
}

func (c *command) client() (*api.Client, error) {
	client, err := api.NewClient(c.socket)
	if err == nil {
		client.PortNumbers, client.Bridge = c.numbers, c.bridge
	}
	return client, err
}

// showsPorts adds the options --names and --no-names of ovs-ofctl to a command whose output has ports.
func (c *command) showsPorts(verb *cobra.Command) *cobra.Command {
	verb.Flags().Bool("names", false, "show ports by name (default)")
	verb.Flags().BoolVar(&c.numbers, "no-names", false, "show ports by number")
	verb.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("names") && cmd.Flags().Changed("no-names") {
			return exit.Usagef("--names and --no-names: expected one of them")
		}
		return nil
	}
	return verb
}

func (c *command) root() *cobra.Command {
	root := &cobra.Command{
		Use:     "weft",
		Short:   "manage the ports and flows of the weft switch",
		Version: buildinfo.Own().String(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return noSuchVerb(cmd, args[0])
			}
			return cmd.Help()
		},
		Args: cobra.ArbitraryArgs,
		// For an unknown command, cobra suggests those that differ from it in at most this number of
		// letters.
		SuggestionsMinimumDistance: 2,
	}
	exit.ReportFlags(root)
	socket := os.Getenv("WEFT_SOCKET")
	if socket == "" {
		socket = api.DefaultSocket
	}
	root.PersistentFlags().StringVar(&c.socket, "socket", socket, "the daemon's socket (or WEFT_SOCKET): a path, or vsock:CID:PORT")
	root.PersistentFlags().StringVar(&c.bridge, "bridge", "", "bridge of the flows, groups, meters, addresses or new ports (default: the first)")
	c.fleet.register(root.PersistentFlags())
	root.PersistentFlags().BoolVar(&c.json, "json", false, "print JSON")
	// ovs-ofctl allows these options before the command's name. So the root command has them too.
	for _, name := range []string{"bundle", "strict", "no-stats", "names", "no-names", "may-create"} {
		root.Flags().Bool(name, false, "")
		_ = root.Flags().MarkHidden(name) // error ignored: the flag exists, because Bool has just defined it
	}
	root.Flags().VarP(protocols{}, "protocols", "O", "")
	_ = root.Flags().MarkHidden("protocols")
	root.AddCommand(c.switchVerbs()...)
	root.AddCommand(nounCommands(c.switchVerbs())...)
	root.AddCommand(c.centralVerbs()...)
	root.AddCommand(c.showVerb(), c.shutdownVerb(), c.versionVerb(), c.logVerb())
	root.AddCommand(completionVerb())
	root.AddCommand(topics()...)
	root.AddCommand(manpage.Command(func() []manpage.Page { return manPages(root) }))
	root.SetHelpCommand(helpVerb(root))
	c.ofctlHabits(root)
	c.completePorts(root)
	groupVerbs(root)
	giveExamples(root)
	return root
}

// switchVerbs returns the commands for the objects of a switch. It makes them anew at each call,
// because a cobra command can have only one parent.
func (c *command) switchVerbs() []*cobra.Command {
	return slices.Concat(c.portVerbs(), c.flowVerbs(), c.tableVerbs(), c.modTableVerbs(), c.tlvVerbs(), c.macVerbs(),
		c.conntrackVerbs(), c.toolVerbs(), c.bridgeVerbs(), c.controllerVerbs())
}

func words(lo, hi int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		_, usage, _ := strings.Cut(cmd.Use, " ")
		if usage == "" {
			usage = "no further word"
		}
		switch {
		case len(args) < lo:
			return exit.Usagef("%s: a word is missing; expected %s", calledAs(cmd), usage)
		case hi >= 0 && len(args) > hi:
			return exit.Usagef("%s: %s is one word too many; expected %s (quote words with blanks)%s", calledAs(cmd), args[hi], usage, bridgeHint(cmd, args))
		}
		return nil
	}
}
