// SPDX-License-Identifier: Apache-2.0

package appctl

import (
	"strconv"
	"strings"
)

// A datapathField tells where Open vSwitch's text of a datapath flow shows a field. For
// example, ipv4(src=) shows nw_src.
type datapathField struct {
	group, name string
}

// datapathFields has the fields that the text of a datapath flow does not show as FIELD(VALUE).
var datapathFields = map[string]datapathField{
	"tun_id": {"tunnel", "tun_id"}, "tun_src": {"tunnel", "src"}, "tun_dst": {"tunnel", "dst"}, "tun_ipv6_src": {"tunnel", "ipv6_src"},
	"tun_ipv6_dst": {"tunnel", "ipv6_dst"}, "tun_flags": {"tunnel", "flags"},
	"dl_src": {"eth", "src"}, "dl_dst": {"eth", "dst"}, "dl_vlan": {"vlan", "vid"}, "dl_vlan_pcp": {"vlan", "pcp"}, "vlan_tci": {"vlan", "tci"},
	"nw_src": {"ipv4", "src"}, "nw_dst": {"ipv4", "dst"}, "ipv6_src": {"ipv6", "src"}, "ipv6_dst": {"ipv6", "dst"}, "ipv6_label": {"ipv6", "label"},
	"nw_proto": {"ip", "proto"}, "nw_tos": {"ip", "tos"}, "nw_ecn": {"ip", "ecn"}, "nw_ttl": {"ip", "ttl"}, "nw_frag": {"ip", "frag"},
	"tp_src": {"transport", "src"}, "tp_dst": {"transport", "dst"}, "tcp_flags": {"tcp_flags", ""},
	"icmp_type": {"icmp", "type"}, "icmp_code": {"icmp", "code"}, "icmpv6_type": {"icmp", "type"}, "icmpv6_code": {"icmp", "code"},
	"nd_target": {"nd", "target"}, "nd_sll": {"nd", "sll"}, "nd_tll": {"nd", "tll"},
	"arp_spa": {"arp", "sip"}, "arp_tpa": {"arp", "tip"}, "arp_op": {"arp", "op"}, "arp_sha": {"arp", "sha"}, "arp_tha": {"arp", "tha"},
}

// datapathProtocol tells what a protocol name in a match, such as tcp, stands for: the EtherType and IP
// protocol that it matches, and the groups in which ovs-dpctl shows its fields.
type datapathProtocol struct {
	etherType, ip, proto, transport string
}

var datapathProtocols = map[string]datapathProtocol{
	"ip": {"0x0800", "ipv4", "", ""}, "ipv6": {"0x86dd", "ipv6", "", ""}, "arp": {"0x0806", "", "", ""}, "rarp": {"0x8035", "", "", ""},
	"mpls": {"0x8847", "", "", ""}, "mplsm": {"0x8848", "", "", ""}, "pbb": {"0x88e7", "", "", ""},
	"tcp": {"0x0800", "ipv4", "6", "tcp"}, "tcp6": {"0x86dd", "ipv6", "6", "tcp"}, "udp": {"0x0800", "ipv4", "17", "udp"}, "udp6": {"0x86dd", "ipv6", "17", "udp"},
	"sctp": {"0x0800", "ipv4", "132", "sctp"}, "sctp6": {"0x86dd", "ipv6", "132", "sctp"},
	"icmp": {"0x0800", "ipv4", "1", "icmp"}, "icmp6": {"0x86dd", "ipv6", "58", "icmpv6"},
}

// datapathGroups has the groups of a datapath flow's text in the order in which Open vSwitch
// prints them.
var datapathGroups = []string{"recirc_id", "dp_hash", "tunnel", "in_port", "ct_state", "ct_zone", "ct_mark", "ct_label", "eth", "eth_type", "vlan",
	"ipv4", "ipv6", "arp", "tcp", "udp", "sctp", "tcp_flags", "icmp", "icmpv6", "nd"}

// datapathMatch returns a megaflow's match in the form of ovs-dpctl(8). It leaves out all fields that the
// megaflow does not match, even frag=. The function portWord returns the name or number of a port.
func datapathMatch(match string, portWord func(name string) string) string {
	groups := map[string][]string{"recirc_id": {"0"}}
	var others []string
	p := datapathProtocol{ip: "ipv4"}
	var fields [][2]string
	for _, field := range strings.Split(match, ",") {
		name, value, valued := strings.Cut(field, "=")
		if known, is := datapathProtocols[name]; is && !valued {
			p = known
			groups["eth_type"] = []string{p.etherType}
			continue
		}
		fields = append(fields, [2]string{name, value})
	}
	if p.proto != "" {
		groups[p.ip] = []string{"proto=" + p.proto}
	}
	for _, f := range fields {
		name, value := f[0], f[1]
		at, is := datapathFields[name]
		transport := name
		if i := strings.IndexByte(name, '_'); !is && p.transport != "" && i > 0 && strings.HasPrefix(p.transport, name[:i]) {
			transport = "tp" + name[i:] // tcp_dst and udp_dst are the field tp_dst
			at, is = datapathFields[transport]
		}
		switch {
		case name == "in_port":
			groups["in_port"] = []string{portWord(strings.Trim(value, `"`))}
			continue
		case name == "dl_type":
			groups["eth_type"] = []string{value}
			continue
		case name == "ct_zone":
			if n, err := strconv.ParseUint(value, 0, 16); err == nil {
				value = "0x" + strconv.FormatUint(n, 16)
			}
		}
		switch at.group {
		case "ip":
			at.group = p.ip
		case "transport", "icmp":
			if at.group = p.transport; at.group == "" {
				is = false
			}
		}
		switch {
		case is && at.name == "":
			groups[at.group] = []string{value}
		case is:
			groups[at.group] = append(groups[at.group], at.name+"="+value)
		case name == "recirc_id" || name == "dp_hash" || strings.HasPrefix(name, "ct_"):
			groups[name] = []string{value}
		default:
			others = append(others, name+"("+value+")")
		}
	}
	return joinGroups(groups, fields, others)
}

// joinGroups returns the text of a match. First come the groups of datapathGroups in their
// order, then other groups in the order of the match's fields, then the parts without a group.
func joinGroups(groups map[string][]string, fields [][2]string, ungrouped []string) string {
	var out []string
	for _, name := range datapathGroups {
		if parts := groups[name]; len(parts) > 0 {
			out = append(out, name+"("+strings.Join(parts, ",")+")")
		}
		delete(groups, name)
	}
	for _, field := range fields { // groups that datapathGroups lacks, such as ct_nw_src
		if parts, is := groups[field[0]]; is {
			out = append(out, field[0]+"("+parts[0]+")")
		}
	}
	return strings.Join(append(out, ungrouped...), ",")
}
