// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"weft/central/client"
	"weft/central/declare"
	"weft/central/wire"
	"weft/cmd/exit"
)

// readAll asks weft-central for the whole declaration: networks, groups, ports and hosts.
func readAll(ctx context.Context, centrals *client.Client) (*declare.Fleet, error) {
	return centrals.List(ctx, &wire.ListRequest{Nets: true, Groups: true, Ports: true, Hosts: true})
}

// planner computes the changes that a command makes to the declaration f. If guarded is true, the
// changes are only valid for f. If somebody else has changed the declaration meanwhile, the planner is
// called again with the new one.
type planner func(f *declare.Fleet) (changes []*wire.Change, guarded bool, err error)

func (c *command) change(request *wire.ListRequest, plan planner, kind string, result func(*declare.Fleet) any) error {
	return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
		return c.changeAt(ctx, centrals, request, plan, kind, result)
	})
}

func (c *command) changeAt(ctx context.Context, centrals *client.Client, request *wire.ListRequest, plan planner, kind string, result func(*declare.Fleet) any) error {
	var last *declare.Fleet
	revision, err := centrals.Change(ctx, func() (f *declare.Fleet, err error) {
		f, err = centrals.List(ctx, request)
		last = f
		return f, err
	}, plan)
	if err != nil {
		return err
	}
	if err := c.settle(ctx, centrals, revision); err != nil {
		return err
	}
	if c.json {
		return c.printJSON(map[string]any{"revision": revision, kind: result(last)})
	}
	return nil
}

func (c *command) chosen(key, value string) {
	if !c.json {
		fmt.Fprintf(c.out, "%s=%s\n", key, value)
	}
}

// present adds the option --may-exist or --if-exists, as in ovn-nbctl(8), to the command. The option
// sets *flag.
func present(verb *cobra.Command, flag *bool, name, help string) *cobra.Command {
	verb.Flags().BoolVar(flag, name, false, help)
	return verb
}

const (
	mayExist = "it is no error if the name is declared already; then nothing changes"
	ifExists = "it is no error if nothing has this name"
)

const netHelp = `A network has a name and:
  vni=N          its VXLAN network identifier; without it the lowest free one
  mtu=N          bytes of an IP packet (default: the underlay's less the encapsulation)
  flood=on|off   on: broadcasts and unknown addresses go to all hosts of the network
  subnets=PREFIX,...     its prefixes, such as 10.0.0.0/24,fd00::/64
  routers=ADDRESS,...    default routers of its guests
  routes=PREFIX@ROUTER,...   further IPv4 routes
  dns=ADDRESS,...        name servers
  domain=NAME            domain of the guests' names
  service=ADDRESS,...    free address, at which each host answers its own guests
  dhcp=on|off    on: hosts answer DHCP with the addresses of the ports; needs service=
  lease=SECONDS  of DHCP (default: a day)
  ra=dhcpv6-stateful|dhcpv6-stateless|slaac   hosts answer router solicitations: guests get
                 addresses and settings from DHCPv6, settings only, or nothing
  id=TEXT        with add: its id, which never changes (default: random)
  name=TEXT      with set: its new name`

func (c *command) netVerb() *cobra.Command {
	var may, gone, ports bool
	add := &cobra.Command{Use: "add NAME [KEY=VALUE ...]", Short: "declare a network", Long: netHelp, Args: words(1, -1),
		RunE: func(_ *cobra.Command, args []string) error { return c.addNet(args[0], args[1:], may) }}
	set := &cobra.Command{Use: "set NAME KEY=VALUE...", Short: "change a network", Long: netHelp, Args: words(2, -1),
		RunE: func(_ *cobra.Command, args []string) error { return c.setNet(args[0], args[1:]) }}
	del := &cobra.Command{Use: "del NAME", Short: "delete a network", Args: words(1, 1),
		RunE: func(_ *cobra.Command, args []string) error { return c.delNet(args[0], ports, gone) }}
	del.Flags().BoolVar(&ports, "ports", false, "delete its ports, too")
	show := &cobra.Command{Use: "show NAME", Short: "print a network and its ports", Args: words(1, 1),
		RunE: func(_ *cobra.Command, args []string) error { return c.showNet(args[0]) }}
	list := &cobra.Command{Use: "list", Short: "print all networks", Args: words(0, 0), RunE: c.listNets}
	return group("net", "declare networks in weft-central", netHelp,
		c.waits(present(add, &may, "may-exist", mayExist)), c.waits(set), c.waits(present(del, &gone, "if-exists", ifExists)), show, list)
}

func (c *command) addNet(name string, words []string, mayExist bool) error {
	if err := declare.CheckName("name", name); err != nil {
		return err
	}
	n := &wire.Net{}
	given := true
	err := c.change(&wire.ListRequest{Nets: true}, func(f *declare.Fleet) ([]*wire.Change, bool, error) {
		if old, ok := f.Nets.Lookup(name); ok && mayExist {
			n = old
			return nil, false, nil
		}
		n = &wire.Net{Id: declare.NewID(), Name: name}
		if err := f.SetNet(n, true, words); err != nil {
			return nil, false, err
		}
		if err := free(&f.Nets, n); err != nil {
			return nil, false, err
		}
		if given = n.Vni != 0; !given {
			n.Vni = f.FreeVNI()
		}
		return []*wire.Change{declare.Set(n)}, true, nil
	}, "net", func(*declare.Fleet) any { return declare.NetOf(n) })
	if err == nil && !given {
		c.chosen("vni", strconv.Itoa(int(n.Vni)))
	}
	return err
}

func free[T declare.Object](k *declare.Kind[T], o T) error {
	for _, old := range k.All {
		switch {
		case old.GetName() == o.GetName():
			return exit.Usagef("%s: the name is declared already, with the id %s; set changes it", o.GetName(), old.GetId())
		case old.GetId() == o.GetId():
			return exit.Usagef("%s: the id %s belongs to %s; choose another", o.GetName(), o.GetId(), old.GetName())
		}
	}
	return nil
}

func (c *command) setNet(name string, words []string) error {
	var n *wire.Net
	return c.change(&wire.ListRequest{Nets: true}, func(f *declare.Fleet) ([]*wire.Change, bool, error) {
		old, err := f.Nets.Find(name)
		if err != nil {
			return nil, false, err
		}
		n = proto.Clone(old).(*wire.Net)
		return []*wire.Change{declare.Set(n)}, true, f.SetNet(n, false, words)
	}, "net", func(*declare.Fleet) any { return declare.NetOf(n) })
}

func (c *command) delNet(name string, ports, ifExists bool) error {
	var n *wire.Net
	deleted := 0
	return c.change(&wire.ListRequest{Nets: true, Ports: ports}, func(f *declare.Fleet) ([]*wire.Change, bool, error) {
		var err error
		if n, err = f.Nets.Find(name); err != nil {
			if ifExists {
				return nil, false, nil
			}
			return nil, false, err
		}
		changes := []*wire.Change{declare.Delete(n)}
		for _, p := range f.Ports.All {
			if p.GetNet() == n.GetId() {
				changes = append(changes, declare.Delete(p))
			}
		}
		deleted = len(changes)
		return changes, ports, nil
	}, "deleted", func(*declare.Fleet) any { return deleted })
}

// shownNet is the JSON output of "weft net show".
type shownNet struct {
	declare.Net
	Ports []listedPort `json:"ports"`
}

func (c *command) showNet(name string) error {
	return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
		nets, err := centrals.List(ctx, &wire.ListRequest{Nets: true})
		if err != nil {
			return err
		}
		n, err := nets.Nets.Find(name)
		if err != nil {
			return err
		}
		f, err := centrals.List(ctx, &wire.ListRequest{Nets: true, Groups: true, Hosts: true, Ports: true, Binds: true, Net: n.GetId()})
		if err != nil {
			return err
		}
		shown := shownNet{declare.NetOf(n), portsOf(f)}
		if c.json {
			return c.printJSON(shown)
		}
		fmt.Fprintf(c.out, "net %s %s id=%s\n\n", shown.Name, shown.Text(), shown.ID)
		return c.printPorts(shown.Ports)
	})
}

func (c *command) listNets(*cobra.Command, []string) error {
	return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
		f, err := centrals.List(ctx, &wire.ListRequest{Nets: true})
		if err != nil {
			return err
		}
		list := []declare.Net{}
		for _, n := range f.Nets.All {
			list = append(list, declare.NetOf(n))
		}
		if c.json {
			return c.printJSON(list)
		}
		w := c.table("NET\tVNI\tMTU\tFLOOD\tID")
		for _, n := range list {
			mtu := "-"
			if n.MTU != 0 {
				mtu = strconv.Itoa(int(n.MTU))
			}
			flood := "off"
			if n.Flood {
				flood = "on"
			}
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", n.Name, n.VNI, mtu, flood, n.ID)
		}
		return w.Flush()
	})
}

const hostHelp = `A host has a name, which is the common name of its certificate, and:
  endpoint=IP   the address of its VXLAN tunnels
  id=TEXT       with add: its id, which never changes (default: random)
  name=TEXT     with set: its new name`

func (c *command) hostVerb() *cobra.Command {
	var may, gone bool
	add := &cobra.Command{Use: "add NAME endpoint=IP", Short: "declare a host", Long: hostHelp, Args: words(2, -1),
		RunE: func(_ *cobra.Command, args []string) error { return c.addHost(args[0], args[1:], may) }}
	set := &cobra.Command{Use: "set NAME KEY=VALUE...", Short: "change a host", Long: hostHelp, Args: words(2, -1),
		RunE: func(_ *cobra.Command, args []string) error { return c.setHost(args[0], args[1:]) }}
	del := &cobra.Command{Use: "del NAME", Short: "delete a host; ports that are bound to it become unbound", Args: words(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return c.delHost(cmd.ErrOrStderr(), args[0], gone) }}
	show := &cobra.Command{Use: "show NAME", Short: "print a host and its state", Args: words(1, 1),
		RunE: func(_ *cobra.Command, args []string) error { return c.showHost(args[0]) }}
	list := &cobra.Command{Use: "list", Short: "print all hosts and their state", Args: words(0, 0),
		RunE: func(*cobra.Command, []string) error { return c.listHosts() }}
	return group("host", "declare hosts in weft-central", hostHelp,
		c.waits(present(add, &may, "may-exist", mayExist)), c.waits(set), c.waits(present(del, &gone, "if-exists", ifExists)), show, list)
}

func (c *command) addHost(name string, words []string, mayExist bool) error {
	if err := declare.CheckName("name", name); err != nil {
		return err
	}
	var h *wire.Host
	return c.change(&wire.ListRequest{Hosts: true}, func(f *declare.Fleet) ([]*wire.Change, bool, error) {
		if old, ok := f.Hosts.Lookup(name); ok && mayExist {
			h = old
			return nil, false, nil
		}
		h = &wire.Host{Id: declare.NewID(), Name: name}
		if err := f.SetHost(h, true, words); err != nil {
			return nil, false, err
		}
		if len(h.Endpoint) == 0 {
			return nil, false, exit.Usagef("host %s: endpoint= is missing; expected the address of its VXLAN tunnels", name)
		}
		return []*wire.Change{declare.Set(h)}, true, free(&f.Hosts, h)
	}, "host", func(*declare.Fleet) any { return declare.HostOf(h) })
}

func (c *command) setHost(name string, words []string) error {
	var h *wire.Host
	return c.change(&wire.ListRequest{Hosts: true}, func(f *declare.Fleet) ([]*wire.Change, bool, error) {
		old, err := f.Hosts.Find(name)
		if err != nil {
			return nil, false, err
		}
		h = proto.Clone(old).(*wire.Host)
		return []*wire.Change{declare.Set(h)}, true, f.SetHost(h, false, words)
	}, "host", func(*declare.Fleet) any { return declare.HostOf(h) })
}

// delHost deletes a host from the declaration. If ports are bound to the host, it writes a line about
// them to w.
func (c *command) delHost(w io.Writer, name string, ifExists bool) error {
	deleted, bound := 0, 0
	err := c.change(&wire.ListRequest{Hosts: true, Binds: true}, func(f *declare.Fleet) ([]*wire.Change, bool, error) {
		h, err := f.Hosts.Find(name)
		if err != nil {
			if ifExists {
				err = nil
			}
			return nil, false, err
		}
		deleted, bound = 1, 0
		for _, b := range f.Binds {
			if b.GetBind().GetHost() == h.GetId() {
				bound++
			}
		}
		return []*wire.Change{declare.Delete(h)}, false, nil
	}, "deleted", func(*declare.Fleet) any { return deleted })
	if err == nil && bound > 0 {
		fmt.Fprintf(w, "bound to host %s until now: %d ports; weft port list shows where they are\n", name, bound)
	}
	return err
}

// listedHost is a host in the JSON output of "weft host list" and "weft host show".
type listedHost struct {
	declare.Host
	Connected bool   `json:"connected"`
	Hub       string `json:"hub,omitempty"` // the central to which the host is connected
	Applied   int64  `json:"applied"`
	Version   string `json:"version,omitempty"`
	Trouble   string `json:"trouble,omitempty"`
}

func hostsOf(f *declare.Fleet) []listedHost {
	list := []listedHost{}
	for _, h := range f.Hosts.All {
		s := f.Status[h.GetId()]
		list = append(list, listedHost{Host: declare.HostOf(h), Connected: s.GetConnected(), Hub: s.GetHub(),
			Applied: s.GetStatus().GetApplied(), Version: s.GetStatus().GetVersion(), Trouble: s.GetStatus().GetTrouble()})
	}
	return list
}

func (c *command) hosts() (list []listedHost, f *declare.Fleet, err error) {
	err = c.withCentral(func(ctx context.Context, centrals *client.Client) error {
		f, err = centrals.List(ctx, &wire.ListRequest{Hosts: true, Status: true})
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return hostsOf(f), f, nil
}

func (c *command) showHost(name string) error {
	list, f, err := c.hosts()
	if err != nil {
		return err
	}
	h, err := f.Hosts.Find(name)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(l listedHost) bool { return l.ID != h.GetId() })
	if c.json {
		return c.printJSON(list[0])
	}
	return c.printHosts(list)
}

func (c *command) listHosts() error {
	list, _, err := c.hosts()
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(list)
	}
	return c.printHosts(list)
}

func (c *command) printHosts(list []listedHost) error {
	w := c.table("HOST\tENDPOINT\tSTATE\tCENTRAL\tAPPLIED\tVERSION\tID\tTROUBLE")
	for _, h := range list {
		state := "not connected"
		if h.Connected {
			state = "connected"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", h.Name, h.Endpoint, state, dash(h.Hub), h.Applied, dash(h.Version), h.ID, dash(h.Trouble))
	}
	return w.Flush()
}

func isGone(err error) bool {
	var refused *client.Refused
	return errors.As(err, &refused) && refused.NotFound
}
