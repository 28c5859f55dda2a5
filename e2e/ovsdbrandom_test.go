// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/api"
)

// transactionSeed repeats a run.
var transactionSeed = flag.Uint64("transactions-seed", 1, "the seed of TestOVSDBRandom")

// Random transactions of genuine ovs-vsctl change bridges, ports, mirrors, queues and controllers, while
// ovsdb-server, control and engine are killed. After each batch all of them run again, and the switch
// must have what the rows say: no more, no less, with the same numbers in flows.
//
// WEFT_LONG=1 plays 1,000 transactions instead of 24.
func TestOVSDBRandom(t *testing.T) {
	t.Parallel()
	transactions := 24
	if os.Getenv("WEFT_LONG") != "" {
		transactions = 1000
	}
	l := newLab(t)
	h, far := l.Host("h"), l.Host("far")
	for i := range randomDevices {
		l.Wire(h, fmt.Sprint("p", i), far, fmt.Sprint("p", i), guestMTU)
	}
	l.Wire(h, "u0", far, "u0", underlayMTU)
	h.Address("u0", hostIP+"/24")
	g := &randomRows{ruled: newRuled(t, h), rand: rand.New(rand.NewPCG(*transactionSeed, 0))}
	kills := map[string]int{}
	for done := 0; done < transactions; {
		n := min(1+g.rand.IntN(6), transactions-done)
		done += n
		kills[g.batch(n)]++
		g.log = append(g.log, fmt.Sprint("-- ", done, " transactions"))
		g.agree()
	}
	t.Logf("%d transactions, batches by what was killed meanwhile: %v", transactions, kills)
}

const (
	randomDevices = 4 // veths of the host, p0 to p3
	randomPorts   = 5 // ports of each other kind
	randomBridges = 3
)

// randomRows makes transactions from the rows that the database has.
type randomRows struct {
	*ruled
	rand *rand.Rand
	log  []string
}

// batch commits n transactions, and kills a process in the middle of most batches. It returns the name
// of the killed process. ovs-vsctl does not wait for weftd in a batch with a kill.
func (g *randomRows) batch(n int) (killed string) {
	g.t.Helper()
	victims := map[string]func(){
		"ovsdb-server": func() { g.server.Kill() },
		"control":      func() { g.weft.Control().Kill() },
		"engine": func() {
			if pid := g.weft.EnginePID(); pid != 0 { // else the next engine starts just now
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
		},
	}
	killed = "nothing"
	if k := g.rand.IntN(len(victims) + 1); k < len(victims) {
		killed = slices.Sorted(maps.Keys(victims))[k]
	}
	for i, at := 0, g.rand.IntN(n); i < n; i++ {
		line := g.transaction(g.rows())
		words := append([]string{"ovs-vsctl", "--db=unix:" + g.dir + "/db.sock", "--timeout=60"}, strings.Fields(line)...)
		if killed == "nothing" || i > at && killed == "engine" {
			g.log = append(g.log, line)
			g.run(words...)
			continue
		}
		words = slices.Insert(words, 1, "--no-wait")
		if i != at {
			g.log = append(g.log, "--no-wait "+line)
			g.run(words...)
			continue
		}
		g.log = append(g.log, "--no-wait "+line+", "+killed+" is killed")
		ended := make(chan error)
		go func() {
			_, err := g.host.Try(g.command(words...)...)
			ended <- err
		}()
		time.Sleep(time.Duration(g.rand.IntN(60)) * time.Millisecond)
		victims[killed]()
		if err := <-ended; err != nil && killed != "ovsdb-server" {
			g.t.Fatalf("%s: %v", line, err)
		}
		if killed == "ovsdb-server" {
			g.serve(g.t)
		}
	}
	if killed == "control" {
		g.weft.Start()
	}
	return killed
}

// transaction returns a random change of the rows, as the words of one call of ovs-vsctl.
func (g *randomRows) transaction(d database) string {
	lines := []string{g.change(d)}
	if g.rand.IntN(3) == 0 { // a second change, of a bridge that the first one cannot have deleted
		if b := fmt.Sprint("br", g.rand.IntN(randomBridges)); d.named("Bridge", b) != nil && !strings.Contains(lines[0], b) {
			lines = append(lines, g.changeBridge(b))
		}
	}
	return strings.Join(lines, " -- ")
}

// change returns a change of one bridge or port.
func (g *randomRows) change(d database) string {
	br := fmt.Sprint("br", g.rand.IntN(randomBridges))
	if d.named("Bridge", br) == nil {
		return "add-br " + br + " -- " + g.changeBridge(br)
	}
	name, create := g.port()
	var vlans string
	switch g.rand.IntN(5) {
	case 0:
		vlans = " tag=7"
	case 1:
		vlans = " trunks=5,9"
	case 2:
		vlans = " tag=20 vlan_mode=native-untagged trunks=20,30"
	case 3:
		vlans = " tag=9 vlan_mode=access"
	}
	row := d.named("Interface", name)
	if row == nil {
		line := "add-port " + br + " " + name + vlans
		if create != "" {
			line += " -- set interface " + name + " " + create
		}
		return line
	}
	setVLANs := "clear port " + name + " tag trunks vlan_mode"
	if vlans != "" {
		setVLANs += " -- set port " + name + vlans
	}
	owner := d.bridgeOf(name)
	switch g.rand.IntN(10) {
	case 0:
		return "del-br " + br
	case 1, 2:
		return "del-port " + name
	case 3: // to another bridge, with other options
		return strings.TrimSpace("del-port " + name + " -- add-port " + br + " " + name + vlans + " -- set interface " + name + " external_ids:moved=1 " + create)
	case 4:
		return setVLANs
	case 5:
		n := 10*strings.IndexByte(randomKinds, name[0]) + int(name[1]-'0') // no two ports ask for one number
		return fmt.Sprintf("set interface %s ofport_request=%d", name, 100*(1+g.rand.IntN(9))+n)
	case 6:
		if row.get("type") == "patch" {
			return setVLANs
		}
		return fmt.Sprintf("set interface %s ingress_policing_rate=%d ingress_policing_burst=100", name, g.rand.IntN(3)*1000)
	case 7: // mirror
		id := strings.Fields("output_port=@p output_vlan=900")[g.rand.IntN(2)]
		return "-- --id=@p get port " + name + " -- --id=@m create mirror name=m " + strings.Fields("select_all=true select_src_port=@p")[g.rand.IntN(2)] + " " + id + " -- set bridge " + owner + " mirrors=@m"
	case 8:
		if row.get("type") == "patch" {
			return setVLANs
		}
		return fmt.Sprintf("-- --id=@q create queue other_config:max-rate=%d -- --id=@qos create qos type=linux-htb queues:%d=@q -- set port %s qos=@qos", 1e6*(1+g.rand.IntN(5)), g.rand.IntN(4), name)
	}
	return "clear port " + name + " qos -- clear bridge " + owner + " mirrors"
}

// randomKinds has the first letters of ports' names: a veth, an internal port, a patch port, VXLAN, Geneve,
// GRE, vhost-user, a device that is not there, a type that is not there.
const randomKinds = "ptaxgrvno"

// port returns the name of a port, and the columns of its row in table Interface.
func (g *randomRows) port() (name, create string) {
	kind := randomKinds[g.rand.IntN(len(randomKinds))]
	n := g.rand.IntN(randomPorts)
	if kind == 'p' {
		n = g.rand.IntN(randomDevices)
	}
	key := 10*n + g.rand.IntN(10) // tunnels of one kind differ in their keys
	name = fmt.Sprintf("%c%d", kind, n)
	switch kind {
	case 't':
		create = fmt.Sprintf("type=internal mtu_request=%d", 1400+g.rand.IntN(3))
	case 'a':
		create = fmt.Sprintf("type=patch options:peer=a%d", n^1)
	case 'x':
		create = fmt.Sprintf("type=vxlan options:remote_ip=%s options:key=%d", peerIP, key)
	case 'g':
		create = fmt.Sprintf("type=geneve options:remote_ip=%s options:key=%d", peerIP, key)
	case 'r':
		create = fmt.Sprintf("type=gre options:remote_ip=%s options:key=%d", peerIP, key)
	case 'v':
		create = fmt.Sprintf("type=dpdkvhostuserclient options:vhost-server-path=%s/%s.sock", g.dir, name)
	case 'o':
		create = "type=lisp options:remote_ip=" + peerIP
	}
	return name, create
}

// changeBridge returns a change of a bridge's settings.
func (g *randomRows) changeBridge(br string) string {
	switch g.rand.IntN(5) {
	case 0:
		return fmt.Sprintf("set-controller %s tcp:127.0.0.1:%d", br, 1+g.rand.IntN(3))
	case 1:
		return "del-controller " + br
	case 2:
		return "set-fail-mode " + br + " secure"
	case 3:
		return "del-fail-mode " + br
	}
	return fmt.Sprintf("set bridge %s other_config:datapath-id=%016x", br, 0xab0+g.rand.IntN(2)+16*int(br[2]))
}

// agree waits until weftd has carried out the rows, and compares the switch with them.
func (g *randomRows) agree() {
	g.t.Helper()
	g.vsctl("set open_vswitch . external_ids:turn=" + fmt.Sprint(g.rand.IntN(1e9))) // returns when cur_cfg is next_cfg
	var last error
	for end := time.Now().Add(2 * settle); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		rows := g.rows()
		var show api.Show
		g.weft.WeftJSON(&show, "show")
		if last = rows.compare(&show); last == nil {
			return
		}
	}
	g.t.Fatalf("%v\nafter:\n%s\nweftd:\n%s", last, strings.Join(g.log, "\n"), g.weft.Control().Output())
}

// database has the rows of some tables.
type database map[string][]ovsRow

// ovsRow is a row, as ovs-vsctl's JSON has it.
type ovsRow map[string]any

var randomTables = []string{"Open_vSwitch", "Bridge", "Port", "Interface", "Mirror", "QoS", "Queue", "Controller"}

// rows reads the tables in one transaction.
func (g *randomRows) rows() database {
	g.t.Helper()
	var words []string
	for _, table := range randomTables {
		words = append(words, "-- list "+table)
	}
	text := g.run(append([]string{"ovs-vsctl", "--db=unix:" + g.dir + "/db.sock", "--timeout=60", "--no-wait", "--format=json"}, strings.Fields(strings.Join(words, " "))...)...)
	decoder := json.NewDecoder(strings.NewReader(text))
	d := database{}
	for _, table := range randomTables {
		var list struct {
			Headings []string `json:"headings"`
			Data     [][]any  `json:"data"`
		}
		if err := decoder.Decode(&list); err != nil {
			g.t.Fatalf("ovs-vsctl list %s: %v in\n%s", table, err, text)
		}
		for _, values := range list.Data {
			r := ovsRow{}
			for i, column := range list.Headings {
				r[column] = values[i]
			}
			d[table] = append(d[table], r)
		}
	}
	return d
}

// elements returns the elements of a column. A map's elements are KEY=VALUE.
func (r ovsRow) elements(column string) (list []string) {
	pair, is := r[column].([]any)
	if r[column] == nil { // no row, or no column
		return nil
	}
	if !is {
		return []string{fmt.Sprint(r[column])}
	}
	if pair[0] == "uuid" {
		return []string{fmt.Sprint(pair[1])}
	}
	for _, element := range pair[1].([]any) {
		if values, is := element.([]any); is && pair[0] == "map" {
			if ref, is := values[1].([]any); is {
				values[1] = ref[1]
			}
			list = append(list, fmt.Sprint(values[0], "=", values[1]))
		} else {
			list = append(list, ovsRow{"": element}.elements("")...)
		}
	}
	slices.Sort(list)
	return list
}

// get returns a column as one word, or "".
func (r ovsRow) get(column string) string { return strings.Join(r.elements(column), ",") }

// key returns the value of a key of a column, or "".
func (r ovsRow) key(column, key string) string {
	for _, pair := range r.elements(column) {
		if value, is := strings.CutPrefix(pair, key+"="); is {
			return value
		}
	}
	return ""
}

func (d database) named(table, name string) ovsRow {
	for _, r := range d[table] {
		if r.get("name") == name {
			return r
		}
	}
	return nil
}

func (d database) row(table, id string) ovsRow {
	for _, r := range d[table] {
		if r.get("_uuid") == id {
			return r
		}
	}
	return nil
}

// bridgeOf returns the name of the bridge that has a port.
func (d database) bridgeOf(port string) string {
	id := d.named("Port", port).get("_uuid")
	for _, b := range d["Bridge"] {
		if slices.Contains(b.elements("ports"), id) {
			return b.get("name")
		}
	}
	return ""
}

// compare returns how the switch differs from the rows.
func (d database) compare(show *api.Show) error {
	var differences []error
	differ := func(format string, args ...any) { differences = append(differences, fmt.Errorf(format, args...)) }
	bridges, ports := map[string]api.Bridge{}, map[string]*api.Port{}
	for _, b := range show.Bridges {
		bridges[b.Name] = b
	}
	for i := range show.Ports {
		ports[show.Ports[i].Name] = &show.Ports[i]
	}
	root := d["Open_vSwitch"][0]
	if root.get("cur_cfg") != root.get("next_cfg") {
		differ("cur_cfg is %s, next_cfg %s", root.get("cur_cfg"), root.get("next_cfg"))
	}
	for _, r := range d["Bridge"] {
		name, failMode := r.get("name"), r.get("fail_mode")
		b, there := bridges[name]
		delete(bridges, name)
		if failMode == "" {
			failMode = "standalone"
		}
		var controllers []string
		for _, id := range r.elements("controller") {
			controllers = append(controllers, d.row("Controller", id).get("target"))
		}
		asked := r.key("other_config", "datapath-id")
		switch {
		case !there:
			differ("bridge %s is missing", name)
		case b.FailMode != failMode || !slices.Equal(b.Controllers, controllers):
			differ("bridge %s has fail mode %s, controllers %v, want %s, %v", name, b.FailMode, b.Controllers, failMode, controllers)
		case b.DatapathID != r.get("datapath_id") || asked != "" && b.DatapathID != asked:
			differ("bridge %s has the datapath ID %s, its row %s and asks for %s", name, b.DatapathID, r.get("datapath_id"), asked)
		}
	}
	for name := range bridges {
		differ("bridge %s is in no row", name)
	}
	for _, r := range d["Port"] {
		name := r.get("name")
		if why := d.comparePort(r, ports[name]); why != nil {
			differ("port %s: %w", name, why)
		}
		delete(ports, name)
	}
	for _, r := range d["Mirror"] {
		name := "mirror-" + r.get("_uuid")
		p := ports[name]
		delete(ports, name)
		if r.get("output_port") == "" && r.get("output_vlan") == "" {
			continue // its output was deleted
		}
		if p == nil {
			differ("%s is missing", name)
			continue
		}
		for option, want := range map[string]string{"output_port": d.row("Port", r.get("output_port")).get("name"), "output_vlan": r.get("output_vlan"),
			"select_src_port": d.row("Port", r.get("select_src_port")).get("name"), "select_all": map[string]string{"true": "on"}[r.get("select_all")]} {
			if got := p.Options[option]; got != want {
				differ("%s has %s=%s, want %q", name, option, got, want)
			}
		}
	}
	for name := range ports {
		if !strings.HasPrefix(name, "uplink-") { // an uplink that weftd has made for tunnels
			differ("port %s is in no row", name)
		}
	}
	return errors.Join(differences...)
}

// comparePort returns how a port differs from its rows.
func (d database) comparePort(r ovsRow, p *api.Port) error {
	i := d.row("Interface", r.get("interfaces"))
	name, kind, bridge := r.get("name"), i.get("type"), d.bridgeOf(r.get("name"))
	if kind == "lisp" || name[0] == 'n' { // not to be had
		if p != nil || i.get("error") == "" || i.get("ofport") != "-1" {
			return fmt.Errorf("is %v, with the error %q and ofport %s", p, i.get("error"), i.get("ofport"))
		}
		return nil
	}
	if p == nil || i.get("error") != "" {
		return fmt.Errorf("is %v, with the error %q", p, i.get("error"))
	}
	options := map[string]string{"bridge": bridge, "tag": r.get("tag"), "trunks": r.get("trunks"), "vlan_mode": r.get("vlan_mode"),
		"ofport_request": i.get("ofport_request"), "ingress_policing_rate": i.get("ingress_policing_rate"), "qos": d.queues(r), "mtu": i.get("mtu_request")}
	if options["ingress_policing_rate"] == "0" {
		options["ingress_policing_rate"] = ""
	}
	wantType := map[string]string{"": "device", "internal": "tap", "dpdkvhostuserclient": "vhost-user"}[kind]
	switch {
	case name == bridge:
		wantType = "local"
	case kind == "patch":
		wantType, options["peer"] = kind, i.key("options", "peer")
	case kind == "vxlan" || kind == "geneve":
		wantType, options["remote"], options["vni"] = kind, i.key("options", "remote_ip"), i.key("options", "key")
	case kind == "gre":
		wantType, options["remote"], options["key"] = kind, i.key("options", "remote_ip"), i.key("options", "key")
	case kind == "dpdkvhostuserclient":
		options["path"] = i.key("options", "vhost-server-path")
	}
	if p.Type != wantType || fmt.Sprint(p.InFlows()) != i.get("ofport") {
		return fmt.Errorf("has type %s and number %d, want %s, %s", p.Type, p.InFlows(), wantType, i.get("ofport"))
	}
	for option, want := range options {
		if got := p.Options[option]; got != want {
			return fmt.Errorf("has %s=%s, want %q", option, got, want)
		}
	}
	if want := i.get("ofport_request"); want != "" && want != i.get("ofport") {
		return fmt.Errorf("has number %s, asks for %s", i.get("ofport"), want)
	}
	return nil
}

// queues returns the option qos= of a port.
func (d database) queues(r ovsRow) string {
	qos := d.row("QoS", r.get("qos"))
	if qos == nil {
		return ""
	}
	number, id, _ := strings.Cut(qos.get("queues"), "=")
	return number + ":" + d.row("Queue", id).key("other_config", "max-rate")
}
