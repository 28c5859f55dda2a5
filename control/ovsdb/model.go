// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"weft/api"
	"weft/vhost"
)

// bridge is a bridge as the database wants it.
type bridge struct {
	id          uuid
	name        string
	failMode    string
	controllers []string
	datapathID  string // "": the switch chooses the ID
	hwaddr      string // MAC address of the port LOCAL; "": the kernel chooses it
}

// port is a port as the database wants it, with its options.
type port struct {
	id      uuid
	table   string // table of the row: Interface, Port (of a bond), Mirror, or the table of an exporter
	name    string
	bridge  string
	words   []string // options of weft add-port
	ofport  uint32   // number in flows that the column ofport has; 0: none
	mtu     int      // MTU for the device of a port of type=device; 0: unchanged
	problem string   // why the switch cannot make the port; "": it can
}

// model has the bridges and ports as the database wants them.
type model struct {
	bridges []bridge
	ports   []port
}

// wanted returns the bridges and ports that the rows of the database ask for. rundir is the
// directory of vhost-user sockets.
//
// While other_config:flow-restore-wait is true, a script such as ovs-ctl restores the flows. Until
// it is done, no bridge has controllers, and no bridge forwards in standalone mode.
func wanted(t tables, rundir string) (m model) {
	_, root := t.root()
	names := map[string]bool{}
	restoring := root.get("other_config", "flow-restore-wait") == "true"
	for _, id := range root.refs("bridges") {
		r := t["Bridge"][id]
		if r == nil {
			continue
		}
		b := bridge{id: id, name: r.text("name"), failMode: r.text("fail_mode"), datapathID: r.get("other_config", "datapath-id"),
			hwaddr: r.get("other_config", "hwaddr")}
		if b.failMode == "" {
			b.failMode = api.FailStandalone // the default of ovs-vswitchd.conf.db(5)
		}
		if restoring {
			b.failMode = api.FailSecure
		}
		for _, c := range r.refs("controller") {
			if target := t["Controller"][c].text("target"); connectable(target) && !restoring {
				b.controllers = append(b.controllers, withPort(target))
			}
		}
		slices.Sort(b.controllers)
		m.bridges = append(m.bridges, b)
		for _, p := range r.refs("ports") {
			m.addPort(t, &b, p, rundir, names)
		}
		for _, id := range r.refs("mirrors") {
			if t["Mirror"][id] != nil {
				m.ports = append(m.ports, mirrorPort(t, b.name, id))
			}
		}
		m.ports = append(m.ports, exporterPorts(t, b.name, id)...)
	}
	slices.SortFunc(m.bridges, func(a, b bridge) int { return strings.Compare(a.name, b.name) })
	slices.SortFunc(m.ports, func(a, b port) int {
		return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(string(a.id), string(b.id)))
	})
	return m
}

// connectable reports whether the switch connects to a controller's target. It does not listen for
// punix: and ptcp:, because every bridge has its socket BRIDGE.mgmt for local tools.
func connectable(target string) bool {
	return strings.HasPrefix(target, "tcp:") || strings.HasPrefix(target, "ssl:")
}

// withPort adds OpenFlow's default port 6653 to a target without a port.
func withPort(target string) string {
	word, address, _ := strings.Cut(target, ":")
	if strings.Contains(strings.TrimRight(address[strings.LastIndexByte(address, ']')+1:], "0123456789"), ":") {
		return target
	}
	return word + ":" + address + ":6653"
}

// addPort adds a port for each interface of row "id" in table Port. A row with several interfaces is a
// bond, for which addPort also adds a port of type=bond. names has the port names in use; addPort adds
// the new ones.
func (m *model) addPort(t tables, b *bridge, id uuid, rundir string, names map[string]bool) {
	r := t["Port"][id]
	ids := r.refs("interfaces")
	var bond *port
	if len(ids) > 1 {
		p := bondPort(t, b.name, id, names)
		bond = &p
		m.ports = append(m.ports, p)
	}
	for _, id := range ids {
		i := t["Interface"][id]
		if i == nil {
			continue
		}
		p := port{id: id, table: "Interface", name: i.text("name"), bridge: b.name}
		own, problem := interfaceWords(i, b.name, rundir)
		if problem == "" && p.name == b.name && b.hwaddr != "" {
			own = append(slices.DeleteFunc(own, func(w string) bool { return strings.HasPrefix(w, "mac=") }), "mac="+b.hwaddr)
		}
		if bond != nil && problem == "" {
			own, problem = memberWords(i, own, bond)
		}
		if names[p.name] && problem == "" {
			problem = "another bridge has a port of this name; expected another"
		}
		names[p.name] = true
		if problem == "" {
			p.words = append(own, "bridge="+b.name)
			if bond == nil {
				p.words = append(p.words, vlanWords(r)...)
			}
			if !slices.Contains(own, "type=patch") {
				p.words = append(p.words, queueWords(t, r)...)
			}
			slices.Sort(p.words)
			if n, ok := i.number("ofport"); ok && n > 0 && n <= math.MaxUint16 {
				p.ofport = uint32(n)
			}
			if n, ok := i.number("mtu_request"); ok && slices.Contains(p.words, "type=device") {
				p.mtu = int(n)
			}
		}
		p.problem = problem
		m.ports = append(m.ports, p)
	}
}

// vlanWords returns the VLAN options for a row in table Port. The options have the names of the columns.
func vlanWords(r row) (words []string) {
	if tag, ok := r.number("tag"); ok {
		words = append(words, fmt.Sprintf("tag=%d", tag))
	}
	for _, column := range []string{"trunks", "cvlans"} {
		if list := r.numbers(column); len(list) > 0 {
			words = append(words, column+"="+ranges(list))
		}
	}
	if mode := r.text("vlan_mode"); mode != "" {
		words = append(words, "vlan_mode="+mode)
	}
	if t := r.get("other_config", "qinq-ethtype"); t != "" {
		words = append(words, "qinq-ethtype="+t)
	}
	return words
}

// queueWords returns the option qos= for a row in table Port. The option has the queues of the
// port's QoS row that have a max-rate. Each queue is a token bucket, which flows select with
// set_queue.
func queueWords(t tables, r row) []string {
	var queues []string
	for _, id := range r.refs("qos") {
		q := t["QoS"][id]
		if q == nil || q.text("type") != "linux-htb" {
			continue
		}
		for number, ref := range q["queues"].pairs {
			id, _ := ref.(uuid)
			rate, burst := t["Queue"][id].get("other_config", "max-rate"), t["Queue"][id].get("other_config", "burst")
			if rate == "" || rate == "0" {
				continue
			}
			word := fmt.Sprintf("%v:%s", number, rate)
			if burst != "" && burst != "0" {
				word += ":" + burst
			}
			queues = append(queues, word)
		}
	}
	if len(queues) == 0 {
		return nil
	}
	slices.Sort(queues)
	return []string{"qos=" + strings.Join(queues, ",")}
}

// ranges formats sorted numbers as ranges, as in 1-3,7.
func ranges(list []int64) string {
	var parts []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if part := strconv.FormatInt(list[i], 10); i == j {
			parts = append(parts, part)
		} else {
			parts = append(parts, fmt.Sprintf("%s-%d", part, list[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// A kind returns the options of weft add-port for a row in table Interface, or the reason why there are
// none.
type kind func(r row, name, rundir string) (words []string, problem string)

// kinds maps the values of Interface.type to functions. The keys are written to
// Open_vSwitch.iface_types.
var kinds = map[string]kind{
	"system":              systemWords,
	"internal":            tapWords,
	"tap":                 tapWords,
	"patch":               patchWords,
	"vxlan":               tunnelWords("vxlan"),
	"geneve":              tunnelWords("geneve"),
	"gre":                 greWords("gre"),
	"ip6gre":              greWords("ip6gre"),
	"erspan":              greWords("erspan"),
	"ip6erspan":           greWords("ip6erspan"),
	"dpdkvhostuserclient": clientWords,
	"dpdkvhostuser":       serverWords,
}

func interfaceWords(r row, bridge, rundir string) (words []string, problem string) {
	kind, name := cmp.Or(r.text("type"), "system"), r.text("name")
	make := kinds[kind]
	switch {
	case make == nil:
		return nil, fmt.Sprintf("type %s: there is none; expected one of %s", kind, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	case name == bridge:
		words = append([]string{"type=local"}, deviceWords(r)...)
	default:
		if words, problem = make(r, name, rundir); problem != "" {
			return nil, problem
		}
	}
	if n, ok := r.number("ofport_request"); ok && name != bridge {
		words = append(words, fmt.Sprintf("ofport_request=%d", n))
	}
	if kind == "patch" {
		return words, ""
	}
	for _, column := range []string{"ingress_policing_rate", "ingress_policing_kpkts_rate"} {
		rate, _ := r.number(column)
		if rate <= 0 {
			continue
		}
		words = append(words, fmt.Sprintf("%s=%d", column, rate))
		burst := strings.TrimSuffix(column, "rate") + "burst"
		if n, _ := r.number(burst); n > 0 {
			words = append(words, fmt.Sprintf("%s=%d", burst, n))
		}
	}
	return words, ""
}

// deviceWords returns the options of a tap for a row in table Interface.
func deviceWords(r row) (words []string) {
	if mac := r.text("mac"); mac != "" {
		words = append(words, "mac="+mac)
	}
	if mtu, ok := r.number("mtu_request"); ok {
		words = append(words, fmt.Sprintf("mtu=%d", mtu))
	}
	return words
}

func systemWords(_ row, name, _ string) ([]string, string) {
	return []string{"type=device", "dev=" + name}, ""
}

func tapWords(r row, name, _ string) ([]string, string) {
	return append([]string{"type=tap", "dev=" + name}, deviceWords(r)...), ""
}

func patchWords(r row, _, _ string) ([]string, string) {
	peer := r.get("options", "peer")
	if peer == "" {
		return nil, "options:peer is missing; expected the name of a patch port"
	}
	return []string{"type=patch", "peer=" + peer}, ""
}

func clientWords(r row, _, _ string) ([]string, string) {
	path := r.get("options", "vhost-server-path")
	if path == "" {
		return nil, "options:vhost-server-path is missing; expected the path of the guest's socket"
	}
	return vhostWords(r, "mode=client", path), ""
}

func serverWords(r row, name, rundir string) ([]string, string) {
	return vhostWords(r, "mode=server", rundir+"/"+name), ""
}

// vhostWords returns the options of a vhost-user port with the most queue pairs. The guest chooses how
// many it uses, as with Open vSwitch.
func vhostWords(r row, mode, path string) []string {
	words := []string{"type=vhost-user", mode, "path=" + path, fmt.Sprintf("queues=%d", vhost.MaxQueuePairs)}
	if mtu, ok := r.number("mtu_request"); ok {
		words = append(words, fmt.Sprintf("mtu=%d", mtu))
	}
	return words
}

func tunnelWords(kind string) kind {
	return func(r row, _, _ string) ([]string, string) {
		option := func(key string) string { return r.get("options", key) }
		words := []string{"type=" + kind, "split_horizon=off"} // as Open vSwitch does, flood from tunnel to tunnel
		remote := option("remote_ip")
		if remote == "" {
			return nil, "options:remote_ip is missing; expected an address, or flow"
		}
		words = append(words, "remote="+remote)
		key := cmp.Or(option("key"), option("in_key"), "0")
		if in, out := cmp.Or(option("in_key"), key), cmp.Or(option("out_key"), key); in != out {
			return nil, fmt.Sprintf("options:in_key=%s and out_key=%s differ; expected one key", in, out)
		}
		words = append(words, "vni="+key)
		for _, o := range []struct{ key, word string }{{"local_ip", "local"}, {"dst_port", "dst_port"}, {"tos", "tos"}, {"ttl", "ttl"}} {
			if v := option(o.key); v != "" && v != "flow" { // local_ip=flow needs no option: the flow sets tun_src
				words = append(words, o.word+"="+v)
			}
		}
		for _, o := range []struct{ key, word string }{{"csum", "udp_csum"}, {"df_default", "df"}} {
			switch option(o.key) {
			case "true":
				words = append(words, o.word+"=on")
			case "false":
				words = append(words, o.word+"=off")
			}
		}
		if exts := option("exts"); exts == "gbp" && kind == "vxlan" {
			words = append(words, "gbp=on")
		} else if exts != "" {
			return nil, fmt.Sprintf("options:exts=%s: expected gbp of type vxlan", exts)
		}
		if p := option("packet_type"); p != "" && p != "legacy_l2" {
			return nil, fmt.Sprintf("options:packet_type=%s: expected legacy_l2", p)
		}
		return append(words, bfdWords(r)...), ""
	}
}

// greWords maps GRE and ERSPAN interfaces. Types that begin with ip6 have IPv6 outer headers.
func greWords(kind string) kind {
	return func(r row, _, _ string) ([]string, string) {
		option := func(key string) string { return r.get("options", key) }
		ours, v6 := strings.CutPrefix(kind, "ip6")
		words := []string{"type=" + ours, "split_horizon=off"}
		remote := option("remote_ip")
		if remote == "" {
			return nil, "options:remote_ip is missing; expected an address, or flow"
		}
		if v6 && remote != "flow" && !strings.Contains(remote, ":") {
			return nil, fmt.Sprintf("options:remote_ip=%s: type %s expects an IPv6 address, or flow", remote, kind)
		}
		words = append(words, "remote="+remote)
		in, out := cmp.Or(option("in_key"), option("key")), cmp.Or(option("out_key"), option("key"))
		if in != out {
			return nil, fmt.Sprintf("options:in_key=%s and out_key=%s differ; expected one key", in, out)
		}
		if in != "" {
			words = append(words, "key="+in)
		}
		for _, o := range []struct{ key, word string }{{"local_ip", "local"}, {"tos", "tos"}, {"ttl", "ttl"}} {
			if v := option(o.key); v != "" && v != "flow" {
				words = append(words, o.word+"="+v)
			}
		}
		for _, o := range []struct{ key, word string }{{"csum", "csum"}, {"seq", "seq"}, {"df_default", "df"}} {
			if v := option(o.key); (v == "true" || v == "false") && (ours == "gre" || o.key == "df_default") {
				words = append(words, o.word+"="+map[string]string{"true": "on", "false": "off"}[v])
			}
		}
		for _, o := range []string{"erspan_ver", "erspan_idx", "erspan_dir", "erspan_hwid"} {
			if v := option(o); v != "" && ours == "erspan" {
				words = append(words, o+"="+v)
			}
		}
		if p := option("packet_type"); p != "" && p != "legacy_l2" {
			return nil, fmt.Sprintf("options:packet_type=%s: expected legacy_l2", p)
		}
		return append(words, bfdWords(r)...), ""
	}
}

// leastBFD is the least value of the options bfd_min_tx= and bfd_min_rx=, in milliseconds.
const leastBFD = 50

func bfdWords(r row) []string {
	if r.get("bfd", "enable") != "true" {
		return nil
	}
	return []string{
		"bfd=on",
		fmt.Sprintf("bfd_min_tx=%d", max(r.milliseconds("bfd", "min_tx", 100), leastBFD)), // defaults of ovs-vswitchd.conf.db(5)
		fmt.Sprintf("bfd_min_rx=%d", max(r.milliseconds("bfd", "min_rx", 1000), leastBFD)),
		fmt.Sprintf("bfd_mult=%d", r.milliseconds("bfd", "mult", 3)),
	}
}
