// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"weft/central/client"
	"weft/central/declare"
	"weft/central/wire"
	"weft/cmd/exit"
)

const portHelp = `A declared port has a name. It belongs to a host's port that has the same name, or whose option
id= of add-port is this name. Its settings:
  net=NAME           its network
  mac=MAC            its MAC address; without it a random one is chosen and printed
  addresses=IP,...   its IP addresses
  host=NAME          the only host that may have it (default: any)
  move-to=NAME       a second host that may have it, while it moves; its first frame there
                     moves it
  spoof-check=on|off off: it may send from any address (default: on)
  groups=NAME,...    the groups whose rules its frames follow (weft secgroup)
  id=TEXT            with add: its id, which never changes (default: random)
  name=TEXT          with set: its new name

An empty value removes a setting: weft port set web1 move-to=`

func (c *command) portVerb() *cobra.Command {
	var may, gone bool
	add := &cobra.Command{Use: "add NAME net=NET [KEY=VALUE ...]", Short: "declare a port", Long: portHelp, Args: words(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := noSwitchPort(cmd, args[1:]); err != nil {
				return err
			}
			return c.addDeclared(args[0], args[1:], may)
		}}
	set := &cobra.Command{Use: "set NAME KEY=VALUE...", Short: "change a declared port", Long: portHelp, Args: words(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := noSwitchPort(cmd, args[1:]); err != nil {
				return err
			}
			return c.setDeclared(args[0], args[1:])
		}}
	del := &cobra.Command{Use: "del NAME", Short: "delete a declared port", Args: words(1, 1),
		RunE: func(_ *cobra.Command, args []string) error { return c.delDeclared(args[0], gone) }}
	show := &cobra.Command{Use: "show NAME", Short: "print a declared port and its host", Args: words(1, 1),
		RunE: func(_ *cobra.Command, args []string) error { return c.showDeclared(args[0]) }}
	list := &cobra.Command{Use: "list [NET]", Short: "print all declared ports, or those of a network", Args: words(0, 1),
		RunE: func(_ *cobra.Command, args []string) error { return c.listDeclared(optional(args)) }}
	return group("port", "declare ports in weft-central", portHelp,
		c.waits(present(add, &may, "may-exist", mayExist)), c.waits(set), c.waits(present(del, &gone, "if-exists", ifExists)), show, list, c.portWhyVerb())
}

// noSwitchPort returns an error if the options have type=. Only the ports of one switch have a type,
// and "weft vport" adds them. The ports that weft-central declares have none.
func noSwitchPort(verb *cobra.Command, options []string) error {
	for _, word := range options {
		if strings.HasPrefix(word, "type=") {
			return exit.Usagef("%s: a declared port has no type; weft vport %s is for ports of this switch", word, verb.Name())
		}
	}
	return nil
}

// addDeclared adds a port to weft-central's declaration. It does not check whether the name is in use:
// the central does.
func (c *command) addDeclared(name string, words []string, mayExist bool) error {
	if err := declare.CheckName("name", name); err != nil {
		return err
	}
	return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
		if mayExist {
			old, err := findPort(ctx, centrals, name)
			if err == nil && old.GetName() == name && c.json {
				return c.showPort(ctx, centrals, old)
			}
			if err != nil || old.GetName() == name {
				return err
			}
		}
		p := &wire.Port{}
		random := false
		err := c.changeAt(ctx, centrals, &wire.ListRequest{Nets: true, Groups: true, Hosts: true}, func(f *declare.Fleet) ([]*wire.Change, bool, error) {
			p = &wire.Port{Name: name}
			if err := f.SetPort(p, true, words); err != nil {
				return nil, false, err
			}
			if p.Net == "" {
				return nil, false, exit.Usagef("port %s: net= is missing; expected the name of its network", name)
			}
			if random = len(p.Mac) == 0; random {
				m := declare.NewMAC()
				p.Mac = m[:]
			}
			given := p.Id != ""
			if !given {
				p.Id = declare.NewID()
			} else if old, err := findPort(ctx, centrals, p.Id); err != nil {
				return nil, false, err
			} else if old.GetId() == p.Id {
				return nil, false, exit.Usagef("port %s: the id %s belongs to %s; choose another", name, p.Id, old.GetName())
			}
			return []*wire.Change{declare.Set(p)}, given, nil
		}, "port", func(f *declare.Fleet) any { return f.PortOf(p) })
		if err == nil && random {
			c.chosen("mac", declare.MAC(p.Mac).String())
		}
		return err
	})
}

func (c *command) showPort(ctx context.Context, centrals *client.Client, p *wire.Port) error {
	f, err := centrals.List(ctx, &wire.ListRequest{Nets: true, Groups: true, Hosts: true})
	if err != nil {
		return err
	}
	return c.printJSON(map[string]any{"revision": f.Revision, "port": f.PortOf(p)})
}

// findPort returns the declared port whose name or id is word, or nil.
func findPort(ctx context.Context, centrals *client.Client, word string) (*wire.Port, error) {
	why, err := centrals.Why(ctx, word)
	if isGone(err) {
		return nil, nil
	}
	return why.GetPort(), err
}

func (c *command) setDeclared(name string, words []string) error {
	return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
		why, err := centrals.Why(ctx, name)
		if err != nil {
			return err
		}
		id := why.GetPort().GetId()
		var p *wire.Port
		request := &wire.ListRequest{Nets: true, Groups: true, Hosts: true, Ports: true, Net: why.GetPort().GetNet()}
		return c.changeAt(ctx, centrals, request, func(f *declare.Fleet) ([]*wire.Change, bool, error) {
			old, ok := f.Ports.Lookup(id)
			if !ok {
				return nil, false, fmt.Errorf("port %s: somebody else deleted or moved it meanwhile; try again", name)
			}
			p = proto.Clone(old).(*wire.Port)
			return []*wire.Change{declare.Set(p)}, true, f.SetPort(p, false, words)
		}, "port", func(f *declare.Fleet) any { return f.PortOf(p) })
	})
}

func (c *command) delDeclared(name string, ifExists bool) error {
	return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
		why, err := centrals.Why(ctx, name)
		deleted, revision := 0, int64(0)
		if err == nil {
			deleted = 1
			revision, err = centrals.Apply(ctx, []*wire.Change{declare.Delete(why.GetPort())}, 0)
		}
		switch {
		case isGone(err) && ifExists:
			deleted = 0
		case err != nil:
			return err
		default:
			if err := c.settle(ctx, centrals, revision); err != nil {
				return err
			}
		}
		if c.json {
			return c.printJSON(map[string]any{"revision": revision, "deleted": deleted})
		}
		return nil
	})
}

// listedPort is a port in the JSON output of "weft port list" and "weft port show".
type listedPort struct {
	declare.Port
	Bound      string `json:"bound,omitempty"` // name of the host that has the port
	Generation int64  `json:"generation,omitempty"`
}

func portsOf(f *declare.Fleet) []listedPort {
	list := []listedPort{}
	for _, p := range f.Ports.All {
		b := f.Binds[p.GetId()]
		bound := b.GetBind().GetHost()
		if h, ok := f.Hosts.Lookup(bound); ok {
			bound = h.GetName()
		}
		list = append(list, listedPort{f.PortOf(p), bound, b.GetGeneration()})
	}
	return list
}

func (c *command) showDeclared(name string) error {
	return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
		why, err := centrals.Why(ctx, name)
		if err != nil {
			return err
		}
		f, err := centrals.List(ctx, &wire.ListRequest{Nets: true, Groups: true, Hosts: true})
		if err != nil {
			return err
		}
		p := listedPort{f.PortOf(why.GetPort()), why.GetBoundOn(), why.GetBind().GetGeneration()}
		if c.json {
			return c.printJSON(p)
		}
		return c.printPorts([]listedPort{p})
	})
}

func (c *command) listDeclared(net string) error {
	return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
		request := &wire.ListRequest{Nets: true, Groups: true, Hosts: true, Ports: true, Binds: true}
		if net != "" {
			nets, err := centrals.List(ctx, &wire.ListRequest{Nets: true})
			if err != nil {
				return err
			}
			n, err := nets.Nets.Find(net)
			if err != nil {
				return err
			}
			request.Net = n.GetId()
		}
		f, err := centrals.List(ctx, request)
		if err != nil {
			return err
		}
		if c.json {
			return c.printJSON(portsOf(f))
		}
		return c.printPorts(portsOf(f))
	})
}

func (c *command) printPorts(list []listedPort) error {
	w := c.table("PORT\tNET\tMAC\tADDRESSES\tHOST\tBOUND\tSPOOF-CHECK\tGROUPS\tID")
	for i := range list {
		p := &list[i]
		host := dash(p.Host)
		if p.MoveTo != "" {
			host += " or " + p.MoveTo
		}
		check := "on"
		if !p.Checked() {
			check = "off"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Name, p.Net, p.MAC, dash(p.AddressText()), host, dash(p.Bound), check,
			dash(strings.Join(p.Groups, ",")), p.ID)
	}
	return w.Flush()
}

func (c *command) ovnVerbs() []*cobra.Command {
	var may, gone bool
	verbs := []*cobra.Command{
		c.waits(present(&cobra.Command{Use: "ls-add NET", Short: "net add", Args: words(1, 1),
			RunE: func(_ *cobra.Command, args []string) error { return c.addNet(args[0], nil, may) }}, &may, "may-exist", mayExist)),
		c.waits(present(&cobra.Command{Use: "ls-del NET", Short: "net del --ports", Args: words(1, 1),
			RunE: func(_ *cobra.Command, args []string) error { return c.delNet(args[0], true, gone) }}, &gone, "if-exists", ifExists)),
		{Use: "ls-list", Short: "net list", Args: words(0, 0), RunE: c.listNets},
		c.waits(present(&cobra.Command{Use: "lsp-add NET PORT", Short: "port add", Args: words(2, 2),
			RunE: func(_ *cobra.Command, args []string) error {
				return c.addDeclared(args[1], []string{"net=" + args[0]}, may)
			}}, &may, "may-exist", mayExist)),
		c.waits(&cobra.Command{Use: `lsp-set-addresses PORT "MAC [IP...]"`, Short: "port set mac= addresses=", Args: words(2, -1),
			RunE: func(_ *cobra.Command, args []string) error {
				words, err := declare.ParseOVNAddresses(args[1:])
				if err != nil {
					return err
				}
				return c.setDeclared(args[0], words)
			}}),
		c.waits(present(&cobra.Command{Use: "lsp-del PORT", Short: "port del", Args: words(1, 1),
			RunE: func(_ *cobra.Command, args []string) error { return c.delDeclared(args[0], gone) }}, &gone, "if-exists", ifExists)),
		{Use: "lsp-list NET", Short: "port list NET", Args: words(1, 1),
			RunE: func(_ *cobra.Command, args []string) error { return c.listDeclared(args[0]) }},
	}
	for _, v := range verbs {
		v.Short += ", as in ovn-nbctl"
	}
	return verbs
}
