// SPDX-License-Identifier: Apache-2.0

package differ

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// flow is a flow of a case, divided into the parts that shrink can remove.
type flow struct {
	table, priority int
	match           []string
	actions         []string
}

func (f *flow) String() string {
	actions := strings.Join(f.actions, ",")
	if actions == "" {
		actions = "drop"
	}
	return fmt.Sprintf("table=%d,priority=%d,%s", f.table, f.priority, strings.Join(append(append([]string{}, f.match...), "actions="+actions), ","))
}

// pipeline has the flows and groups that a case puts into both switches.
type pipeline struct {
	flows  []flow
	groups []string
	// tracked is true if the pipeline has a ct action, so that the switch looks frames up more
	// than once.
	tracked bool
}

// tables is the number of tables of a pipeline. The last table, tables-1, is that of learned
// flows.
const tables = 5

// drawn generates a random pipeline. Priorities are unique in a table, because OpenFlow leaves
// open which of two flows of the same priority wins.
type drawn struct {
	*rand.Rand
	pipeline
}

func newPipeline(r *rand.Rand) pipeline {
	d := drawn{Rand: r}
	for id := 1; id <= 3; id++ {
		d.groups = append(d.groups, d.group(id))
	}
	for table := range tables {
		priority := 100
		for range 1 + d.IntN(5) {
			d.flow(table, priority)
			priority += 10
		}
		if d.IntN(6) == 0 {
			d.conjunction(table, priority)
		}
		// frames that match no other flow go on by this flow
		d.flows = append(d.flows, flow{table: table, priority: 1, actions: d.forward(table, "")})
	}
	return d.pipeline
}

func (d *drawn) chance(n int) bool { return d.IntN(n) == 0 }

// kinds has the first words of matches. The word decides which fields and actions are allowed.
var kinds = []string{"", "", "ip", "ip", "tcp", "tcp", "udp", "icmp", "ipv6", "tcp6", "udp6", "icmp6", "arp", "mpls"}

func (d *drawn) flow(table, priority int) {
	f := flow{table: table, priority: priority}
	kind := pick(d.Rand, kinds...)
	if kind != "" {
		f.match = append(f.match, kind)
	}
	f.match = append(f.match, d.match(kind)...)
	text := strings.Join(f.match, ",")
	tagged := strings.Contains(text, "dl_vlan=") || strings.Contains(text, "vlan_tci=0x10")
	for range d.IntN(3) {
		f.actions = append(f.actions, d.change(table, kind, tagged)...)
	}
	f.actions = append(f.actions, d.forward(table, kind)...)
	d.flows = append(d.flows, f)
}

func (d *drawn) address(six bool) string {
	host := 1 + d.IntN(ports)
	if six {
		return pick(d.Rand, fmt.Sprintf("fd00::%d", host), fmt.Sprintf("fd00::%d/127", host&^1), "fd00::/64", "fd00::/ffff::1")
	}
	return pick(d.Rand, fmt.Sprintf("10.0.0.%d", host), fmt.Sprintf("10.0.0.%d/31", host&^1), "10.0.0.0/24", "0.0.0.1/0.0.0.1", "10.9.9.1")
}

func isIP(kind string) bool { return kind == "ip" || kind == "ipv6" || hasPorts(kind) || isICMP(kind) }

func isICMP(kind string) bool { return kind == "icmp" || kind == "icmp6" }

func hasPorts(kind string) bool {
	return strings.HasPrefix(kind, "tcp") || strings.HasPrefix(kind, "udp")
}

func isSix(kind string) bool { return strings.HasSuffix(kind, "6") }

// match returns 0 to 3 random fields of a match.
func (d *drawn) match(kind string) (m []string) {
	six := isSix(kind)
	v := map[bool]string{false: "nw", true: "ipv6"}[six]
	seen := map[string]bool{}
	for range d.IntN(4) {
		var word string
		switch n := d.IntN(22); {
		case n < 2:
			word = fmt.Sprint("in_port=", 1+d.IntN(ports))
		case n < 4:
			word = fmt.Sprintf("dl_%s=0a:00:00:00:00:%02x", pick(d.Rand, "src", "dst"), 1+d.IntN(ports))
		case n == 4:
			word = pick(d.Rand, "dl_vlan=5", "dl_vlan=6", "vlan_tci=0x0000", "vlan_tci=0x1000/0x1000", "vlan_tci=0x1006/0x1ffe", "dl_vlan_pcp=0")
		case n < 7:
			word = d.state()
		case n == 7:
			word = fmt.Sprintf("reg%d=%s", d.IntN(3), pick(d.Rand, "0", "1", "0x1/0x1", "0x2/0xfe"))
		case n == 8:
			word = pick(d.Rand, "metadata=0", "metadata=0x1/0x1", "ct_mark=0", "ct_mark=1", "ct_mark=0x2/0x6", "ct_label=0x1/0x1", "ct_zone=1", "ct_zone=0", "tun_id=0", "pkt_mark=0", "pkt_mark=1", "xreg1=0x100000000", "conj_id=0")
		case n == 9 && isIP(kind):
			word = pick(d.Rand, "nw_tos=0", "nw_tos=4", "nw_ecn=0", "nw_ecn=1", "nw_ttl=64", "nw_ttl=1", "ip_dscp=0")
		case n == 10 && isIP(kind):
			word = pick(d.Rand, "nw_frag=no", "nw_frag=first", "nw_frag=not_later")
			if !hasPorts(kind) && !isICMP(kind) { // Open vSwitch refuses later fragments with ports
				word = pick(d.Rand, word, "nw_frag=later", "nw_frag=yes")
			}
		case n < 14 && isIP(kind):
			word = v + "_" + pick(d.Rand, "src", "dst") + "=" + d.address(six)
		case n == 14 && kind == "ipv6":
			word = pick(d.Rand, "ipv6_label=0", "ipv6_label=1", "ipv6_label=0/0x1")
		case n < 19 && hasPorts(kind):
			word = "tp_" + pick(d.Rand, "src", "dst") + "=" + pick(d.Rand, "80", "443", "53", "2000", "1024/0xfc00", "0/0x1")
		case n == 19 && strings.HasPrefix(kind, "tcp"):
			word = "tcp_flags=" + pick(d.Rand, "+syn-ack", "+syn+ack", "+ack", "-fin", "+rst", "+psh")
		case n < 20 && kind == "icmp":
			word = pick(d.Rand, "icmp_type=8", "icmp_type=0", "icmp_type=3", "icmp_code=3")
		case n < 20 && kind == "icmp6":
			word = pick(d.Rand, "icmp_type=128", "icmp_type=129", "icmp_type=1", "icmp_type=135", "icmp_type=136")
		case n < 20 && kind == "arp":
			word = pick(d.Rand, "arp_op=1", "arp_op=2", "arp_spa=10.0.0.1", "arp_tpa=10.0.0.0/30", "arp_sha=0a:00:00:00:00:01", "arp_tha=00:00:00:00:00:00")
		case n < 20 && kind == "mpls":
			word = pick(d.Rand, "mpls_label=16", "mpls_label=17", "mpls_tc=0", "mpls_bos=1", "mpls_bos=0", "mpls_ttl=64")
		}
		field, _, _ := strings.Cut(word, "=")
		field = strings.TrimPrefix(field, "dl_")
		field = strings.TrimPrefix(strings.TrimSuffix(strings.TrimSuffix(field, "_pcp"), "_tci"), "ip_")
		if field == "dscp" {
			field = "nw_tos"
		}
		if word != "" && !seen[field] {
			seen[field] = true
			m = append(m, word)
		}
	}
	return m
}

func (d *drawn) state() string {
	return "ct_state=" + pick(d.Rand, "-trk", "+trk", "+trk+new", "+trk+est", "+trk-new", "+trk+rpl", "+trk+est-rpl", "+trk+rel", "+trk-inv", "+trk+snat", "+trk+dnat")
}

// change returns a random action that changes the frame or its registers.
func (d *drawn) change(table int, kind string, tagged bool) []string {
	six := isSix(kind)
	one := func(words ...string) []string { return []string{pick(d.Rand, words...)} }
	switch n := d.IntN(20); {
	case n < 3:
		return one("load:1->NXM_NX_REG0[]", "load:1->NXM_NX_REG1[]", "set_field:0x2/0x2->reg0", "move:NXM_OF_IN_PORT[]->NXM_NX_REG1[0..15]", "move:NXM_NX_REG0[0..7]->NXM_NX_REG2[8..15]", "set_field:1->reg2", "move:NXM_OF_ETH_SRC[0..31]->NXM_NX_REG1[]", "load:1->OXM_OF_METADATA[]", "set_field:1->pkt_mark", "set_field:0x100000001->xreg1")
	case n < 5:
		return one("mod_dl_src:0a:00:00:00:00:09", "mod_dl_dst:0a:00:00:00:00:02", "set_field:0a:00:00:00:00:01/ff:ff:ff:ff:ff:ff->eth_dst", "move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[]")
	case n == 5 && tagged: // ovs-ofctl wants a match on the tag
		return one("strip_vlan", "set_field:4103->vlan_vid", "mod_vlan_pcp:2", "strip_vlan,push_vlan:0x88a8,set_field:4103->vlan_vid")
	case n < 7:
		return one("push_vlan:0x8100,set_field:4102->vlan_vid", "push_vlan:0x88a8,set_field:4103->vlan_vid", "mod_vlan_vid:5", "push_vlan:0x8100,strip_vlan", "mod_vlan_pcp:3")
	case n < 9 && isIP(kind):
		return one("dec_ttl", "mod_nw_tos:8", "mod_nw_ecn:1", "mod_nw_ttl:9", "dec_ttl", "set_field:2->ip_ecn", "set_field:10->ip_dscp")
	case n < 12 && isIP(kind) && six:
		return one("set_field:fd00::3->ipv6_dst", "set_field:fd00::4->ipv6_src", "move:NXM_NX_IPV6_SRC[]->NXM_NX_IPV6_DST[]", "set_field:5->ipv6_label")
	case n < 12 && isIP(kind):
		return one("mod_nw_dst:10.0.0.3", "mod_nw_src:10.0.0.4", "move:NXM_OF_IP_SRC[]->NXM_OF_IP_DST[]", "set_field:0.0.0.7/0.0.0.7->ip_src")
	case n < 14 && hasPorts(kind):
		return one("mod_tp_dst:81", "mod_tp_src:1500", "move:NXM_OF_"+strings.ToUpper(kind[:3])+"_SRC[]->NXM_OF_"+strings.ToUpper(kind[:3])+"_DST[]")
	case n == 15 && kind == "mpls":
		return one("dec_mpls_ttl", "set_field:18->mpls_label", "set_field:5->mpls_ttl")
	case n == 16 && kind == "arp":
		return one("set_field:2->arp_op", "move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[]", "set_field:10.0.0.9->arp_spa")
	case n == 17 && isIP(kind):
		return []string{"clone(" + strings.Join(append(d.change(table, kind, tagged), d.output()), ",") + ")"}
	case n == 18:
		return []string{d.learn(kind)}
	case n == 19:
		return []string{d.output()}
	}
	return nil
}

func (d *drawn) output() string {
	return pick(d.Rand, "output:1", "output:2", "output:3", "output:4", "in_port", "output:NXM_NX_REG0[0..1]")
}

// forward returns the random actions that end a flow: an output, for example, or a resubmit to
// a later table.
func (d *drawn) forward(table int, kind string) []string {
	last := table >= tables-2
	switch n := d.IntN(16); {
	case n < 3 && !last:
		return []string{fmt.Sprintf("resubmit(,%d)", table+1+d.IntN(tables-1-table))}
	case n < 5 && !last:
		return []string{fmt.Sprintf("goto_table:%d", table+1+d.IntN(tables-1-table))}
	case n < 9 && isIP(kind):
		return d.track(table, kind)
	case n == 9:
		return []string{fmt.Sprint("group:", 1+d.IntN(3))}
	case n == 11 && (kind == "ip" || kind == "tcp"): // no action on IP may follow
		return []string{pick(d.Rand, "push_mpls:0x8847", "push_mpls:0x8847,set_field:17->mpls_label", "push_mpls:0x8847,set_field:3->mpls_tc"), d.output()}
	case n == 11 && kind == "mpls":
		return []string{pick(d.Rand, "pop_mpls:0x0800", "pop_mpls:0x8847"), d.output()}
	case n == 10:
		return []string{pick(d.Rand, "all", "in_port", "flood", "output:1,output:2,output:3", fmt.Sprintf("resubmit(%d,%d)", 1+d.IntN(ports), min(table+1, tables-1)))}
	}
	return []string{pick(d.Rand, "output:1", "output:2", "output:3", "output:4")}
}

// track returns a ct action, and sometimes further actions after it.
func (d *drawn) track(table int, kind string) []string {
	d.tracked = true
	six := isSix(kind)
	var words []string
	if d.chance(2) {
		words = append(words, pick(d.Rand, "commit", "commit", "commit,force"))
	}
	words = append(words, "zone="+pick(d.Rand, "1", "2", "3", "NXM_NX_REG2[0..15]"))
	if d.chance(8) {
		words[len(words)-1] = "zone=0"
	}
	next := table < tables-1 && !d.chance(5)
	if next {
		words = append(words, fmt.Sprint("table=", table+1+d.IntN(tables-1-table)))
	}
	nat := pick(d.Rand, "", "nat", "nat(src=10.9.9.1)", "nat(dst=10.0.0.3)", "nat(src=10.9.9.1:2000)", "nat(dst=10.0.0.2:8080)")
	if six {
		nat = pick(d.Rand, "", "nat", "nat(src=fd00::99)", "nat(dst=fd00::3)", "nat(src=[fd00::99]:2000)")
	}
	if isICMP(kind) || kind == "ip" || kind == "ipv6" {
		nat = strings.NewReplacer(":2000", "", ":8080", "", "[", "", "]", "").Replace(nat)
	}
	commits := strings.HasPrefix(words[0], "commit")
	if nat != "" && commits == (nat != "nat") { // a commit with nat alone is one of the differences
		words = append(words, nat)
	}
	if commits && d.chance(2) {
		words = append(words, "exec("+pick(d.Rand, "set_field:1->ct_mark", "set_field:0x2/0x6->ct_mark", "set_field:0x1->ct_label", "move:NXM_NX_REG0[]->NXM_NX_CT_MARK[]", "set_field:0x10000000000000001->ct_label,set_field:2->ct_mark")+")")
	}
	actions := []string{"ct(" + strings.Join(words, ",") + ")"}
	if !next || d.chance(4) {
		actions = append(actions, d.output())
	}
	if d.chance(10) {
		actions = append([]string{"ct_clear"}, actions...)
	}
	return actions
}

func (d *drawn) learn(kind string) string {
	base := fmt.Sprintf("learn(table=%d,priority=%d", tables-1, 10000+d.IntN(4))
	if d.chance(3) {
		base += ",idle_timeout=300"
	}
	specs := []string{"NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[]"}
	switch {
	case isSix(kind):
		specs = append(specs, "eth_type=0x86dd,NXM_NX_IPV6_DST[]=NXM_NX_IPV6_SRC[]")
	case isIP(kind):
		specs = append(specs, "eth_type=0x800,NXM_OF_IP_DST[]=NXM_OF_IP_SRC[]")
	case d.chance(2):
		specs = append(specs, "NXM_OF_VLAN_TCI[0..11]")
	}
	if d.chance(3) {
		specs = append(specs, "load:NXM_NX_REG0[0..15]->NXM_NX_REG1[0..15]")
	}
	if d.chance(4) {
		specs = append(specs, "load:0x9->NXM_NX_REG2[0..3]")
	}
	return base + "," + strings.Join(append(specs, "output:NXM_OF_IN_PORT[]"), ",") + ")"
}

func (d *drawn) group(id int) string {
	kind := pick(d.Rand, "all", "all", "indirect", "ff")
	var buckets []string
	for range 1 + d.IntN(3) {
		actions := pick(d.Rand, "", "mod_dl_src:0a:00:00:00:00:08,", "load:1->NXM_NX_REG1[],", "push_vlan:0x8100,set_field:4103->vlan_vid,") +
			pick(d.Rand, "output:1", "output:2", "output:3", "output:4", fmt.Sprintf("resubmit(,%d)", tables-1))
		if kind == "ff" {
			actions = fmt.Sprintf("watch_port:%d,%s", 1+d.IntN(ports), "actions="+actions)
		} else {
			actions = "actions=" + actions
		}
		buckets = append(buckets, fmt.Sprintf("bucket=bucket_id:%d,%s", len(buckets), actions))
		if kind == "indirect" {
			break
		}
	}
	return fmt.Sprintf("group_id=%d,type=%s,%s", id, kind, strings.Join(buckets, ","))
}

// conjunction adds the flows of a conjunction with two dimensions, and the flow that the
// conjunction selects.
func (d *drawn) conjunction(table, priority int) {
	id := 1 + d.IntN(3)
	kind := pick(d.Rand, "tcp", "udp")
	add := func(p int, match, actions string) {
		d.flows = append(d.flows, flow{table: table, priority: p, match: []string{kind, match}, actions: []string{actions}})
	}
	hosts := d.Perm(ports)
	for _, h := range hosts[:1+d.IntN(2)] {
		add(priority, fmt.Sprintf("nw_src=10.0.0.%d", 1+h), fmt.Sprintf("conjunction(%d,1/2)", id))
	}
	for _, p := range d.Perm(3)[:1+d.IntN(2)] {
		add(priority, fmt.Sprint("tp_dst=", []int{80, 53, 443}[p]), fmt.Sprintf("conjunction(%d,2/2)", id))
	}
	d.flows = append(d.flows, flow{table: table, priority: priority + 1, match: []string{kind, fmt.Sprint("conj_id=", id)}, actions: d.forward(table, kind)})
}
