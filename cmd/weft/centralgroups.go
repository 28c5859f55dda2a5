// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"weft/central/client"
	"weft/central/declare"
	"weft/central/wire"
)

const securityHelp = `A group is a set of ports with rules about their IP frames. Ports join it with groups=, as in
weft port set web1 groups=web,admin. A port in a group gets no IP frame unless a rule allows it,
or the frame belongs to a connection that rules allow. It may send any, until one of its groups
has a rule with out. A group has a name and:
  rules=RULE;...   its rules, in place of the ones before
  allow=RULE;...   adds rules
  remove=RULE;...  takes rules away, which ends the connections that only they allowed
  id=TEXT          with add: its id, which never changes (default: random)
  name=TEXT        with set: its new name

A rule is: in|out PROTOCOL [PORTS|TYPE] [from|to PREFIX|group NAME]
  in tcp 80,8000-8099 from 10.0.0.0/8    out udp 53 to 10.0.0.2
  in icmp 8 from group admin             in any from group web
PROTOCOL is any, tcp, udp, sctp, icmp, icmp6 or a number. TYPE is the ICMP type of the first packet;
8 allows a ping with its answers. A group is that of the port at the other end.`

func (c *command) secgroupVerb() *cobra.Command {
	var may, gone bool
	add := &cobra.Command{Use: "add NAME [KEY=VALUE ...]", Short: "declare a group", Long: securityHelp, Args: words(1, -1),
		RunE: func(_ *cobra.Command, args []string) error { return c.addGroup(args[0], args[1:], may) }}
	set := &cobra.Command{Use: "set NAME KEY=VALUE...", Short: "change a group", Long: securityHelp, Args: words(2, -1),
		RunE: func(_ *cobra.Command, args []string) error { return c.setGroup(args[0], args[1:]) }}
	del := &cobra.Command{Use: "del NAME", Short: "delete a group that no port and no rule uses", Args: words(1, 1),
		RunE: func(_ *cobra.Command, args []string) error { return c.delGroup(args[0], gone) }}
	show := &cobra.Command{Use: "show NAME", Short: "print a group, its rules and its ports", Args: words(1, 1),
		RunE: func(_ *cobra.Command, args []string) error { return c.showGroup(args[0]) }}
	list := &cobra.Command{Use: "list", Short: "print all groups", Args: words(0, 0),
		RunE: func(*cobra.Command, []string) error { return c.listGroups() }}
	return group("secgroup", "declare groups of ports and their rules in weft-central", securityHelp,
		c.waits(present(add, &may, "may-exist", mayExist)), c.waits(set), c.waits(present(del, &gone, "if-exists", ifExists)), show, list)
}

func (c *command) addGroup(name string, words []string, mayExist bool) error {
	if err := declare.CheckName("name", name); err != nil {
		return err
	}
	var g *wire.Group
	return c.change(&wire.ListRequest{Groups: true}, func(f *declare.Fleet) ([]*wire.Change, bool, error) {
		if old, ok := f.Groups.Lookup(name); ok && mayExist {
			g = old
			return nil, false, nil
		}
		g = &wire.Group{Id: declare.NewID(), Name: name}
		if err := f.SetGroup(g, true, words); err != nil {
			return nil, false, err
		}
		return []*wire.Change{declare.Set(g)}, true, free(&f.Groups, g)
	}, "group", func(f *declare.Fleet) any { return f.GroupOf(g) })
}

func (c *command) setGroup(name string, words []string) error {
	var g *wire.Group
	return c.change(&wire.ListRequest{Groups: true}, func(f *declare.Fleet) ([]*wire.Change, bool, error) {
		old, err := f.Groups.Find(name)
		if err != nil {
			return nil, false, err
		}
		g = proto.Clone(old).(*wire.Group)
		return []*wire.Change{declare.Set(g)}, true, f.SetGroup(g, false, words)
	}, "group", func(f *declare.Fleet) any { return f.GroupOf(g) })
}

func (c *command) delGroup(name string, ifExists bool) error {
	deleted := 0
	return c.change(&wire.ListRequest{Groups: true}, func(f *declare.Fleet) ([]*wire.Change, bool, error) {
		g, err := f.Groups.Find(name)
		if err != nil {
			if ifExists {
				err = nil
			}
			return nil, false, err
		}
		deleted = 1
		return []*wire.Change{declare.Delete(g)}, false, nil
	}, "deleted", func(*declare.Fleet) any { return deleted })
}

// listedGroup is a security group in the JSON output of "weft secgroup list" and "weft secgroup show".
type listedGroup struct {
	declare.Group
	Ports []string `json:"ports"` // names of the ports in the group
}

func groupsOf(f *declare.Fleet) []listedGroup {
	list := []listedGroup{}
	for _, g := range f.Groups.All {
		l := listedGroup{f.GroupOf(g), []string{}}
		for _, p := range f.Ports.All {
			if slices.Contains(p.GetGroups(), g.GetId()) {
				l.Ports = append(l.Ports, p.GetName())
			}
		}
		list = append(list, l)
	}
	return list
}

func (c *command) showGroup(name string) error {
	return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
		f, err := centrals.List(ctx, &wire.ListRequest{Groups: true, Ports: true})
		if err != nil {
			return err
		}
		g, err := f.Groups.Find(name)
		if err != nil {
			return err
		}
		list := groupsOf(f)
		shown := list[slices.IndexFunc(list, func(l listedGroup) bool { return l.ID == g.GetId() })]
		if c.json {
			return c.printJSON(shown)
		}
		fmt.Fprintf(c.out, "group %s id=%s\n", shown.Name, shown.ID)
		for _, r := range shown.Rules {
			fmt.Fprintf(c.out, "  %s\n", r)
		}
		for _, p := range shown.Ports {
			fmt.Fprintf(c.out, "port %s\n", p)
		}
		return nil
	})
}

func (c *command) listGroups() error {
	return c.withCentral(func(ctx context.Context, centrals *client.Client) error {
		f, err := centrals.List(ctx, &wire.ListRequest{Groups: true, Ports: true})
		if err != nil {
			return err
		}
		list := groupsOf(f)
		if c.json {
			return c.printJSON(list)
		}
		w := c.table("GROUP\tRULES\tPORTS\tID")
		for _, g := range list {
			fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", g.Name, len(g.Rules), len(g.Ports), g.ID)
		}
		return w.Flush()
	})
}
