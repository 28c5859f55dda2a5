// SPDX-License-Identifier: Apache-2.0

package unixctl

import (
	"strings"
	"testing"

	"weft/internal/testnet"
)

// The commands print the kernel's routes, rules and neighbours as Open vSwitch would, and what
// they add is in the kernel's tables.
func TestRouteCommands(t *testing.T) {
	testnet.NeedsRoot(t, "devices in a namespace")
	ns := testnet.New(t)
	for _, line := range []string{
		"ip link add p1 type veth peer name p2", "ip link set p1 up", "ip link set p2 up",
		"ip addr add 10.0.0.17/24 dev p1", "ip route add 10.9.0.0/16 via 10.0.0.1", "ip route add 10.8.0.0/16 dev p1 table 42",
		"ip route add 10.5.0.0/16 nexthop via 10.0.0.1 dev p1 nexthop via 10.0.0.2 dev p1",
		"ip route add 10.7.0.0/16 dev p1 table 43", "ip rule add from 10.0.0.0/24 lookup 42", "ip rule add fwmark 7 lookup 43",
	} {
		ns.Exec(strings.Fields(line)...)
	}
	commands := map[string]Command{}
	for _, c := range RouteCommands() {
		commands[c.Name] = c
	}
	for _, step := range []struct{ words, want string }{
		{"ovs/route/show", "Cached: 10.0.0.0/24 dev p1 SRC 10.0.0.17\n"},
		{"ovs/route/show", "Cached: 10.0.0.17/32 dev p1 SRC 10.0.0.17 local\n"},
		{"ovs/route/show", "Cached: 10.9.0.0/16 dev p1 GW 10.0.0.1 SRC 10.0.0.17\n"},
		{"ovs/route/show", "Cached: 10.5.0.0/16 dev p1 GW 10.0.0.1 SRC 10.0.0.17\n"},
		{"ovs/route/show table=42", "Route Table #42:\nCached: 10.8.0.0/16 dev p1 SRC 10.0.0.17\n"},
		{"ovs/route/show table=43", "error: Table 'table=43' not found"}, // its rule has a mark
		{"ovs/route/show table=x", "error: Invalid table format"},
		{"ovs/route/show table=all", "Cached: 10.8.0.0/16 dev p1 SRC 10.0.0.17 table 42\n"},
		{"ovs/route/rule/show", "Cached: 0: from all lookup local\n"},
		{"ovs/route/rule/show", "from 10.0.0.0/24 lookup 42\n"},
		{"ovs/route/rule/show -6", "lookup main\n"},
		{"ovs/route/lookup 10.9.1.1", "src 10.0.0.17\ngateway 10.0.0.1\ndev p1\n"},
		{"ovs/route/lookup 10.0.0.9 src=10.0.0.17", "src 10.0.0.17\ngateway ::\ndev p1\n"},
		{"ovs/route/lookup nowhere", "error: Invalid 'ip/plen' parameter"},
		{"ovs/route/add 10.6.0.0/16 p1 10.0.0.3 src=10.0.0.17", "OK"},
		{"ovs/route/show", "User: 10.6.0.0/16 dev p1 GW 10.0.0.3 SRC 10.0.0.17\n"},
		{"ovs/route/del 10.6.0.0/16", "OK"},
		{"ovs/route/del 10.6.0.0/16", "error: Not found"},
		{"ovs/route/add 10.6.0.0/16 p1 gateway", "error: Invalid pkt_mark, IP gateway or src_ip"},
		{"tnl/neigh/set p1 10.0.0.1 aa:55:aa:55:00:01", "OK"},
		{"tnl/arp/show", "10.0.0.1                                      aa:55:aa:55:00:01   p1\n"},
		{"tnl/arp/set p1 10.0.0.1 aa:55", "error: bad MAC address"},
		{"tnl/arp/set p1 here aa:55:aa:55:00:01", "error: bad IP address"},
	} {
		words := strings.Fields(step.words)
		ns.Do(func() {
			got, err := commands[words[0]].Run(words[1:])
			if err != nil {
				got = "error: " + err.Error()
			}
			if !strings.Contains(got, step.want) || step.words == "ovs/route/show" && strings.Contains(got, "10.8.0.0") {
				t.Errorf("%s:\n%s\nexpected %s", step.words, got, step.want)
			}
		})
	}
}
