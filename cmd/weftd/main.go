// SPDX-License-Identifier: Apache-2.0

// Command weftd is the daemon of a switch. Without arguments it runs the control process, which has the
// API and the flow tables. The control process starts "weftd engine", whose workers forward the frames.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"weft/afpacket"
	"weft/cmd/exit"
	"weft/cmd/manpage"
	"weft/control"
	"weft/control/ofconn"
	"weft/control/ovsdb"
	"weft/control/usererr"
	"weft/engine"
	"weft/internal/buildinfo"
	"weft/internal/logs"
	"weft/internal/shm"
	"weft/tap"
	"weft/vhost"
	"weft/xsk"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stderr))
}

func run(args []string, errs io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	fmt.Fprintf(errs, "weftd: %s\n", exit.OneLine(err))
	var usage *exit.Usage
	var input *usererr.Error
	if errors.As(err, &usage) || errors.As(err, &input) {
		return exit.Input
	}
	return exit.Failed
}

func rootCommand() *cobra.Command {
	var flags settings
	var file string
	root := &cobra.Command{
		Use:     "weftd",
		Short:   "the weft switch: vhost-user, taps and AF_XDP uplinks joined by OpenFlow rules and tunnels",
		Version: buildinfo.Own().String(),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.Usagef("%s: expected flags only", args[0])
			}
			return nil
		},
	}
	exit.ReportFlags(root)
	flags.register(root.Flags())
	root.Flags().StringVar(&file, "config", "", "configuration file, TOML; flags override it")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		return runControl(func() (*settings, error) { return flags.merge(file, cmd.Flags()) })
	}
	root.AddCommand(engineCommand(), checkDatabaseCommand(), manpage.Command(func() []manpage.Page { return manPages(root) }))
	return root
}

// keepOthersOut sets the umask so that others may not write to the files and sockets that this process
// creates, whatever umask it was started with. Whoever can write to a vhost-user socket can connect to
// it in place of a guest's driver.
func keepOthersOut() { unix.Umask(unix.Umask(0o077) | 0o002) }

// runControl runs the control process with the settings that readSettings returns. At SIGHUP it calls
// readSettings again.
func runControl(readSettings func() (*settings, error)) error {
	s, err := readSettings()
	if err != nil {
		return err
	}
	config, err := s.config()
	if err != nil {
		return err
	}
	config.Log, config.LogSettings = logs.New(os.Stderr)
	if err := config.LogSettings.Set(s.LogLevel, s.LogFormat); err != nil {
		return err
	}
	keepOthersOut()
	if err := giveUpProtection(scoreFile); err != nil {
		config.Log.Warn("the kernel may kill other processes before weftd when memory is short", "error", err)
	}
	if err := s.becomeUser(); err != nil {
		return err
	}
	r := &reloader{read: readSettings, running: s, settings: config.LogSettings, log: config.Log}
	if err := shm.Prepare(); err != nil {
		config.Log.Warn("a front end can block its own session until the cause is removed", "error", err)
	}
	ctx, stop := untilSignal(r.reload)
	defer stop()
	context.AfterFunc(ctx, func() { notify(config.Log, daemon.SdNotifyStopping) })
	status := &serviceStatus{log: config.Log, watchdog: func() { go keepWatchdog(config.Socket, config.Log) }}
	config.Delayed = status.delayed
	return control.Run(ctx, config, func() {
		status.ready()
		config.Log.Info("ready", "socket", config.Socket, "state", config.StateDir, "pid", os.Getpid())
	})
}

// checkDatabaseCommand returns the command check-database, which reads a database of Open vSwitch and
// prints a line for each row or column that the switch does not support.
func checkDatabaseCommand() *cobra.Command {
	var certs string
	check := &cobra.Command{
		Use: "check-database TARGET", Short: "print what of an Open vSwitch database the switch cannot do, without changing it",
		Example: "  weftd check-database unix:/run/openvswitch/db.sock",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return exit.Usagef("check-database: expected unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT of an ovsdb-server")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			findings, err := ovsdb.Check(cmd.Context(), args[0], func() (*tls.Config, error) { return ofconn.LoadTLS(certs) })
			if err != nil {
				return err
			}
			for _, line := range findings {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			if len(findings) > 0 {
				return fmt.Errorf("check-database: the switch cannot do %d of the database's settings", len(findings))
			}
			return nil
		},
	}
	check.Flags().StringVar(&certs, "openflow-certs", defaultOpenFlowCerts, "directory of the certificate for ssl: ca.pem, cert.pem, key.pem")
	return check
}

func engineCommand() *cobra.Command {
	var state string
	var options engine.Options
	cmd := &cobra.Command{
		Use: "engine", Short: "the process of the workers; weftd starts it", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_ = takeProtection(scoreFile) // error ignored: the engine then has control's score
			return engine.Serve(state, options, map[string]engine.Opener{
				"vhost-user": vhost.Open,
				"tap":        tap.Open,
				"af_xdp":     xsk.Open,
				"af_packet":  afpacket.Open,
				"device":     afpacket.Open,
			})
		},
	}
	cmd.Flags().StringVar(&state, "state", defaultState, "the state directory")
	cmd.Flags().IntVar(&options.Control, "control", 0, "descriptor of a connection to control")
	cmd.Flags().BoolVar(&options.Rehearsal, "rehearsal", false, "only show that the workers start")
	cmd.Flags().IntVar(&options.Spare, "spare", 0, "wait for the engine that serves it to end, and have as many workers then")
	return cmd
}
