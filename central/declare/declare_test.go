// SPDX-License-Identifier: Apache-2.0

package declare

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

const example = `
[[net]]
name = "blue"
vni = 100
flood = true

[[host]]
name = "h1"
endpoint = "172.16.0.1"

[[host]]
name = "h2"
endpoint = "fd00::2"

[[port]]
name = "web1"
net = "blue"
mac = "02:00:00:00:00:01"
addresses = ["fd00::1", "10.0.0.1"]
host = "h1"
move-to = "h2"

[[port]]
name = "web2"
net = "blue"
mac = "02:00:00:00:00:02"
spoof-check = false
`

func parse(t *testing.T, text string) *File {
	t.Helper()
	file, err := ParseFile([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func diff(t *testing.T, f *Fleet, text string, prune bool) *Diff {
	t.Helper()
	d, err := f.Diff(parse(t, text), prune)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (f *Fleet) applied(changes []*wire.Change) *Fleet {
	nets, hosts, ports := map[string]*wire.Net{}, map[string]*wire.Host{}, map[string]*wire.Port{}
	for _, n := range f.Nets.All {
		nets[n.Id] = n
	}
	for _, h := range f.Hosts.All {
		hosts[h.Id] = h
	}
	for _, p := range f.Ports.All {
		ports[p.Id] = p
	}
	for _, c := range changes {
		switch c := c.Change.(type) {
		case *wire.Change_SetNet:
			nets[c.SetNet.Id] = c.SetNet
		case *wire.Change_SetHost:
			hosts[c.SetHost.Id] = c.SetHost
		case *wire.Change_SetPort:
			ports[c.SetPort.Id] = c.SetPort
		case *wire.Change_DeleteNet:
			delete(nets, c.DeleteNet)
		case *wire.Change_DeleteHost:
			delete(hosts, c.DeleteHost)
		case *wire.Change_DeletePort:
			delete(ports, c.DeletePort)
		}
	}
	reply := &wire.ListReply{Revision: f.Revision + 1}
	for _, n := range nets {
		reply.Nets = append(reply.Nets, n)
	}
	for _, h := range hosts {
		reply.Hosts = append(reply.Hosts, h)
	}
	for _, p := range ports {
		reply.Ports = append(reply.Ports, p)
	}
	return NewFleet([]*wire.ListReply{reply})
}

// A fleet has no difference to a file that was applied to it, or that was exported from
// it.
func TestApplyIsIdempotent(t *testing.T) {
	empty := NewFleet(nil)
	first := diff(t, empty, example, false)
	const want = `+ net blue vni=100 flood=on
+ host h1 endpoint=172.16.0.1
+ host h2 endpoint=fd00::2
+ port web1 net=blue mac=02:00:00:00:00:01 addresses=10.0.0.1,fd00::1 host=h1 move-to=h2
+ port web2 net=blue mac=02:00:00:00:00:02 spoof-check=off
`
	if first.Text() != want || len(first.Changes) != 5 {
		t.Errorf("%d changes:\n%s", len(first.Changes), first.Text())
	}
	fleet := empty.applied(first.Changes)
	if again := diff(t, fleet, example, true); len(again.Changes) != 0 {
		t.Errorf("the second time:\n%s", again.Text())
	}
	exported, err := fleet.File().Format()
	if err != nil {
		t.Fatal(err)
	}
	if again := diff(t, fleet, string(exported), true); len(again.Changes) != 0 {
		t.Errorf("exported:\n%s\nchanges:\n%s", exported, again.Text())
	}
	if other := diff(t, empty, string(exported), true); other.Text() != want || other.Changes[0].GetSetNet().Id != fleet.Nets.All[0].Id {
		t.Errorf("exported to an empty fleet: %s", other.Text())
	}
}

// The difference has one line for each change. An entry of the file with an id can
// rename its object.
func TestDiff(t *testing.T) {
	fleet := NewFleet(nil)
	fleet = fleet.applied(diff(t, fleet, example, false).Changes)
	exported, _ := fleet.File().Format()
	edit := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(example) }
	rename := strings.ReplaceAll(string(exported), "'blue'", "'green'")
	onlyNet := example[:strings.Index(example, "[[host]]")]
	for name, c := range map[string]struct {
		file  string
		prune bool
		want  string
	}{
		"changed":    {edit("vni = 100", "vni = 101", `host = "h1"`, "", `move-to = "h2"`, ""), false, "~ net blue vni=100 -> 101\n~ port web1 host=h1 -> none move-to=h2 -> none\n"},
		"default":    {edit("flood = true", "mtu = 1400", "spoof-check = false", ""), false, "~ net blue mtu=none -> 1400 flood=on -> none\n~ port web2 spoof-check=off -> none\n"},
		"renamed":    {rename, true, "~ net green name=blue -> green\n"},
		"kept":       {onlyNet, false, ""},
		"pruned":     {onlyNet, true, "- host h1 endpoint=172.16.0.1\n- host h2 endpoint=fd00::2\n- port web1 net=blue mac=02:00:00:00:00:01 addresses=10.0.0.1,fd00::1 host=h1 move-to=h2\n- port web2 net=blue mac=02:00:00:00:00:02 spoof-check=off\n"},
		"only ports": {example[strings.Index(example, "[[port]]"):], false, ""},
	} {
		if d := diff(t, fleet, c.file, c.prune); d.Text() != c.want {
			t.Errorf("%s: got\n%swant\n%s", name, d.Text(), c.want)
		} else if after := fleet.applied(d.Changes); len(diff(t, after, c.file, c.prune).Changes) != 0 {
			t.Errorf("%s: is not idempotent", name)
		}
	}
}

// Two versions of a port are equal even if they have different unknown fields, or their
// addresses in another order.
func TestDiffIgnoresOrderAndUnknownFields(t *testing.T) {
	fleet := NewFleet(nil)
	fleet = fleet.applied(diff(t, fleet, example, false).Changes)
	web1, _ := fleet.Ports.Lookup("web1")
	web1.Addresses[0], web1.Addresses[1] = web1.Addresses[1], web1.Addresses[0]
	web1.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1})
	before := proto.Clone(web1)
	if d := diff(t, fleet, example, true); len(d.Changes) != 0 {
		t.Error(d.Text())
	}
	if !proto.Equal(web1, before) {
		t.Error("Diff changed the fleet")
	}
}

// The error about a wrong file names the line or the object.
func TestWrongFiles(t *testing.T) {
	fleet := NewFleet(nil)
	fleet = fleet.applied(diff(t, fleet, example, false).Changes)
	port := "[[port]]\nname = \"p\"\nnet = \"blue\"\n"
	mac := "mac = \"02:00:00:00:00:09\"\n"
	for text, want := range map[string]string{
		"[[net]\n":                                                         "line 1",
		"[[net]]\nname = \"a\"\nvin = 3\n":                                 "line 3: net.vin: unknown key",
		"[[net]]\nname = \"a\"\nvni = -1\n":                                "line 3",
		"[[net]]\nvni = 3\n":                                               "[[net]] number 1: name",
		"[[net]]\nname = \"a b\"\nvni = 3\n":                               `net "a b": name "a b"`,
		"[[net]]\nname = \"a\"\n":                                          "net a: vni 0: expected",
		"[[net]]\nname = \"a\"\nvni = 16777216\n":                          "net a: vni 16777216: expected",
		"[[net]]\nname = \"a\"\nvni = 3\nmtu = 60\n":                       "net a: mtu 60",
		"[[net]]\nname = \"a\"\nvni = 100\n":                               "net blue: vni 100 belongs to net a too",
		"[[net]]\nname = \"a\"\nvni = 3\n[[net]]\nname = \"a\"\nvni = 4\n": "net a: the name is there twice",
		"[[net]]\nname = \"blue\"\nid = \"x\"\nvni = 3\n":                  "net blue: id x: the present net",
		"[[host]]\nname = \"h9\"\n":                                        "host h9: endpoint",
		"[[host]]\nname = \"h9\"\nendpoint = \"10.0.0.0/8\"\n":             "line 3",
		"[[host]]\nname = \"h9\"\nendpoint = \"224.0.0.1\"\n":              "host h9: endpoint 224.0.0.1",
		"[[host]]\nname = \"h9\"\nendpoint = \"172.16.0.1\"\n":             "endpoint 172.16.0.1 belongs to host",
		port:                                        "port p: mac is missing",
		port + "mac = \"x\"\n":                      "line 4",
		"[[port]]\nname = \"p\"\n" + mac:            "port p: net is missing",
		port + mac + "host = \"h7\"\n":              "port p: host h7: no such host; expected one of h1, h2",
		port + mac + "move-to = \"h1\"\n":           "port p: move-to h1 without host",
		port + mac + "addresses = [\"10.0.0.1\"]\n": "address 10.0.0.1 belongs to port",
		port + mac + "addresses = [\"10.0.0.7\", \"10.0.0.7\"]\n":                                                                   "10.0.0.7 is there twice",
		port + "mac = \"02:00:00:00:00:01\"\n":                                                                                      "mac 02:00:00:00:00:01 belongs to port",
		"[[port]]\nname = \"p\"\nnet = \"red\"\n" + mac:                                                                             "port p: net red: no such net; expected one of blue",
		"[[port]]\nname = \"p\"\nid = \"i\"\nnet = \"blue\"\n" + mac + port + mac:                                                   "port p: the name is there twice",
		"[[port]]\nname = \"q\"\nid = \"i\"\nnet = \"blue\"\n" + mac + "[[port]]\nname = \"r\"\nid = \"i\"\nnet = \"blue\"\n" + mac: "port r: id i is there twice",
	} {
		file, err := ParseFile([]byte(text))
		if err == nil {
			_, err = fleet.Diff(file, false)
		}
		var wrong *Error
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, expected %q", text, err, want)
		}
	}
	if _, err := fleet.Diff(parse(t, port+mac), true); err == nil || !strings.Contains(err.Error(), "net blue: no such net; none") {
		t.Errorf("a port in a network that is pruned: %v", err)
	}
}

func TestWords(t *testing.T) {
	fleet := NewFleet(nil)
	fleet = fleet.applied(diff(t, fleet, example, false).Changes)
	p := &wire.Port{Id: "i", Name: "p"}
	err := fleet.SetPort(p, true, strings.Fields("net=blue mac=02:00:00:00:00:09 addresses=fd00::9,10.0.0.9 host=h1 spoof-check=off"))
	if err != nil {
		t.Fatal(err)
	}
	v := fleet.PortOf(p)
	if got := v.Text(); got != "net=blue mac=02:00:00:00:00:09 addresses=10.0.0.9,fd00::9 host=h1 spoof-check=off" {
		t.Error(got)
	}
	if err := fleet.SetPort(p, false, strings.Fields("addresses= host= spoof-check=on name=q")); err != nil {
		t.Fatal(err)
	}
	v = fleet.PortOf(p)
	if got := v.Text(); got != "net=blue mac=02:00:00:00:00:09" || v.Name != "q" || v.ID != "i" {
		t.Errorf("%s %s %s", v.Name, v.ID, got)
	}
	for words, want := range map[string]string{
		"net":                                "net: expected KEY=VALUE, one of name= net=",
		"nett=blue":                          "nett=: unknown key; expected one of",
		"net=red":                            "red: no such net; expected one of blue",
		"net=blue net=blue":                  "net=: expected once",
		"mac=02:00:00:00:00":                 "mac 02:00:00:00:00: expected six bytes",
		"mac=03:00:00:00:00:01":              "unicast",
		"addresses=10.0.0.0/8":               "10.0.0.0/8: expected an IP address",
		"addresses=10.0.0.1,":                `"": expected an IP address`,
		"addresses=10.0.0.1,10.0.0.1":        "twice",
		"addresses=127.0.0.1":                "one machine",
		"host=h7":                            "h7: no such host",
		"move-to=h2":                         "move-to=h2 without host=",
		"spoof-check=false":                  "spoof-check=false: expected on or off",
		"id=x":                               "id=: unknown key",
		"name=a/b":                           "name a/b: expected 1 to 64 letters",
		"addresses=" + many("10.0.%d.1", 65): "65 of them; expected at most 64",
	} {
		if err := fleet.SetPort(proto.Clone(p).(*wire.Port), false, strings.Fields(words)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %q", words, err, want)
		}
	}
	n := &wire.Net{}
	for words, want := range map[string]string{"vni=0": "from 1 to 16777215", "vni=x": "vni=x", "mtu=1": "mtu=1", "flood=yes": "flood=yes", "vni=": `vni=""`} {
		if err := fleet.SetNet(n, true, strings.Fields(words)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %q", words, err, want)
		}
	}
}

func many(format string, n int) string {
	var list []string
	for i := range n {
		list = append(list, strings.Replace(format, "%d", string(rune('0'+i/100))+string(rune('0'+i/10%10))+string(rune('0'+i%10)), 1))
	}
	return strings.ReplaceAll(strings.Join(list, ","), ".0", ".1")
}

func TestOVNAddresses(t *testing.T) {
	words, err := ParseOVNAddresses([]string{"02:00:00:00:00:01 10.0.0.1 fd00::1"})
	if err != nil || strings.Join(words, " ") != "mac=02:00:00:00:00:01 addresses=10.0.0.1,fd00::1" {
		t.Error(words, err)
	}
	for _, texts := range [][]string{{"unknown"}, {"dynamic"}, {""}, {"a", "b"}} {
		if _, err := ParseOVNAddresses(texts); err == nil || !strings.Contains(err.Error(), `"MAC [IP...]"`) {
			t.Errorf("%q: %v", texts, err)
		}
	}
}

// The parser never crashes. A valid file stays the same when it is written and parsed
// again. When the file's changes are applied to an empty fleet, the fleet has no
// difference to the file.
func FuzzFile(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("[[net]]\nname='a'\nvni=1\n[[port]]\nname='p'\nnet='a'\nmac='02:00:00:00:00:01'\naddresses=['::ffff:10.0.0.1']\n"))
	f.Add([]byte("[[host]]\nname='h'\nendpoint='fe80::1%eth0'\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := ParseFile(text)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
			return
		}
		empty := NewFleet(nil)
		d, err := empty.Diff(file, true)
		if err != nil {
			return
		}
		fleet := empty.applied(d.Changes)
		exported, err := fleet.File().Format()
		if err != nil {
			t.Fatal(err)
		}
		for _, again := range []string{string(exported), string(text)} {
			if d := diff(t, fleet, again, true); len(d.Changes) != 0 {
				t.Errorf("%s\nchanges %s", again, d.Text())
			}
		}
	})
}
