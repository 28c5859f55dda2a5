// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/central/client"
	"weft/central/declare"
	"weft/central/wire"
	"weft/cmd/exit"
	"weft/internal/atomicfile"
)

const syncHelp = `Waits until the declaration is where --wait says:
  central  all centrals have it
  hosts    all connected hosts have applied it (default)

Prints the revision, how many hosts have applied it, and which declared hosts are not
connected. Hosts that are not connected are not waited for.`

// synced is the JSON output of "weft sync".
type synced struct {
	Revision     int64    `json:"revision"`
	Hosts        uint32   `json:"hosts"` // number of hosts that have applied the revision
	NotConnected []string `json:"not_connected"`
}

func (c *command) syncVerb() *cobra.Command {
	var wait string
	var revision int64
	verb := &cobra.Command{Use: "sync", Short: "wait until hosts have applied the declaration", Long: syncHelp, Args: words(0, 0)}
	verb.Flags().StringVar(&wait, "wait", "hosts", "central or hosts")
	verb.Flags().Int64Var(&revision, "revision", 0, "the revision to wait for (default: the newest)")
	verb.Flags().DurationVar(&c.fleet.timeout, "timeout", time.Minute, "longest time to wait")
	verb.RunE = func(*cobra.Command, []string) error {
		if wait != "hosts" && wait != "central" {
			return exit.Usagef("--wait %s: expected central or hosts", wait)
		}
		return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
			reply, err := c.syncHosts(ctx, centrals, revision, wait == "hosts")
			if err != nil {
				return err
			}
			return c.printSynced(reply, wait == "hosts")
		})
	}
	return verb
}

func (c *command) printSynced(reply *wire.SyncReply, hosts bool) error {
	if c.json {
		return c.printJSON(synced{reply.GetRevision(), reply.GetHosts(), orEmpty(reply.GetMissing())})
	}
	line := fmt.Sprintf("revision %d", reply.GetRevision())
	if hosts {
		line += fmt.Sprintf(": %d hosts have applied it", reply.GetHosts())
	}
	if missing := reply.GetMissing(); len(missing) > 0 {
		line += "; not connected: " + strings.Join(missing, ", ")
	}
	_, err := fmt.Fprintln(c.out, line)
	return err
}

// orEmpty returns an empty list for nil. In JSON, nil would be null.
func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

func (c *command) syncHosts(ctx context.Context, centrals *client.Client, revision int64, hosts bool) (*wire.SyncReply, error) {
	if c.fleet.timeout <= 0 {
		return nil, exit.Usagef("--timeout %v: expected a time above 0, as in 30s", c.fleet.timeout)
	}
	limited, stop := context.WithTimeout(ctx, c.fleet.timeout)
	defer stop()
	reply, err := centrals.Sync(limited, revision, hosts)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = c.whyLate(ctx, centrals, revision, err)
	}
	return reply, err
}

// newestTimeout limits the request for the newest revision in whyLate.
const newestTimeout = 5 * time.Second

// whyLate returns an error that says why a sync has taken too long. err is the error of the sync.
// whyLate asks the centrals for their newest revision. If none answers, the result includes err. If
// their revision is older, the requested one does not exist. Otherwise the sync was waiting for a host.
func (c *command) whyLate(ctx context.Context, centrals *client.Client, revision int64, err error) error {
	limited, stop := context.WithTimeout(ctx, newestTimeout)
	defer stop()
	newest, newestErr := centrals.Sync(limited, 0, false)
	switch {
	case newestErr != nil:
		return fmt.Errorf("not all hosts have applied the revision after %v; %w", c.fleet.timeout, err)
	case revision > newest.GetRevision():
		return exit.Usagef("--revision %d: the newest is %d", revision, newest.GetRevision())
	}
	return fmt.Errorf("not all connected hosts have applied the revision after %v; weft host list shows them", c.fleet.timeout)
}

// whyPort is the JSON output of "weft port why", which explains why a port cannot be reached.
type whyPort struct {
	Port       declare.Port `json:"port"`
	Bound      string       `json:"bound,omitempty"` // name of the host that has the port
	Alive      bool         `json:"alive"`           // the host is connected to a central
	Generation int64        `json:"generation,omitempty"`
	Programmed []programmed `json:"programmed"`
	Missing    []string     `json:"missing"` // reasons why the port cannot be reached, one line each
}

// programmed says which revision of the declaration a host has applied. It is a part of whyPort.
type programmed struct {
	Host    string `json:"host"`
	Applied int64  `json:"applied"`
	Current bool   `json:"current"`
}

func whyOf(reply *wire.WhyReply, names *declare.Fleet) *whyPort {
	w := &whyPort{
		Port: names.PortOf(reply.GetPort()), Bound: reply.GetBoundOn(), Alive: reply.GetAlive(),
		Generation: reply.GetBind().GetGeneration(), Programmed: []programmed{}, Missing: orEmpty(reply.GetMissing()),
	}
	for _, h := range reply.GetProgrammed() {
		w.Programmed = append(w.Programmed, programmed{h.GetHost(), h.GetApplied(), h.GetCurrent()})
	}
	return w
}

func (c *command) portWhyVerb() *cobra.Command {
	return &cobra.Command{
		Use: "why NAME", Short: "print where a port is, which hosts know it, and what is missing", Args: words(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
				reply, err := centrals.Why(ctx, args[0])
				if err != nil {
					return err
				}
				names, err := centrals.List(ctx, &wire.ListRequest{Nets: true, Groups: true, Hosts: true})
				if err != nil {
					return err
				}
				return c.printWhy(whyOf(reply, names))
			})
		},
	}
}

func (c *command) printWhy(w *whyPort) error {
	if c.json {
		return c.printJSON(w)
	}
	place := "nowhere"
	if w.Bound != "" {
		place = fmt.Sprintf("on %s, generation %d", w.Bound, w.Generation)
		if !w.Alive {
			place += ", not connected"
		}
	}
	fmt.Fprintf(c.out, "declared: %s %s\nbound: %s\n", w.Port.Name, w.Port.Text(), place)
	current := 0
	for _, h := range w.Programmed {
		if h.Current {
			current++
		}
	}
	fmt.Fprintf(c.out, "programmed: on %d of %d hosts that need it\n", current, len(w.Programmed))
	for _, h := range w.Programmed {
		if !h.Current {
			fmt.Fprintf(c.out, "  %s has applied revision %d\n", h.Host, h.Applied)
		}
	}
	for _, line := range w.Missing {
		fmt.Fprintf(c.out, "missing: %s\n", line)
	}
	if len(w.Missing) == 0 {
		_, err := fmt.Fprintln(c.out, "missing: nothing")
		return err
	}
	return nil
}

// centralState is the JSON output of "weft central status".
type centralState struct {
	Centrals   []centralMember `json:"centrals"`
	Revision   int64           `json:"revision"`
	Nets       uint32          `json:"nets"`
	Ports      uint32          `json:"ports"`
	Bound      uint32          `json:"bound"`
	Hosts      uint32          `json:"hosts"`
	Connected  uint32          `json:"connected"`
	StoreBytes uint64          `json:"store_bytes"`
	StoreLimit uint64          `json:"store_limit"`
}

type centralMember struct {
	Name     string `json:"name"`
	Address  string `json:"address"`
	Leader   bool   `json:"leader"`
	Healthy  bool   `json:"healthy"`
	Sessions uint32 `json:"sessions"`
	Trouble  string `json:"trouble,omitempty"`
}

func (c *command) centralStatusVerb() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "print the state of the centrals and how much is declared", Args: words(0, 0),
		RunE: func(*cobra.Command, []string) error {
			return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
				r, err := centrals.Status(ctx)
				if err != nil {
					return err
				}
				s := centralState{Centrals: []centralMember{}, Revision: r.GetRevision(), Nets: r.GetNets(), Ports: r.GetPorts(), Bound: r.GetBound(),
					Hosts: r.GetHosts(), Connected: r.GetConnected(), StoreBytes: r.GetStoreBytes(), StoreLimit: r.GetStoreLimit()}
				for _, m := range r.GetCentrals() {
					s.Centrals = append(s.Centrals, centralMember{m.GetName(), m.GetAddress(), m.GetLeader(), m.GetHealthy(), m.GetSessions(), client.PlainText(m.GetTrouble())})
				}
				return c.printCentralState(&s)
			})
		},
	}
}

func (c *command) printCentralState(s *centralState) error {
	if c.json {
		return c.printJSON(s)
	}
	fmt.Fprintf(c.out, "revision %d, networks %d, ports %d (bound %d), hosts %d (connected %d), store %.1f of %.0f MiB\n\n",
		s.Revision, s.Nets, s.Ports, s.Bound, s.Hosts, s.Connected, float64(s.StoreBytes)/(1<<20), float64(s.StoreLimit)/(1<<20))
	w := c.table("CENTRAL\tADDRESS\tROLE\tHEALTH\tHOSTS\tTROUBLE")
	for _, m := range s.Centrals {
		role, health := "follower", "ok"
		if m.Leader {
			role = "leader"
		}
		if !m.Healthy {
			health = "down"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", m.Name, dash(m.Address), role, health, m.Sessions, dash(m.Trouble))
	}
	return w.Flush()
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

const saveHelp = `Writes a snapshot of weft-central's store to a file, which only its owner may read. The file
appears when it is complete. weft-central restores from it.`

func (c *command) centralSaveVerb() *cobra.Command {
	return &cobra.Command{
		Use: "save FILE", Short: "save weft-central's store to a file", Long: saveHelp, Args: words(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			return c.withCentral(func(ctx context.Context, centrals *client.Client) error { return c.save(ctx, centrals, args[0]) })
		},
	}
}

func (c *command) save(ctx context.Context, centrals *client.Client, name string) error {
	var size int64
	err := atomicfile.Write(name, 0o600, func(w io.Writer) (err error) {
		size, err = centrals.Save(ctx, w)
		return err
	})
	var path *fs.PathError
	if errors.As(err, &path) && path.Op == "open" {
		return exit.Usagef("%s cannot be written: %v", name, path.Err)
	}
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(map[string]any{"file": name, "bytes": size})
	}
	_, err = fmt.Fprintf(c.out, "%d bytes saved\n", size)
	return err
}
