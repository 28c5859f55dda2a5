// SPDX-License-Identifier: Apache-2.0

package unixctl

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// userProtocol is the protocol number of the routes that ovs/route/add adds to the kernel's tables. The
// number tells the kernel's users which program has added a route.
const userProtocol = 176

// standardTables lists, in the order of an answer, the kernel's routing tables that an answer
// shows without their number.
var standardTables = []struct {
	number int
	name   string
}{{unix.RT_TABLE_LOCAL, "local"}, {unix.RT_TABLE_MAIN, "main"}, {unix.RT_TABLE_DEFAULT, "default"}}

// RouteCommands returns the commands about routes and neighbours. Open vSwitch keeps copies of
// the kernel's tables. Weft has no copies, so the commands read and change the kernel's own
// tables.
func RouteCommands() []Command {
	return []Command{
		{Name: "ovs/route/show", Usage: "[table=all|id]", Most: 1, Run: showRoutes},
		{Name: "ovs/route/add", Usage: "ip/plen dev [gw] [src=ip]", Least: 2, Most: 4, Changes: true, Run: addRoute},
		{Name: "ovs/route/del", Usage: "ip/plen", Least: 1, Most: 1, Changes: true, Run: deleteRoute},
		{Name: "ovs/route/lookup", Usage: "ip_addr [src=ip]", Least: 1, Most: 2, Run: lookUpRoute},
		{Name: "ovs/route/rule/show", Usage: "[-6]", Most: 1, Run: showRules},
		{Name: "tnl/arp/show", Run: showNeighbours},
		{Name: "tnl/neigh/show", Run: showNeighbours},
		{Name: "tnl/arp/set", Usage: "BRIDGE IP MAC", Least: 3, Most: 3, Changes: true, Run: setNeighbour},
		{Name: "tnl/neigh/set", Usage: "BRIDGE IP MAC", Least: 3, Most: 3, Changes: true, Run: setNeighbour},
	}
}

// refusal is an error with the text that Open vSwitch has for it.
type refusal string

func (r refusal) Error() string { return string(r) }

// host has the names and addresses of the kernel's devices, by index.
type host struct {
	names     map[int]string
	addresses map[int][]netip.Prefix
}

func readHost() (*host, error) {
	h := &host{map[int]string{}, map[int][]netip.Prefix{}}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		h.names[l.Attrs().Index] = l.Attrs().Name
	}
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	for i := range list {
		if p, ok := prefixOf(list[i].IPNet); ok {
			h.addresses[list[i].LinkIndex] = append(h.addresses[list[i].LinkIndex], p)
		}
	}
	return h, nil
}

// prefixOf converts n. If n is an address with a mask, the result keeps the host bits.
func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones), ok
}

// source returns the source address of the host on a device for frames to an address: one of
// the same network, or else the first one of the same family.
func (h *host) source(device int, to netip.Addr) netip.Addr {
	var first netip.Addr
	for _, p := range h.addresses[device] {
		switch {
		case p.Contains(to):
			return p.Addr()
		case !first.IsValid() && p.Addr().Is4() == to.Is4():
			first = p.Addr()
		}
	}
	return first
}

// nextHop returns the address of a route's next hop, from gw or from via. via may be of another
// family than the route.
func nextHop(gw net.IP, via netlink.Destination) netip.Addr {
	if v, ok := via.(*netlink.Via); ok {
		gw = v.Addr
	}
	a, _ := netip.AddrFromSlice(gw)
	return a.Unmap()
}

// showRoutes lists the routes of the tables main, local and default. table=N selects another
// table, table=all adds the tables that rules name.
func showRoutes(words []string) (string, error) {
	tables, numbered := standardNumbers(), false
	if len(words) > 0 && words[0] != "table=all" {
		n, err := strconv.ParseUint(strings.TrimPrefix(words[0], "table="), 10, 31)
		if err != nil || !strings.HasPrefix(words[0], "table=") {
			return "", refusal("Invalid table format")
		}
		tables, numbered = []int{int(n)}, !slices.Contains(tables, int(n))
	} else if len(words) > 0 {
		tables = append(tables, ruledTables()...)
	}
	h, err := readHost()
	if err != nil {
		return "", err
	}
	var out strings.Builder
	out.WriteString("Route Table:\n")
	if numbered {
		out.Reset()
		fmt.Fprintf(&out, "Route Table #%d:\n", tables[0])
	}
	found := 0
	for _, table := range tables {
		if numbered && !slices.Contains(ruledTables(), table) {
			break
		}
		routes, err := routesOf(table)
		if err != nil {
			return "", err
		}
		for i := range routes {
			if line := h.routeLine(&routes[i]); line != "" {
				found++
				if len(words) > 0 && !numbered && !slices.Contains(standardNumbers(), table) {
					line += fmt.Sprintf(" table %d", table)
				}
				out.WriteString(line + "\n")
			}
		}
	}
	if numbered && found == 0 {
		return "", refusal("Table '" + words[0] + "' not found")
	}
	return out.String(), nil
}

func standardNumbers() (list []int) {
	for _, t := range standardTables {
		list = append(list, t.number)
	}
	return list
}

func routesOf(table int) ([]netlink.Route, error) {
	return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
}

// ruledTables returns the numbers of further tables that the host's routing rules name. It looks only at
// the rules that Open vSwitch shows: those that select frames only by their source address.
func ruledTables() (list []int) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, _ := netlink.RuleList(family) // an error leaves the standard tables
		for i := range rules {
			if plain(&rules[i]) && !slices.Contains(standardNumbers(), rules[i].Table) && !slices.Contains(list, rules[i].Table) {
				list = append(list, rules[i].Table)
			}
		}
	}
	return list
}

// routeLine returns the text of a route, or "" for a route that leads nowhere, such as
// blackhole. If the route has several next hops, the line has the first one, as in Open
// vSwitch.
func (h *host) routeLine(r *netlink.Route) string {
	if r.Type != unix.RTN_UNICAST && r.Type != unix.RTN_LOCAL {
		return ""
	}
	index, gw := r.LinkIndex, nextHop(r.Gw, r.Via)
	if len(r.MultiPath) > 0 {
		first := r.MultiPath[0]
		index, gw = first.LinkIndex, nextHop(first.Gw, first.Via)
	}
	dst, ok := prefixOf(r.Dst)
	if !ok {
		dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if r.Family == netlink.FAMILY_V6 {
			dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
	}
	word := "Cached"
	if r.Protocol == userProtocol {
		word = "User"
	}
	line := fmt.Sprintf("%s: %s dev %s", word, dst, h.names[index])
	to := dst.Addr()
	if gw.IsValid() {
		line += " GW " + gw.String()
		to = gw
	}
	src, ok := netip.AddrFromSlice(r.Src)
	if !ok {
		src = h.source(index, to)
	}
	if src = src.Unmap(); src.IsValid() {
		line += " SRC " + src.String()
	} else {
		line += " SRC ::"
	}
	if r.Table == unix.RT_TABLE_LOCAL {
		line += " local"
	}
	return line
}

// parseRoute parses ADDRESS[/LENGTH], the destination of a route.
func parseRoute(word string) (*net.IPNet, error) {
	if a, err := netip.ParseAddr(word); err == nil {
		word = fmt.Sprintf("%s/%d", word, a.BitLen())
	}
	_, dst, err := net.ParseCIDR(word)
	if err != nil {
		return nil, refusal("Invalid 'ip/plen' parameter")
	}
	return dst, nil
}

func addRoute(words []string) (string, error) {
	dst, err := parseRoute(words[0])
	if err != nil {
		return "", err
	}
	l, err := netlink.LinkByName(words[1])
	if err != nil {
		return "", fmt.Errorf("%s: %w", words[1], err)
	}
	r := &netlink.Route{Dst: dst, LinkIndex: l.Attrs().Index, Protocol: userProtocol}
	for _, w := range words[2:] {
		text, isSrc := strings.CutPrefix(w, "src=")
		ip := net.ParseIP(text)
		switch {
		case ip == nil:
			return "", refusal("Invalid pkt_mark, IP gateway or src_ip")
		case isSrc:
			r.Src = ip
		default:
			r.Gw = ip
		}
	}
	if err := netlink.RouteReplace(r); err != nil {
		return "", refusal("Error while inserting route: " + err.Error())
	}
	return "OK", nil
}

func deleteRoute(words []string) (string, error) {
	dst, err := parseRoute(words[0])
	if err != nil {
		return "", err
	}
	if err := netlink.RouteDel(&netlink.Route{Dst: dst, Protocol: userProtocol}); err != nil {
		return "", refusal("Not found")
	}
	return "OK", nil
}

// lookUpRoute asks the kernel for the route to an address, as the switch does for its tunnels.
func lookUpRoute(words []string) (string, error) {
	to := net.ParseIP(words[0])
	if to == nil {
		return "", refusal("Invalid 'ip/plen' parameter")
	}
	options := &netlink.RouteGetOptions{}
	for _, w := range words[1:] {
		text, is := strings.CutPrefix(w, "src=")
		if options.SrcAddr = net.ParseIP(text); !is || options.SrcAddr == nil {
			return "", refusal("Invalid pkt_mark or src")
		}
	}
	routes, err := netlink.RouteGetWithOptions(to, options)
	h, failed := readHost()
	if err != nil || failed != nil || len(routes) == 0 {
		return "", refusal("Not found")
	}
	src := routes[0].Src
	if options.SrcAddr != nil {
		src = options.SrcAddr
	}
	gw := "::"
	if a := nextHop(routes[0].Gw, routes[0].Via); a.IsValid() {
		gw = a.String()
	}
	return fmt.Sprintf("src %s\ngateway %s\ndev %s\n", src, gw, h.names[routes[0].LinkIndex]), nil
}

// plain reports whether a rule selects frames only by their source address. Open vSwitch shows
// no other rules, although the kernel follows them.
func plain(r *netlink.Rule) bool {
	return r.Mark == 0 && r.IifName == "" && r.OifName == "" && r.TunID == 0 && r.Dport == nil && r.Sport == nil && r.IPProto == 0 &&
		r.Dst == nil && r.Tos == 0 && r.UIDRange == nil && r.Goto < 0
}

func showRules(words []string) (string, error) {
	family := netlink.FAMILY_V4
	if len(words) > 0 && words[0] == "-6" {
		family = netlink.FAMILY_V6
	}
	rules, err := netlink.RuleList(family)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for i := range rules {
		r := &rules[i]
		if !plain(r) {
			continue
		}
		from := "all"
		if p, ok := prefixOf(r.Src); ok && p.Bits() > 0 {
			if from = p.String(); p.IsSingleIP() {
				from = p.Addr().String()
			}
		}
		not := ""
		if r.Invert {
			not = "not "
		}
		table := strconv.Itoa(r.Table)
		for _, t := range standardTables {
			if t.number == r.Table {
				table = t.name
			}
		}
		fmt.Fprintf(&out, "Cached: %d: %sfrom %s lookup %s\n", max(r.Priority, 0), not, from, table)
	}
	return out.String(), nil
}

func showNeighbours([]string) (string, error) {
	h, err := readHost()
	if err != nil {
		return "", err
	}
	list, err := netlink.NeighList(0, netlink.FAMILY_ALL)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	out.WriteString("IP                                            MAC                 Bridge\n" +
		"==========================================================================\n")
	for i := range list {
		n := &list[i]
		switch {
		case n.State&unix.NUD_NOARP != 0:
		case n.State&(unix.NUD_INCOMPLETE|unix.NUD_FAILED) != 0:
			fmt.Fprintf(&out, "%-46s%-20s%s INCOMPLETE\n", n.IP, "", h.names[n.LinkIndex])
		default:
			stale := ""
			if n.State&unix.NUD_STALE != 0 {
				stale = " STALE"
			}
			fmt.Fprintf(&out, "%-46s%s   %s%s\n", n.IP, n.HardwareAddr, h.names[n.LinkIndex], stale)
		}
	}
	return out.String(), nil
}

func setNeighbour(words []string) (string, error) {
	l, err := netlink.LinkByName(words[0])
	if err != nil {
		return "", fmt.Errorf("%s: %w", words[0], err)
	}
	ip := net.ParseIP(words[1])
	if ip == nil {
		return "", refusal("bad IP address")
	}
	mac, err := net.ParseMAC(words[2])
	if err != nil {
		return "", refusal("bad MAC address")
	}
	if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: unix.NUD_PERMANENT, IP: ip, HardwareAddr: mac}); err != nil {
		return "", err
	}
	return "OK", nil
}
