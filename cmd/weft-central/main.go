// SPDX-License-Identifier: Apache-2.0

// Command weft-central keeps the declared networks, ports, groups and hosts of a fleet of switches. It
// sends each host what this host needs. One or three weft-central processes form a cluster.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"weft/cmd/exit"
	"weft/cmd/manpage"
	"weft/internal/buildinfo"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, out, errs io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(out)
	err := root.Execute()
	if err == nil {
		return 0
	}
	fmt.Fprintf(errs, "weft-central: %s\n", exit.OneLine(err))
	var usage *exit.Usage
	if errors.As(err, &usage) {
		return exit.Input
	}
	return exit.Failed
}

const defaultData = "/var/lib/weft-central"

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "weft-central",
		Short: "the declaration of a fleet of weft switches, in etcd, and the hub that its hosts follow",
		Long: `The declaration of a fleet of weft switches, in etcd, and the hub that its hosts follow.

  weft-central init --name a --address 10.0.0.1:7700     the first central of a fleet
  weft-central run

  weft central invite --role central --name b            on the first one: prints a token
  weft-central join --token T --address 10.0.0.2:7700 10.0.0.1:7700
  weft-central run`,
		Version: buildinfo.Own().String(),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exit.Usagef("expected init, join, run or restore")
			}
			return exit.Usagef("%s: expected init, join, run or restore", args[0])
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	exit.ReportFlags(root)
	root.AddCommand(initCommand(), joinCommand(), runCommand(), restoreCommand(),
		manpage.Command(func() []manpage.Page { return manPages(root) }))
	return root
}

func exactly(n int, expected string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return exit.Usagef("%d arguments: expected %s", len(args), expected)
		}
		return nil
	}
}
