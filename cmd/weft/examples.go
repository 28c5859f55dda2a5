// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/spf13/cobra"

	"weft/cmd/manpage"
)

// examples has command lines for the help of each command, without "weft" and the command's name. "" is
// the command without arguments. TestExamplesOfVerbs runs the lines that need no central, certificate
// or peer.
var examples = map[string][]string{
	"add-port":       {"vm1 type=vhost-user path=/run/weft/vm1.sock", "uplink type=uplink dev=eth0", "overlay type=vxlan vni=100 remote=172.16.0.2"},
	"del-port":       {"vm1", "--if-exists vm1"},
	"mod-port":       {"vm1 tag=5", "vm1 down"},
	"dump-ports":     {"", "vm1"},
	"port-to-br":     {"vm1"},
	"add-br":         {"br-int"},
	"del-br":         {"br-int"},
	"list-br":        {""},
	"br-exists":      {"br-int && echo there"},
	"add-flow":       {"actions=normal", "table=0,priority=100,in_port=vm1,ip,nw_dst=10.0.0.0/24,actions=output:overlay", "br-int in_port=1,actions=2"},
	"add-flows":      {"flows.txt", "- <flows.txt"},
	"replace-flows":  {"flows.txt"},
	"mod-flows":      {"in_port=vm1,actions=drop", "--strict priority=100,in_port=vm1,actions=normal"},
	"del-flows":      {"", "table=0,in_port=vm1", "cookie=0x5/-1"},
	"diff-flows":     {"flows.txt", "flows.txt later.txt"},
	"dump-flows":     {"", "table=0,tcp", "br-int --no-names"},
	"dump-aggregate": {"table=0,in_port=vm1"},
	"dump-megaflows": {""},
	"packet-out":     {"in_port=vm1,packet=ffffffffffff0200000000010800,actions=normal"},

	"add-group":        {"group_id=1,type=select,bucket=weight=2,actions=vm1,bucket=actions=vm2"},
	"add-groups":       {"groups.txt"},
	"mod-group":        {"group_id=1,type=all,bucket=actions=vm1,bucket=actions=vm2"},
	"del-groups":       {"", "group_id=1"},
	"dump-groups":      {"", "group_id=1"},
	"dump-group-stats": {"group_id=1"},
	"add-meter":        {"meter=1,kbps,burst,bands=type=drop,rate=10000,burst_size=1000"},
	"add-meters":       {"meters.txt"},
	"mod-meter":        {"meter=1,pktps,bands=type=drop,rate=1000"},
	"del-meters":       {"", "meter=1"},
	"dump-meters":      {"", "meter=1"},
	"meter-stats":      {"meter=1"},
	"queue-stats":      {"", "vm1"},
	"mod-table":        {"3 limit:1000 evict", "all noevict"},
	"dump-tables":      {""},
	"add-tlv-map":      {"'{class=0x0102,type=0x80,len=4}->tun_metadata0'"},
	"del-tlv-map":      {"", "'{class=0x0102,type=0x80,len=4}->tun_metadata0'"},
	"dump-tlv-map":     {""},

	"dump-conntrack":         {"", "zone=5", "ct_nw_src=10.0.0.1,ct_nw_proto=6"},
	"dump-conntrack-exp":     {"zone=5"},
	"flush-conntrack":        {"zone=5", "ct_nw_src=10.0.0.1,ct_nw_dst=10.0.0.2,ct_nw_proto=6,ct_tp_src=1000,ct_tp_dst=22"},
	"ct-stats-show":          {"", "-m zone=5"},
	"ct-timeout":             {"zone=5", "zone=5 tcp_established=3600", "--reset zone=5"},
	"ct-get-nconns":          {""},
	"ct-get-maxconns":        {""},
	"ct-set-maxconns":        {"100000"},
	"ct-get-limits":          {"", "zone=5"},
	"ct-set-limits":          {"default=1000 zone=5,limit=200"},
	"ct-del-limits":          {"zone=5", "default"},
	"ct-get-tcp-seq-chk":     {""},
	"ct-enable-tcp-seq-chk":  {""},
	"ct-disable-tcp-seq-chk": {""},
	"fdb-show":               {"", "br-int"},
	"fdb-flush":              {"", "vm1"},

	"set-controller": {"br-int tcp:192.0.2.1:6653"},
	"get-controller": {"br-int"},
	"del-controller": {"br-int"},
	"set-fail-mode":  {"br-int standalone"},
	"get-fail-mode":  {"br-int"},
	"del-fail-mode":  {"br-int"},

	"show":         {"", "--json"},
	"show limits":  {"", "vm1"},
	"show routes":  {"", "overlay"},
	"top":          {"", "--once"},
	"trace":        {"in_port=vm1,tcp,nw_dst=10.0.0.2,tp_dst=80", "--live in_port=vm1,arp"},
	"monitor":      {"", "--flows table=0,tcp", "--connections --zone 5"},
	"capture":      {"vm1 -c 10", "drops --port vm1 -c 1", "vm1 -w vm1.pcapng"},
	"bench server": {"", "-p 5300"},
	"bench client": {"192.0.2.1 -t 10 -P 4", "192.0.2.1 -u -b 1G", "192.0.2.1 --rr"},

	"apply":      {"weft-state.toml", "--dry-run --prune weft-state.toml"},
	"export":     {">weft-state.toml"},
	"log":        {""},
	"log level":  {"", "debug"},
	"log format": {"json"},
	"shutdown":   {""},
	"version":    {""},

	"net add":             {"blue vni=100"},
	"net set":             {"blue mtu=1400"},
	"net del":             {"blue --ports"},
	"net show":            {"blue"},
	"net list":            {""},
	"secgroup add":        {"admin", "web rules=\"in tcp 80,443; in tcp 22 from group admin\""},
	"secgroup set":        {"web allow=\"in icmp 8\"", "web remove=\"in tcp 443\""},
	"secgroup del":        {"web"},
	"secgroup show":       {"web"},
	"secgroup list":       {""},
	"host add":            {"h1 endpoint=172.16.0.1"},
	"host set":            {"h1 endpoint=172.16.0.2"},
	"host del":            {"h1"},
	"host show":           {"h1"},
	"host list":           {""},
	"port add":            {"web1 net=blue addresses=10.0.0.5", "web1 net=blue host=h1 --wait=hosts"},
	"port set":            {"web1 move-to=h2"},
	"port del":            {"web1"},
	"port show":           {"web1"},
	"port list":           {"", "blue"},
	"port why":            {"web1"},
	"sync":                {"", "--wait=hosts --timeout 10s"},
	"central status":      {""},
	"central save":        {"weft-central.backup"},
	"central invite":      {"--role host --name h1"},
	"central enrol":       {"--token -"},
	"central revoke":      {"--role host --name h1"},
	"central revocations": {""},
	"ls-add":              {"blue"},
	"ls-del":              {"blue"},
	"ls-list":             {""},
	"lsp-add":             {"blue web1"},
	"lsp-del":             {"web1"},
	"lsp-list":            {"blue"},
	"lsp-set-addresses":   {`web1 "02:00:00:00:00:05 10.0.0.5"`},
}

// giveExamples adds the lines of the map examples to the help of all commands below parent.
func giveExamples(parent *cobra.Command) {
	for _, verb := range parent.Commands() {
		giveExamples(verb)
		var lines []string
		for _, words := range examples[wordOf(verb)] {
			lines = append(lines, strings.TrimRight("  "+verb.CommandPath()+" "+words, " "))
		}
		verb.Example = strings.Join(lines, "\n")
		if word, ok := verb.Annotations[manpage.SameAs]; ok {
			verb.Long = strings.TrimSpace(verb.Long + "\n\nThe same as weft " + word + ".")
		}
	}
}
