// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/api"
)

// The changes in an update2 apply to sets, maps and single atoms.
func TestUpdates(t *testing.T) {
	s := &schema{}
	if err := json.Unmarshal([]byte(`{"version":"8","tables":{"Bridge":{"columns":{
		"ports":{"type":{"key":{"type":"uuid"},"min":0,"max":"unlimited"}},
		"name":{"type":"string"},
		"tag":{"type":{"key":"integer","min":0,"max":1}},
		"other_config":{"type":{"key":"string","value":"string","min":0,"max":"unlimited"}}}}}}`), s); err != nil {
		t.Fatal(err)
	}
	rows := tables{}
	for _, text := range []string{
		`{"Bridge":{"a":{"initial":{"name":"br0","ports":["uuid","1"],"other_config":["map",[["x","1"],["y","2"]]],"tag":5}},"b":{"insert":{"name":"br1"}}}}`,
		`{"Bridge":{"a":{"modify":{"ports":["set",[["uuid","1"],["uuid","2"],["uuid","3"]]],"other_config":["map",[["x","1"],["y","3"],["z","4"]]],"tag":["set",[]]}}}}`,
		`{"Bridge":{"a":{"modify":{"ports":["uuid","3"],"name":"br9"}},"b":{"delete":null}}}`,
	} {
		var u tableUpdates
		if err := json.Unmarshal([]byte(text), &u); err != nil {
			t.Fatal(err)
		}
		if err := rows.apply(s, u); err != nil {
			t.Fatal(err)
		}
	}
	r := rows["Bridge"]["a"]
	if _, tagged := r.number("tag"); tagged || r.text("name") != "br9" || !slices.Equal(r.refs("ports"), []uuid{"2"}) ||
		r.get("other_config", "x") != "" || r.get("other_config", "y") != "3" || r.get("other_config", "z") != "4" || rows["Bridge"]["b"] != nil {
		t.Errorf("rows: %v", rows)
	}
	back, err := json.Marshal(value{atoms: []any{uuid("1"), int64(3), "x", true}})
	if v, err2 := decodeValue(back); err != nil || err2 != nil || !v.equal(value{atoms: []any{"x", true, uuid("1"), int64(3)}}) {
		t.Errorf("%s: %v %v %v", back, v, err, err2)
	}
	for _, wrong := range []string{`{}`, `["map",[["a"]]]`, `["set",[[1,2]]]`, `null`, `[`} {
		if v, err := decodeValue(json.RawMessage(wrong)); err == nil {
			t.Errorf("%s is the value %v", wrong, v)
		}
	}
}

func TestWords(t *testing.T) {
	options := func(m map[string]string) value { return mapOf(m) }
	for _, c := range []struct {
		row  row
		want string
	}{
		{row{}, "type=device dev=p"},
		{row{"name": one("br0"), "type": one("internal"), "mtu_request": one(int64(1400))}, "type=local mtu=1400"},
		{row{"name": one("br0")}, "type=local"},
		{row{"type": one("internal"), "mac": one("02:00:00:00:00:01")}, "type=tap dev=p mac=02:00:00:00:00:01"},
		{row{"type": one("patch"), "options": options(map[string]string{"peer": "q"}), "ofport_request": one(int64(7))}, "type=patch peer=q ofport_request=7"},
		{row{"type": one("patch")}, "! options:peer is missing"},
		{row{"type": one("dpdkvhostuserclient"), "options": options(map[string]string{"vhost-server-path": "/x"}), "ingress_policing_rate": one(int64(10)),
			"ingress_policing_burst": one(int64(5))}, "type=vhost-user mode=client path=/x queues=128 ingress_policing_rate=10 ingress_policing_burst=5"},
		{row{"type": one("dpdkvhostuser"), "ingress_policing_burst": one(int64(5))}, "type=vhost-user mode=server path=/run/p queues=128"},
		{row{"type": one("geneve"), "options": options(map[string]string{"remote_ip": "192.0.2.1", "key": "flow", "csum": "true"})},
			"type=geneve split_horizon=off remote=192.0.2.1 vni=flow udp_csum=on"},
		{row{"type": one("vxlan"), "options": options(map[string]string{"remote_ip": "flow", "local_ip": "192.0.2.9", "exts": "gbp"}),
			"bfd": options(map[string]string{"enable": "true", "min_tx": "10"})},
			"type=vxlan split_horizon=off remote=flow vni=0 local=192.0.2.9 gbp=on bfd=on bfd_min_tx=50 bfd_min_rx=1000 bfd_mult=3"},
		{row{"type": one("vxlan"), "options": options(map[string]string{"remote_ip": "192.0.2.1", "in_key": "1", "out_key": "2"})}, "! options:in_key=1"},
		{row{"type": one("vxlan")}, "! options:remote_ip is missing"},
		{row{"type": one("gtpu")}, "! type gtpu: there is none; expected one of dpdkvhostuser, "},
		{row{"type": one("gre")}, "! options:remote_ip is missing"},
		{row{"type": one("gre"), "options": options(map[string]string{"remote_ip": "192.0.2.1"})}, "type=gre split_horizon=off remote=192.0.2.1"},
		{row{"type": one("gre"), "options": options(map[string]string{"remote_ip": "192.0.2.1", "in_key": "5", "out_key": "5", "csum": "true", "seq": "true", "ttl": "9"})},
			"type=gre split_horizon=off remote=192.0.2.1 key=5 ttl=9 csum=on seq=on"},
		{row{"type": one("gre"), "options": options(map[string]string{"remote_ip": "192.0.2.1", "out_key": "5"})}, "! options:in_key= and out_key=5 differ"},
		{row{"type": one("gre"), "options": options(map[string]string{"remote_ip": "192.0.2.1", "packet_type": "ptap"})}, "! options:packet_type=ptap: expected legacy_l2"},
		{row{"type": one("ip6gre"), "options": options(map[string]string{"remote_ip": "2001:db8::1", "key": "flow"})},
			"type=gre split_horizon=off remote=2001:db8::1 key=flow"},
		{row{"type": one("ip6erspan"), "options": options(map[string]string{"remote_ip": "192.0.2.1"})}, "! options:remote_ip=192.0.2.1: type ip6erspan expects an IPv6 address"},
		{row{"type": one("erspan"), "options": options(map[string]string{"remote_ip": "192.0.2.1", "key": "3", "erspan_ver": "2", "erspan_dir": "1", "erspan_hwid": "0x7", "csum": "true"})},
			"type=erspan split_horizon=off remote=192.0.2.1 key=3 erspan_ver=2 erspan_dir=1 erspan_hwid=0x7"},
	} {
		if c.row["name"].atoms == nil {
			c.row["name"] = one("p")
		}
		words, problem := interfaceWords(c.row, "br0", "/run")
		if got := strings.Join(words, " "); got != c.want && (problem == "" || !strings.HasPrefix("! "+problem, c.want)) {
			t.Errorf("%v\n%s %s, want\n%s", c.row, got, problem, c.want)
		}
	}
	rows := tables{
		"QoS": {"q": {"type": one("linux-htb"), "queues": value{pairs: map[any]any{int64(1): uuid("b"), int64(0): uuid("a"), int64(7): uuid("c")}}}},
		"Queue": {"a": {"other_config": options(map[string]string{"max-rate": "1000000"})},
			"b": {"other_config": options(map[string]string{"max-rate": "2000000", "burst": "9000"})}, "c": {}},
	}
	if got := queueWords(rows, row{"qos": one(uuid("q"))}); len(got) != 1 || got[0] != "qos=0:1000000,1:2000000:9000" {
		t.Errorf("queues: %v", got)
	}
	rows["Port"] = map[uuid]row{"1": {"name": one("a")}, "2": {"name": one("b")}, "3": {"name": one("c")}}
	rows["Mirror"] = map[uuid]row{"m": {"name": one("x"), "select_src_port": listOf([]uuid{"2", "1"}), "output_port": one(uuid("3")), "snaplen": one(int64(96)),
		"select_vlan": listOf([]int64{3, 2})}, "n": {"select_all": one(true), "output_vlan": one(int64(9))}}
	for id, want := range map[uuid]string{
		"m": "mirror-m bridge=br0 output_port=c select_src_port=a,b select_vlan=2-3 snaplen=96 type=mirror",
		"n": "mirror-n bridge=br0 output_vlan=9 select_all=on type=mirror",
	} {
		if p := mirrorPort(rows, "br0", id); p.name+" "+strings.Join(p.words, " ") != want {
			t.Errorf("mirror %s: %s %v, want %s", id, p.name, p.words, want)
		}
	}
	rows["sFlow"] = map[uuid]row{"s": {"targets": listOf([]string{"192.0.2.2:1", "192.0.2.1", "2001:db8::1"}), "sampling": one(int64(9)), "header": one(int64(64)), "agent": one("eth0"), "polling": one(int64(0))}}
	rows["IPFIX"] = map[uuid]row{"i": {"targets": listOf([]string{"192.0.2.1:9"}), "obs_domain_id": one(int64(5)), "other_config": options(map[string]string{"enable-output-sampling": "false", "virtual_obs_id": "x"})},
		"none": {}}
	rows["Bridge"] = map[uuid]row{"b": {"sflow": one(uuid("s")), "ipfix": one(uuid("i"))}, "c": {}}
	rows["Flow_Sample_Collector_Set"] = map[uuid]row{"f": {"bridge": one(uuid("b")), "id": one(int64(7)), "ipfix": one(uuid("i"))},
		"g": {"bridge": one(uuid("c")), "id": one(int64(0)), "ipfix": one(uuid("none"))}, "h": {"bridge": one(uuid("b")), "id": one(int64(8))}}
	var exporters []string
	for _, id := range []uuid{"b", "c"} {
		for _, p := range exporterPorts(rows, "br-"+string(id), id) {
			exporters = append(exporters, p.table+" "+p.name+" "+strings.Join(p.words, " "))
		}
	}
	if want := []string{
		"sFlow sflow-b agent=eth0 bridge=br-b header=64 polling=0 sampling=9 targets=192.0.2.1:6343,192.0.2.2:1,[2001:db8::1]:6343 type=sflow",
		"IPFIX ipfix-b bridge=br-b obs_domain_id=5 output=off targets=192.0.2.1:9 type=ipfix virtual_obs_id=x",
		"Flow_Sample_Collector_Set ipfix-f bridge=br-b collector_set=7 obs_domain_id=5 output=off targets=192.0.2.1:9 type=ipfix virtual_obs_id=x",
		"Flow_Sample_Collector_Set ipfix-g bridge=br-c collector_set=0 type=ipfix",
	}; !slices.Equal(exporters, want) {
		t.Errorf("exporters %q\nwant %q", exporters, want)
	}
	if got := ranges([]int64{1, 2, 3, 7, 9, 10}); got != "1-3,7,9-10" {
		t.Errorf("ranges: %s", got)
	}
	for text, want := range map[string]string{"tcp:192.0.2.1": "tcp:192.0.2.1:6653", "tcp:192.0.2.1:1": "tcp:192.0.2.1:1", "ssl:[::1]": "ssl:[::1]:6653", "ssl:[::1]:1": "ssl:[::1]:1"} {
		if got := withPort(text); got != want {
			t.Errorf("%s with a port: %s", text, got)
		}
	}
}

// fakeSwitch is a Switch with bridges and ports, but without devices. It refuses names that are in
// "broken".
type fakeSwitch struct {
	bridges map[string]*api.Bridge
	ports   map[string]*api.Port
	broken  map[string]bool
	log     []string
}

func (f *fakeSwitch) note(words ...any) {
	f.log = append(f.log, strings.TrimSpace(fmt.Sprintln(words...)))
}

func (f *fakeSwitch) SetCertificates(*SSL) {}

func (f *fakeSwitch) Bridges() (list []api.Bridge) {
	for _, name := range slices.Sorted(maps.Keys(f.bridges)) {
		list = append(list, *f.bridges[name])
	}
	return list
}

func (f *fakeSwitch) AddBridge(add api.AddBridge) error {
	f.note("add-br", add.Name)
	if f.broken[add.Name] {
		return errors.New("broken bridge")
	}
	f.bridges[add.Name] = &api.Bridge{Name: add.Name, DatapathID: add.DatapathID, FailMode: add.FailMode, Controllers: add.Controllers}
	return nil
}

func (f *fakeSwitch) ModifyBridge(name string, mod api.ModBridge) error {
	f.note("mod-br", name, mod.FailMode, *mod.Controllers)
	f.bridges[name].FailMode, f.bridges[name].Controllers = mod.FailMode, *mod.Controllers
	return nil
}

func (f *fakeSwitch) DeleteBridge(name string) error {
	f.note("del-br", name)
	delete(f.bridges, name)
	maps.DeleteFunc(f.ports, func(_ string, p *api.Port) bool { return p.Options["bridge"] == name })
	return nil
}

func (f *fakeSwitch) Ports() (list []api.Port) {
	for _, name := range slices.Sorted(maps.Keys(f.ports)) {
		list = append(list, *f.ports[name])
	}
	return list
}

func (f *fakeSwitch) ChangePorts(change func(PortChanges)) { change(f) }

func (f *fakeSwitch) Add(name string, words []string, onFailure func(error)) error {
	f.note("add-port", name)
	if f.broken[name] && name[len(name)-1]%2 == 1 {
		onFailure(errors.New(name + " is broken at last"))
		return nil
	}
	if f.broken[name] {
		return errors.New(name + " is broken")
	}
	p := &api.Port{Name: name, State: "up", Options: map[string]string{}}
	for _, w := range words {
		key, v, _ := strings.Cut(w, "=")
		p.Options[key] = v
	}
	p.Type, p.Number = p.Options["type"], uint32(len(f.ports)+1)
	f.ports[name] = p
	return nil
}

func (f *fakeSwitch) Modify(name string, words []string, _ func(error)) error {
	f.note("mod-port", name, words)
	for _, w := range words {
		key, v, _ := strings.Cut(w, "=")
		if key == "dev" {
			return errors.New("dev= cannot change")
		}
		if f.ports[name].Options[key] = v; v == "" {
			delete(f.ports[name].Options, key)
		}
	}
	return nil
}

func (f *fakeSwitch) Delete(name string) error {
	f.note("del-port", name)
	delete(f.ports, name)
	return nil
}

func (f *fakeSwitch) Prefer(bridge, name string, number uint32) {
	f.note("prefer", bridge, name, number)
}

func (f *fakeSwitch) Controllers(string) map[string]Controller { return nil }

// fakeKernel is a host whose routes all lead through u0.
type fakeKernel struct{}

func (fakeKernel) devices() map[string]device      { return nil }
func (fakeKernel) routeDevice(_ netip.Addr) string { return "u0" }
func (fakeKernel) addressed(dev string) bool       { return dev == "underlay" }
func (fakeKernel) setMTU(string, int) error        { return nil }

// Tunnels leave through the device of the route to their remote. If flows choose the remotes, tunnels
// may also leave through any bridge with addresses.
func TestTunnelDevices(t *testing.T) {
	c := &Client{kernel: fakeKernel{}}
	m := model{bridges: []bridge{{name: "br0"}, {name: "bare"}, {name: "underlay"}}, ports: []port{{name: "p", bridge: "br0", words: []string{"type=tap"}}}}
	for _, step := range []struct{ remote, want string }{{"192.0.2.1", "u0"}, {"flow", "u0 underlay"}} {
		m.ports[0].words = []string{"type=geneve", "remote=" + step.remote}
		if got := strings.Join(c.tunnelDevices(&m), " "); got != step.want {
			t.Errorf("remote=%s: %q, expected %q", step.remote, got, step.want)
		}
	}
	m.ports[0].bridge = "underlay" // a bridge is no uplink of its own tunnels
	if got := strings.Join(c.tunnelDevices(&m), " "); got != "u0" {
		t.Errorf("a tunnel of the bridge itself: %q", got)
	}
}

// A tunnel whose route leaves through a device without an uplink asks for one, once in retryInterval.
func TestTunnelLacksUplink(t *testing.T) {
	c := New(Setup{})
	present := map[string]*api.Port{"gre0": {Type: "gre", Remotes: []api.Remote{{State: "up", Device: "br-ex"}}}}
	now := time.Unix(1000, 0)
	for _, want := range []bool{true, false} {
		if got := c.lacksUplink(present, now); got != want {
			t.Errorf("without an uplink: %t, expected %t", got, want)
		}
	}
	now = now.Add(retryInterval)
	present["uplink-br-ex"] = &api.Port{Type: "uplink", Options: map[string]string{"dev": "br-ex"}}
	if c.lacksUplink(present, now) {
		t.Error("the device has an uplink")
	}
	delete(present, "uplink-br-ex")
	if !c.lacksUplink(present, now) {
		t.Error("no second attempt")
	}
}

// linux-noop asks for nothing, so the log says nothing about it.
func TestIgnoredQoS(t *testing.T) {
	var subjects []string
	noteIgnored(tables{"QoS": {"a": {"type": one("linux-noop")}, "b": {"type": one("linux-sfq")}}}, func(subject, _ string) { subjects = append(subjects, subject) })
	if !slices.Equal(subjects, []string{"qos linux-sfq"}) {
		t.Errorf("warnings of %q", subjects)
	}
}

// The switch agrees with the model after one pass, and a second pass changes nothing. A port that fails
// does not keep the others from being added, and is not tried again at every change.
func TestReconcile(t *testing.T) {
	f := &fakeSwitch{bridges: map[string]*api.Bridge{}, ports: map[string]*api.Port{}, broken: map[string]bool{"bad": true}}
	c := New(Setup{Switch: f, Log: slog.New(slog.DiscardHandler)})
	c.kernel = fakeKernel{}
	now := time.Unix(1000, 0)
	pass := func(m *model, want ...string) {
		t.Helper()
		f.log = nil
		c.reconcile(m, now)
		if !slices.Equal(f.log, want) {
			t.Errorf("changes\n%s\nwant\n%s", strings.Join(f.log, "\n"), strings.Join(want, "\n"))
		}
	}
	br0 := bridge{name: "br0", failMode: "secure"}
	bad := port{name: "bad", words: []string{"bridge=br0", "type=device"}}
	tap := port{name: "t", words: []string{"bridge=br0", "dev=t", "tag=1", "type=tap"}}
	f.ports["own"] = &api.Port{Name: "own", Type: "tap", Options: map[string]string{"type": "tap"}}
	f.ports["wire"] = &api.Port{Name: "wire", Type: "af_xdp", Options: map[string]string{"type": "af_xdp", "dev": "u1"}}
	f.bridges["old"] = &api.Bridge{Name: "old"}
	m := &model{bridges: []bridge{br0}, ports: []port{bad, tap}}
	pass(m, "del-port own", "del-br old", "add-br br0", "add-port bad", "add-port t")
	pass(m)
	now = now.Add(retryInterval)
	pass(m, "add-port bad")

	m.ports[1].words = []string{"bridge=br0", "dev=t", "tag=2", "type=tap"}
	pass(m, "mod-port t [tag=2]")
	m.ports[1].words = []string{"bridge=br0", "dev=t2", "tag=2", "type=tap"}
	pass(m, "mod-port t [dev=t2]", "del-port t", "add-port t")
	m.ports[1].words = []string{"bridge=br0", "peer=q", "type=patch"}
	pass(m, "del-port t", "add-port t")
	m.ports[1].words = []string{"bridge=br0", "remote=192.0.2.1", "type=vxlan", "vni=0"}
	pass(m, "del-port t", "add-port uplink-u0", "add-port t")
	m.bridges[0].controllers = []string{"tcp:192.0.2.1:6653"}
	pass(m, "mod-br br0 secure [tcp:192.0.2.1:6653]")
	m.bridges[0].datapathID = "aa"
	pass(m, "del-br br0", "add-br br0", "add-port t")
	pass(&model{}, "del-port t", "del-br br0", "del-port uplink-u0")
	if len(c.failed) != 0 || f.ports["wire"] == nil {
		t.Errorf("failures %v, ports %v", c.failed, f.ports)
	}
}

// The columns of an interface have the speed and duplex of its device.
func TestLinkColumns(t *testing.T) {
	for _, c := range []struct {
		link   *api.Link
		speed  value
		duplex value
	}{
		{nil, none(), none()},
		{&api.Link{}, none(), none()},
		{&api.Link{Mbps: 50_000, Duplex: "half"}, one(int64(50_000_000_000)), one("half")},
	} {
		columns := interfaceColumns(&api.Port{Name: "p", Type: "tap", State: "up", Link: c.link}, nil)
		if !columns["link_speed"].equal(c.speed) || !columns["duplex"].equal(c.duplex) {
			t.Errorf("%+v: link_speed %v, duplex %v", c.link, columns["link_speed"], columns["duplex"])
		}
	}
}

// The ports of a bridge that cannot be added get the bridge's reason. They are added as soon as the
// bridge is.
func TestPortsOfAMissingBridge(t *testing.T) {
	f := &fakeSwitch{bridges: map[string]*api.Bridge{}, ports: map[string]*api.Port{}, broken: map[string]bool{"br0": true}}
	c := New(Setup{Switch: f, Log: slog.New(slog.DiscardHandler)})
	c.kernel = fakeKernel{}
	now := time.Unix(1000, 0)
	m := &model{bridges: []bridge{{name: "br0"}}, ports: []port{{name: "br0", bridge: "br0", words: []string{"bridge=br0", "type=local"}}}}
	c.reconcile(m, now)
	if failed := c.failed["br0"]; failed == nil || failed.reason != c.bridgeProblem["br0"] || failed.reason == "" {
		t.Errorf("failure %+v of the port, bridge %q", failed, c.bridgeProblem["br0"])
	}
	f.broken = nil
	c.reconcile(m, now)
	if len(c.failed) != 0 || f.ports["br0"] == nil {
		t.Errorf("failures %v, ports %v", c.failed, f.ports)
	}
}

// After any sequence of models and failures, the switch has exactly the ports and bridges of the last
// model, once nothing fails any more.
func TestReconcileRandom(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 33))
		f := &fakeSwitch{bridges: map[string]*api.Bridge{}, ports: map[string]*api.Port{}}
		c := New(Setup{Switch: f, Log: slog.New(slog.DiscardHandler)})
		c.kernel = fakeKernel{}
		now := time.Unix(1000, 0)
		var m model
		for range 5 {
			m = model{}
			for b := range r.IntN(3) {
				d := bridge{name: fmt.Sprint("br", b), failMode: []string{"secure", "standalone"}[r.IntN(2)]}
				if r.IntN(3) == 0 {
					d.datapathID = fmt.Sprint(1 + r.IntN(2))
				}
				m.bridges = append(m.bridges, d)
				for p := range r.IntN(5) {
					words := []string{"bridge=" + d.name, []string{"dev=x", "type=patch", "type=tap"}[r.IntN(3)], fmt.Sprint("tag=", r.IntN(2))}
					if words[1] == "dev=x" {
						words = append(words, "type=device")
					}
					slices.Sort(words)
					m.ports = append(m.ports, port{name: fmt.Sprint("p", b, p), words: words})
				}
			}
			f.broken = map[string]bool{fmt.Sprint("p", r.IntN(3), r.IntN(5)): r.IntN(2) == 0}
			if r.IntN(4) == 0 { // simulates a restart of weftd
				c = New(Setup{Switch: f, Log: slog.New(slog.DiscardHandler)})
				c.kernel = fakeKernel{}
			}
			c.reconcile(&m, now)
		}
		f.broken = nil
		c.reconcile(&m, now.Add(2*retryInterval))
		var got, want []string
		for _, b := range f.Bridges() {
			got = append(got, b.Name+" "+b.FailMode)
		}
		for _, p := range f.Ports() {
			var words []string
			for key, v := range p.Options {
				words = append(words, key+"="+v)
			}
			slices.Sort(words)
			got = append(got, fmt.Sprint(p.Name, words))
		}
		for _, b := range m.bridges {
			want = append(want, b.name+" "+b.failMode)
		}
		for _, p := range m.ports {
			want = append(want, fmt.Sprint(p.name, p.words))
		}
		if !slices.Equal(got, want) || len(c.failed) != 0 {
			t.Fatalf("seed %d: the switch has\n%s\nwant\n%s\nfailures %v", seed, strings.Join(got, "\n"), strings.Join(want, "\n"), c.failed)
		}
	}
}

// A row in table Port with several interfaces is a bond with members. If the bond is refused, each
// member gets its error.
func TestBondRows(t *testing.T) {
	for _, c := range []struct {
		row  row
		want string
	}{
		{row{"name": one("bond0"), "tag": one(int64(5)), "bond_updelay": one(int64(100)), "other_config": mapOf(map[string]string{"bond-primary": "e1"})},
			"bond0 bond_mode=active-backup bond_primary=e1 bond_updelay=100 bridge=br0 tag=5 type=bond; e1 bond=bond0 bridge=br0 dev=e1 type=device; e2 bond=bond0 bridge=br0 dev=e2 type=device"},
		{row{"name": one("bond0"), "lacp": one("active"), "bond_mode": one("balance-tcp"), "other_config": mapOf(map[string]string{"lacp-time": "fast",
			"lacp-system-id": "02:00:00:00:00:01", "lacp-system-priority": "70000", "lacp-fallback-ab": "true"})},
			"bond0 bond_mode=balance-tcp bridge=br0 lacp=active lacp_fallback_ab=on lacp_system_id=02:00:00:00:00:01 lacp_time=fast type=bond; " +
				"e1 bond=bond0 bridge=br0 dev=e1 lacp_aggregation_key=3 lacp_port_id=9 type=device; e2 bond=bond0 bridge=br0 dev=e2 type=device"},
		{row{"name": one("bond0"), "bond_mode": one("balance-tcp")}, "bond0! bond_mode=balance-tcp; e1! bond_mode=balance-tcp; e2! bond_mode=balance-tcp"},
		{row{"name": one("e2")}, "e1! another port has the name e2; e2! another port; e2! another port"},
		{row{"name": one("bond0"), "patch": one("")}, "bond0 bond_mode=active-backup bridge=br0 type=bond; e1 bond=bond0 bridge=br0 dev=e1 type=device; e2! a port of patch"},
	} {
		first, second := row{"name": one("e1")}, row{"name": one("e2")}
		if _, speaks := c.row["lacp"]; speaks {
			first["other_config"] = mapOf(map[string]string{"lacp-port-id": "9", "lacp-port-priority": "0", "lacp-aggregation-key": "3"})
		}
		if _, patch := c.row["patch"]; patch {
			second["type"], second["options"] = one("patch"), mapOf(map[string]string{"peer": "x"})
		}
		c.row["interfaces"] = listOf([]uuid{"i1", "i2"})
		m := wanted(tables{"Open_vSwitch": {"o": {"bridges": one(uuid("b"))}}, "Bridge": {"b": {"name": one("br0"), "ports": one(uuid("p"))}},
			"Port": {"p": c.row}, "Interface": {"i1": first, "i2": second}}, "/run")
		var got []string
		for _, p := range m.ports {
			text := p.name + " " + strings.Join(p.words, " ")
			if p.problem != "" {
				text = p.name + "! " + p.problem
			}
			got = append(got, text)
		}
		want := strings.Split(c.want, "; ")
		same := len(got) == len(want)
		for i := range want {
			same = same && (got[i] == want[i] || strings.Contains(want[i], "! ") && strings.HasPrefix(got[i], want[i]))
		}
		if !same {
			t.Errorf("%v\n%s\nwant\n%s", c.row, strings.Join(got, "; "), c.want)
		}
	}
}
