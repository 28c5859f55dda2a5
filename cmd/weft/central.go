// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"

	"weft/central/client"
	"weft/central/declare"
	"weft/central/pki"
	"weft/central/wire"
	"weft/cmd/exit"
)

const defaultCerts = "/etc/weft/central"

type centralFlags struct {
	addresses string
	certs     string
	wait      waitFor
	timeout   time.Duration
}

func (f *centralFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.addresses, "central", os.Getenv("WEFT_CENTRAL"), "weft-central's addresses, HOST:PORT[,HOST:PORT...] (or WEFT_CENTRAL)")
	flags.StringVar(&f.certs, "central-certs", defaultCerts, "directory of the certificate for weft-central: ca.pem, cert.pem, key.pem")
}

// waitFor is the value of the option --wait: "none", or "hosts" to wait until all connected hosts have
// applied the change.
type waitFor string

func (w *waitFor) String() string { return string(*w) }
func (*waitFor) Type() string     { return "none|hosts" }
func (w *waitFor) Set(text string) error {
	if text != "none" && text != "hosts" {
		return errors.New("expected none or hosts")
	}
	*w = waitFor(text)
	return nil
}

func (c *command) waits(verb *cobra.Command) *cobra.Command {
	verb.Flags().Var(&c.fleet.wait, "wait", "hosts: return after all connected hosts have applied the change")
	verb.Flags().DurationVar(&c.fleet.timeout, "timeout", time.Minute, "longest time for --wait")
	return verb
}

func group(usage, short, long string, verbs ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{
		Use: usage, Short: short, Long: long, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return noSuchVerb(cmd, args[0])
			}
			return cmd.Help()
		},
	}
	g.AddCommand(verbs...)
	return g
}

func (c *command) centralVerbs() []*cobra.Command {
	return append([]*cobra.Command{
		c.netVerb(), c.hostVerb(), c.portVerb(), c.secgroupVerb(), c.applyVerb(), c.exportVerb(), c.syncVerb(),
		group("central", "show the state of weft-central, save it, and get certificates", "", c.centralStatusVerb(), c.centralSaveVerb(),
			c.inviteVerb(), c.enrolVerb(), c.revokeVerb(), c.revocationsVerb()),
	}, c.ovnVerbs()...)
}

func (c *command) centralAddresses() ([]string, error) {
	if c.fleet.addresses == "" {
		return nil, exit.Usagef("no central is given; expected --central HOST:PORT[,HOST:PORT...] or WEFT_CENTRAL")
	}
	addresses := strings.Split(c.fleet.addresses, ",")
	for _, a := range addresses {
		if err := client.CheckAddress(a); err != nil {
			return nil, exit.Usagef("--central: %v", err)
		}
	}
	return addresses, nil
}

// central returns a client of weft-central, and a context that SIGINT and SIGTERM end. The caller closes the
// client and calls stop.
func (c *command) central() (ctx context.Context, centrals *client.Client, stop func(), err error) {
	addresses, err := c.centralAddresses()
	if err != nil {
		return nil, nil, nil, err
	}
	keys, err := pki.Load(pki.FilesIn(c.fleet.certs))
	if err != nil {
		return nil, nil, nil, exit.Usagef("certificates for weft-central: %v; expected ca.pem, cert.pem and key.pem in --central-certs %s", err, c.fleet.certs)
	}
	if centrals, err = client.New(addresses, credentials.NewTLS(keys.Client())); err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	return ctx, centrals, func() { cancel(); centrals.Close() }, nil
}

func (c *command) withCentral(f func(ctx context.Context, centrals *client.Client) error) error {
	ctx, centrals, stop, err := c.central()
	if err != nil {
		return err
	}
	defer stop()
	return f(ctx, centrals)
}

func (c *command) settle(ctx context.Context, centrals *client.Client, revision int64) error {
	if c.fleet.wait != "hosts" {
		return nil
	}
	_, err := c.syncHosts(ctx, centrals, revision, true)
	return err
}

func isCentralInput(err error) bool {
	var words *declare.Error
	var refused *client.Refused
	return errors.As(err, &words) || errors.As(err, &refused)
}

const applyHelp = `Makes one switch, or weft-central's declaration, agree with a file (TOML). The keys of the
file select one of the two; no file has keys of both.

Prints the differences first: + new, ~ changed, - deleted. The whole file is applied, or
nothing of it. Objects that the file lacks stay, or are deleted with --prune. weft export
writes such a file: of the switch, or of weft-central if --central or WEFT_CENTRAL is given.
Comments are not kept.

For one switch:

  meters = ["meter=1 kbps bands=type=drop rate=1000"]
  groups = ["group_id=1,type=all,bucket=actions=vm1"]
  flows = ["priority=10,ip actions=normal"]
  tlv-map = ["{class=0x102,type=0x80,len=4}->tun_metadata0"]
  controllers = ["tcp:192.0.2.1:6653"]   # of the first bridge; also: fail-mode

  [[local-port]]
  name = "vm1"
  options = {type = "vhost-user", path = "/run/weft/vm1.sock"}

  [[table]]
  table = 3
  limit = 1000         # also: evict = true

  [[bridge]]           # a bridge of add-br; a port names it in its options
  name = "br-int"      # also: datapath-id, fail-mode, controllers, tlv-map, meters, groups, [[bridge.table]]
  flows = ["actions=normal"]

  [conntrack]          # the settings of the verbs ct-
  max-connections = 100000

A changed port keeps its guest where mod-port can change it; otherwise nothing is applied. If
a step is refused, the switch gets back the state before. Between the steps flows may see
ports, groups and meters of the new state; the flows change at once. weft-central's tunnel
and flow table are in neither file: a host's ports are declared in the file of the switch,
and get their networks and addresses from weft-central by name or id=.

For weft-central:

  [[net]]
  name = "blue"
  vni = 100            # also: mtu = 1400, flood = true

  [[group]]
  name = "web"
  rules = ["in tcp 80,443", "in tcp 22 from group admin"]   # weft secgroup add --help

  [[host]]
  name = "h1"
  endpoint = "172.16.0.1"

  [[port]]
  name = "web1"
  net = "blue"
  mac = "02:00:00:00:00:01"
  addresses = ["10.0.0.1", "fd00::1"]   # also: host, move-to, spoof-check = false,
                                        # groups = ["web"]

Objects are found by id, or without one by name.`

func (c *command) applyVerb() *cobra.Command {
	var dry, prune bool
	verb := &cobra.Command{
		Use: "apply FILE|-", Short: "make one switch, or weft-central's declaration, agree with a file", Long: applyHelp, Args: words(1, 1),
		RunE: func(_ *cobra.Command, args []string) error { return c.apply(args[0], dry, prune) },
	}
	verb.Flags().BoolVar(&dry, "dry-run", false, "print the differences and change nothing")
	verb.Flags().BoolVar(&prune, "prune", false, "delete what the file lacks")
	return c.waits(verb)
}

// applied is the JSON output of "weft apply" for a file of weft-central.
type applied struct {
	Changes  []declare.Entry `json:"changes"`
	Applied  bool            `json:"applied"`
	Revision int64           `json:"revision"`
}

func (c *command) apply(name string, dry, prune bool) error {
	text, err := c.readDeclaration(name)
	if err != nil {
		return err
	}
	switch local, err := isHostFile(text); {
	case err != nil:
		return ofHostFile(name, err)
	case local:
		return c.applyHost(name, text, dry, prune)
	}
	file, err := declare.ParseFile(text)
	if err != nil {
		return fromFile(name, err)
	}
	return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
		fleet, err := readAll(ctx, centrals)
		if err != nil {
			return err
		}
		diff, err := fleet.Diff(file, prune)
		if err != nil {
			return fromFile(name, err)
		}
		if !c.json {
			fmt.Fprint(c.out, diff.Text())
		}
		result := applied{Changes: append([]declare.Entry{}, diff.Entries...), Revision: fleet.Revision} // JSON: [] and not null
		if !dry && len(diff.Changes) > 0 {
			if result.Revision, err = applyDiff(ctx, centrals, file, prune, fleet, diff); err != nil {
				return err
			}
			result.Applied = true
		}
		if !dry {
			if err := c.settle(ctx, centrals, result.Revision); err != nil {
				return err
			}
		}
		return c.printApplied(&result, dry)
	})
}

// applyDiff applies the differences diff, which the user has seen, to the declaration "fleet". If
// somebody has changed the declaration meanwhile, it computes the differences to the file again. It
// applies them only if their text is still the same, and returns an error otherwise.
func applyDiff(ctx context.Context, centrals *client.Client, file *declare.File, prune bool, fleet *declare.Fleet, diff *declare.Diff) (int64, error) {
	first := true
	read := func() (*declare.Fleet, error) {
		if first {
			first = false
			return fleet, nil
		}
		return readAll(ctx, centrals)
	}
	return centrals.Change(ctx, read, func(stored *declare.Fleet) ([]*wire.Change, bool, error) {
		if stored == fleet {
			return diff.Changes, true, nil
		}
		again, err := stored.Diff(file, prune)
		if err == nil && again.Text() != diff.Text() {
			err = errors.New("somebody else changed the declaration, and the differences are no longer the printed ones; nothing is applied: run apply again")
		}
		if err != nil {
			return nil, false, err
		}
		return again.Changes, true, nil
	})
}

func (c *command) printApplied(result *applied, dry bool) error {
	if c.json {
		return c.printJSON(result)
	}
	var err error
	switch {
	case len(result.Changes) == 0:
		_, err = fmt.Fprintf(c.out, "no differences at revision %d\n", result.Revision)
	case dry:
		_, err = fmt.Fprintf(c.out, "%d differences, nothing applied\n", len(result.Changes))
	default:
		_, err = fmt.Fprintf(c.out, "%d changes applied, revision %d\n", len(result.Changes), result.Revision)
	}
	return err
}

func (c *command) readDeclaration(name string) ([]byte, error) {
	from := c.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, exit.Usagef("%v; expected a declaration file, or - for standard input", err)
		}
		defer f.Close()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, declare.MaxFile+1))
	if err != nil {
		return nil, exit.Usagef("%s: %v", name, err)
	}
	return text, nil
}

// fromFile adds the name of the file to an error about a declaration.
func fromFile(name string, err error) error {
	var wrong *declare.Error
	if !errors.As(err, &wrong) {
		return err
	}
	if name == "-" {
		name = "standard input"
	}
	return exit.Usagef("%s: %v", name, err)
}

func (c *command) exportVerb() *cobra.Command {
	return &cobra.Command{
		Use: "export", Short: "print the switch, or with --central weft-central's declaration, as a file for apply", Args: words(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if c.fleet.addresses == "" {
				return c.exportHost()
			}
			return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
				fleet, err := readAll(ctx, centrals)
				if err != nil {
					return err
				}
				if c.json {
					return c.printJSON(fleet.File())
				}
				text, err := fleet.File().Format()
				if err != nil {
					return err
				}
				_, err = c.out.Write(text)
				return err
			})
		},
	}
}
