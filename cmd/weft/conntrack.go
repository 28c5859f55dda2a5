// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"weft/api"
	"weft/cmd/exit"
)

// tupleHelp is the part of help texts that describes the arguments that select connections.
const tupleHelp = `The first TUPLE selects by the original direction, the second by the reply direction. A tuple is a
list of fields, separated by commas: ct_nw_src, ct_nw_dst, ct_ipv6_src, ct_ipv6_dst, ct_nw_proto,
ct_tp_src, ct_tp_dst, icmp_id, icmp_type, icmp_code. A complete original tuple without a zone means
zone 0.`

const dumpConntrackHelp = `Prints the connections of ct(), or those that the arguments select, as ovs-dpctl does.
` + tupleHelp + `

  weft dump-conntrack zone=5
  weft dump-conntrack ct_nw_src=10.0.0.1,ct_nw_proto=6,ct_tp_dst=22`

const flushConntrackHelp = `Deletes all connections, or those that the arguments select, as ovs-dpctl does.
` + tupleHelp + `

  weft flush-conntrack zone=5
  weft flush-conntrack zone=5 ct_nw_src=10.0.0.1,ct_nw_proto=17`

const timeoutHelp = `Prints the timeouts of connections in seconds, or sets them: of a zone, or without zone= of all
zones without timeouts of their own. Connections that have begun before may keep their timeouts.
Names:

  tcp_syn_sent, tcp_syn_recv, tcp_established, tcp_fin_wait, tcp_close_wait, tcp_last_ack,
  tcp_time_wait, tcp_close
  udp_first      one datagram
  udp_single     several datagrams in one direction
  udp_multiple   datagrams in both directions
  icmp_first, icmp_reply, sctp_init, sctp_established, sctp_shutdown
  other_first, other_multiple

  weft ct-timeout zone=5 tcp_established=7200 udp_multiple=60`

const zoneLimitsHelp = `Limits the number of connections in zones. The ports of a zone share its limit fairly: in a full
zone, a new connection replaces one of the port with the most connections. default= applies to zones
without a limit of their own; default=0 means no limit. limit=0 refuses new connections in the zone.

  weft ct-set-limits default=100000 zone=5,limit=1000`

// conntrackVerbs returns the commands of ovs-dpctl(8) for connections, with the same arguments and
// output, and the command ct-timeout.
func (c *command) conntrackVerbs() []*cobra.Command {
	dump := &cobra.Command{Use: "dump-conntrack [zone=N] [mark=N[/MASK]] [labels=N[/MASK]] [TUPLE [TUPLE]]", Short: "print the connections, as ovs-dpctl does", Long: dumpConntrackHelp, Args: words(0, 6)}
	more := dump.Flags().BoolP("more", "m", false, "also the number and the status of each connection")
	statistics := dump.Flags().BoolP("statistics", "s", false, "also the seconds until each connection expires")
	dump.RunE = func(_ *cobra.Command, args []string) error {
		client, err := c.client()
		if err != nil {
			return err
		}
		return client.Connections(c.out, api.DumpConntrack{Args: noDatapath(args), More: *more, Statistics: *statistics, JSON: c.json})
	}
	stats := &cobra.Command{Use: "ct-stats-show [zone=N]", Short: "print the number of connections by protocol", Args: words(0, 2)}
	states := stats.Flags().BoolP("more", "m", false, "also by state")
	stats.RunE = func(_ *cobra.Command, args []string) error { return c.ctStats(args, *states) }
	timeout := &cobra.Command{Use: "ct-timeout [zone=N] [NAME=SECONDS...]", Short: "print or set the timeouts of a zone, or of all zones without their own", Long: timeoutHelp, Args: words(0, -1)}
	reset := timeout.Flags().Bool("reset", false, "restore the defaults")
	timeout.RunE = func(_ *cobra.Command, args []string) error { return c.ctTimeout(args, *reset) }
	return []*cobra.Command{
		dump, stats, timeout,
		{Use: "dump-conntrack-exp [zone=N]", Short: "print the connections that FTP and TFTP have announced, as ovs-dpctl does", Args: words(0, 2), RunE: c.dumpExpectations},
		{Use: "flush-conntrack [zone=N] [mark=N[/MASK]] [labels=N[/MASK]] [TUPLE [TUPLE]]", Short: "delete all connections, or those of a zone, mark, labels, original and reply tuple", Long: flushConntrackHelp, Args: words(0, 6), RunE: c.flushConntrack},
		{Use: "ct-get-nconns", Short: "print the number of connections", Args: words(0, 1), RunE: c.ctShow(func(s *api.Conntrack) string { return strconv.Itoa(s.Connections) })},
		{Use: "ct-get-maxconns", Short: "print the limit of the number of connections", Args: words(0, 1), RunE: c.ctShow(func(s *api.Conntrack) string { return strconv.Itoa(s.MaxConnections) })},
		{Use: "ct-set-maxconns N", Short: "limit the number of connections; 0: the room of the table, as of weftd --connections", Args: words(1, 2), RunE: c.ctSetMaxConns},
		{Use: "ct-get-tcp-seq-chk", Short: "print whether TCP sequence numbers are checked", Args: words(0, 1), RunE: c.ctShow(func(s *api.Conntrack) string {
			return "TCP sequence checking: " + map[bool]string{true: "enabled", false: "disabled"}[s.SequenceChecks]
		})},
		{Use: "ct-enable-tcp-seq-chk", Short: "check TCP sequence numbers", Args: words(0, 1), RunE: c.ctCheck(true)},
		{Use: "ct-disable-tcp-seq-chk", Short: "do not check TCP sequence numbers", Args: words(0, 1), RunE: c.ctCheck(false)},
		{Use: "ct-set-limits [default=N] [zone=N,limit=N...]", Short: "limit the connections of zones", Long: zoneLimitsHelp, Args: words(1, -1), RunE: c.ctSetLimits},
		{Use: "ct-del-limits [default] [zone=N[,N...]]", Short: "remove the default limit, and the limits of zones; the default limit then applies to these", Args: words(1, 3), RunE: c.ctDelLimits},
		{Use: "ct-get-limits [zone=N[,N...]]", Short: "print the limits and connection counts of zones", Args: words(0, 2), RunE: c.ctGetLimits},
	}
}

// noDatapath returns args without the name of a datapath, such as system@ovs-system, which ovs-dpctl(8)
// accepts as first argument.
func noDatapath(args []string) []string {
	if len(args) > 0 && strings.Contains(args[0], "@") && !strings.Contains(args[0], "=") {
		return args[1:]
	}
	return args
}

func (c *command) dumpExpectations(_ *cobra.Command, args []string) error {
	zones, err := zoneList(args)
	if err != nil {
		return err
	}
	zone := ""
	switch {
	case len(zones) > 1:
		return exit.Usagef("dump-conntrack-exp: expected one zone")
	case len(zones) == 1:
		zone = strconv.Itoa(int(zones[0]))
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	list, err := client.Expectations(zone)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(list)
	}
	for i := range list {
		fmt.Fprintln(c.out, list[i].Line)
	}
	return nil
}

func (c *command) flushConntrack(_ *cobra.Command, args []string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	n, err := client.FlushConnections(noDatapath(args))
	if err != nil || !c.json {
		return err
	}
	return c.printJSON(n)
}

func (c *command) ctShow(word func(*api.Conntrack) string) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if rest := noDatapath(args); len(rest) > 0 {
			return exit.Usagef("%s: %s is one word too many", calledAs(cmd), rest[0])
		}
		s, err := c.conntrack()
		if err != nil {
			return err
		}
		if c.json {
			return c.printJSON(s)
		}
		fmt.Fprintln(c.out, word(&s))
		return nil
	}
}

func (c *command) conntrack() (api.Conntrack, error) {
	client, err := c.client()
	if err != nil {
		return api.Conntrack{}, err
	}
	return client.Conntrack()
}

func (c *command) changeConntrack(change api.ChangeConntrack, report string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	if err := client.ChangeConntrack(change); err != nil || report == "" {
		return err
	}
	if c.json {
		return c.printJSON(map[string]string{"done": report})
	}
	fmt.Fprintln(c.out, report)
	return nil
}

func (c *command) ctSetMaxConns(_ *cobra.Command, args []string) error {
	args = noDatapath(args)
	if len(args) != 1 {
		return exit.Usagef("ct-set-maxconns: expected N")
	}
	n, err := number32(args[0])
	if err != nil {
		return exit.Usagef("ct-set-maxconns: %s: expected a number", args[0])
	}
	return c.changeConntrack(api.ChangeConntrack{MaxConnections: &n}, "setting maxconns successful")
}

func (c *command) ctCheck(strict bool) func(*cobra.Command, []string) error {
	return func(*cobra.Command, []string) error {
		word := map[bool]string{true: "Enabled", false: "Disabled"}[strict]
		return c.changeConntrack(api.ChangeConntrack{SequenceChecks: &strict}, word+" TCP sequence checking successful")
	}
}

func number32(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 0, 32)
	return uint32(n), err
}

func zoneNumber(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 0, 16)
	if err != nil {
		return 0, exit.Usagef("zone %s: expected a number from 0 to 65535", text)
	}
	return uint16(n), nil
}

func (c *command) ctSetLimits(_ *cobra.Command, args []string) error {
	var change api.ChangeConntrack
	for _, arg := range noDatapath(args) {
		zone, limit, ok := strings.Cut(arg, ",")
		if value, found := strings.CutPrefix(arg, "default="); found {
			n, err := number32(value)
			if err != nil {
				return exit.Usagef("%s: expected default=N", arg)
			}
			change.DefaultLimit = &n
			continue
		}
		n, err := number32(strings.TrimPrefix(limit, "limit="))
		if !ok || err != nil || !strings.HasPrefix(zone, "zone=") || !strings.HasPrefix(limit, "limit=") {
			return exit.Usagef("%s: expected zone=N,limit=N", arg)
		}
		z, err := zoneNumber(zone[len("zone="):])
		if err != nil {
			return err
		}
		change.Limits = append(change.Limits, api.ZoneLimit{Zone: z, Limit: n})
	}
	return c.changeConntrack(change, "")
}

// zoneList parses an argument zone=N[,N...] to the numbers of conntrack zones. A datapath's name may precede
// it.
func zoneList(args []string) ([]uint16, error) {
	args = noDatapath(args)
	if len(args) == 0 {
		return nil, nil
	}
	list, ok := strings.CutPrefix(args[0], "zone=")
	if !ok || len(args) > 1 {
		return nil, exit.Usagef("%s: expected zone=N[,N...]", strings.Join(args, " "))
	}
	var zones []uint16
	for _, text := range strings.Split(list, ",") {
		z, err := zoneNumber(text)
		if err != nil {
			return nil, err
		}
		zones = append(zones, z)
	}
	return zones, nil
}

func (c *command) ctDelLimits(_ *cobra.Command, args []string) error {
	args = noDatapath(args)
	byDefault := len(args) > 0 && args[0] == "default"
	if byDefault {
		args = args[1:]
	}
	zones, err := zoneList(args)
	if err != nil {
		return err
	}
	return c.changeConntrack(api.ChangeConntrack{ClearDefaultLimit: byDefault, ClearLimits: zones}, "")
}

func (c *command) ctGetLimits(_ *cobra.Command, args []string) error {
	zones, err := zoneList(args)
	if err != nil {
		return err
	}
	s, err := c.conntrack()
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(s)
	}
	fmt.Fprintf(c.out, "default limit=%d\n", s.DefaultLimit)
	byNumber := map[uint16]api.Zone{}
	for _, z := range s.Zones {
		byNumber[z.Zone] = z
		if len(zones) == 0 && z.Limit != nil {
			fmt.Fprintf(c.out, "zone=%d,limit=%d,count=%d\n", z.Zone, *z.Limit, z.Connections)
		}
	}
	for _, n := range zones {
		limit := s.DefaultLimit
		if z := byNumber[n]; z.Limit != nil {
			limit = *z.Limit
		}
		fmt.Fprintf(c.out, "zone=%d,limit=%d,count=%d\n", n, limit, byNumber[n].Connections)
	}
	return nil
}

// ctTimeout prints, sets or resets the timeouts of tracked connections.
func (c *command) ctTimeout(args []string, reset bool) error {
	change := api.ChangeConntrack{ClearTimeouts: reset, Timeouts: map[string]uint32{}}
	for _, arg := range noDatapath(args) {
		name, value, ok := strings.Cut(arg, "=")
		if !ok {
			return exit.Usagef("%s: expected zone=N or NAME=SECONDS", arg)
		}
		if name == "zone" {
			z, err := zoneNumber(value)
			if err != nil {
				return err
			}
			change.TimeoutZone = &z
			continue
		}
		n, err := number32(value)
		if err != nil {
			return exit.Usagef("%s: expected NAME=SECONDS", arg)
		}
		change.Timeouts[name] = n
	}
	if len(change.Timeouts) > 0 || reset {
		return c.changeConntrack(change, "")
	}
	s, err := c.conntrack()
	if err != nil {
		return err
	}
	timeouts := s.Timeouts
	for _, z := range s.Zones {
		if change.TimeoutZone != nil && z.Zone == *change.TimeoutZone && z.Timeouts != nil {
			timeouts = z.Timeouts
		}
	}
	if c.json {
		return c.printJSON(timeouts)
	}
	for _, name := range slices.Sorted(maps.Keys(timeouts)) {
		fmt.Fprintf(c.out, "%s=%d\n", name, timeouts[name])
	}
	return nil
}

// ctStats prints the number of connections of each protocol, in the format of
// ct-stats-show.
func (c *command) ctStats(args []string, states bool) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := client.Connections(&text, api.DumpConntrack{Args: noDatapath(args), JSON: true}); err != nil {
		return err
	}
	protocols, byState, total := map[string]int{}, map[string]int{}, 0
	for dec := json.NewDecoder(&text); dec.More(); total++ {
		var e api.Connection
		if err := dec.Decode(&e); err != nil {
			return err
		}
		name, known := map[string]string{"tcp": "TCP", "udp": "UDP", "icmp": "ICMP", "icmpv6": "ICMP", "sctp": "SCTP"}[e.Protocol]
		if !known {
			name = "Other"
		}
		protocols[name]++
		if _, rest, ok := strings.Cut(e.Line, "protoinfo=(state="); ok && name == "TCP" {
			byState[rest[:strings.IndexAny(rest, ",)")]]++
		}
	}
	if c.json {
		return c.printJSON(protocols)
	}
	fmt.Fprintf(c.out, "Connections Stats:\n    Total: %d\n", total)
	for _, name := range []string{"TCP", "UDP", "SCTP", "ICMP", "Other"} {
		if protocols[name] == 0 {
			continue
		}
		fmt.Fprintf(c.out, "  %s: %d\n", name, protocols[name])
		if name == "TCP" && states {
			fmt.Fprintln(c.out, "    Conn per TCP states:")
			for _, s := range slices.Sorted(maps.Keys(byState)) {
				fmt.Fprintf(c.out, "      [%s]: %d\n", s, byState[s])
			}
		}
	}
	return nil
}
