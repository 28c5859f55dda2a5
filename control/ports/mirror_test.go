// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"strings"
	"testing"
)

// A mirror finds the ports that it names, even if they are added later. It has no number in flows.
func TestMirrorPorts(t *testing.T) {
	ports, _ := newTestPorts(t)
	ports.addBridges("br1", "br2")
	add := func(words string) {
		t.Helper()
		name, options, _ := strings.Cut(words, " ")
		if _, err := ports.Add(name, strings.Fields(options)); err != nil {
			t.Fatal(err)
		}
	}
	describe := func(want string) {
		t.Helper()
		list, err := ports.List("m")
		if err != nil || !strings.Contains(list[0].State+" "+list[0].Detail, want) {
			t.Errorf("%+v %v, want %s", list, err, want)
		}
	}
	add("m type=mirror select_src_port=a,b output_port=c snaplen=100")
	describe("down its bridge has no port a, b, c")
	add("a type=patch peer=x")
	add("b type=patch peer=x")
	add("c type=patch peer=x bridge=br1")
	describe("down its bridge has no port c")
	if err := ports.Delete("c"); err != nil {
		t.Fatal(err)
	}
	add("c type=patch peer=x")
	describe("up")
	view := ports.pipeline.View()
	a, _ := view.DatapathByName("a")
	number, _ := view.PortByName("c")
	c, _ := view.Port(number)
	if m := view.Mirrors(); len(m) != 1 || !m[0].Mirror.Src[a] || m[0].Mirror.Snaplen != 100 || m[0].Mirror.Output != c.At() || !c.MirrorOut || !view.Bound() {
		t.Errorf("mirrors %+v, output %+v", m, c)
	}
	if _, is := view.PortByName("m"); is || len(view.Ports()) != 3 {
		t.Errorf("flows see the mirror: %+v", view.Ports())
	}
	if _, err := ports.Modify("m", []string{"select_src_port=", "select_all=on", "output_port=", "output_vlan=5", "snaplen="}); err != nil {
		t.Error(err)
	}
	if c, _ := ports.pipeline.View().Port(number); c.MirrorOut {
		t.Error("c is still the output of a mirror")
	}
	for words, want := range map[string]string{
		"type=mirror": "expected one of output_port= and output_vlan=",
		"type=mirror output_port=a output_vlan=5":                 "expected one of output_port= and output_vlan=",
		"type=mirror output_port=a,b":                             "output_port=a,b: expected one port",
		"type=mirror output_vlan=5 snaplen=64":                    "snaplen=64: a mirror to a VLAN copies whole frames",
		"type=mirror output_vlan=4095":                            "1 to 4094",
		"type=mirror output_port=a snaplen=13":                    "14 to 65535",
		"type=mirror output_port=a select_src_port=,":             "names of ports",
		"type=mirror output_port=a tag=5":                         "no option tag",
		"type=mirror output_port=a ofport_request=5 select_all=x": "no option ofport_request",
	} {
		if _, err := ports.Add("m2", strings.Fields(words)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", words, err, want)
		}
	}
}
