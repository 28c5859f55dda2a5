// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"strings"
	"testing"
)

// Flows cannot name an exporter. A change of its options changes what translations sample.
func TestExporterPorts(t *testing.T) {
	ports, _ := newTestPorts(t)
	ports.addBridges("br1", "br2")
	for _, words := range []string{"x type=ipfix targets=192.0.2.1:4739,[2001:db8::1]:4739 sampling=2 output=off", "s type=sflow bridge=br1 targets=192.0.2.1:6343 header=64",
		"set type=ipfix targets=192.0.2.1:4739 collector_set=0"} {
		name, options, _ := strings.Cut(words, " ")
		if _, err := ports.Add(name, strings.Fields(options)); err != nil {
			t.Fatal(err)
		}
	}
	view := ports.pipeline.View().Of(0)
	if list := view.Exporters(); len(list) != 2 || len(view.Ports()) != 0 || list[1].Exporter.Arriving != 1<<31-1 || list[1].Exporter.Leaving != 0 || list[1].Exporter.Snap != leastHeader || !list[0].Exporter.OfSet || list[0].Exporter.Arriving != 0 {
		t.Errorf("%+v", list)
	}
	if _, is := view.PortByName("x"); is {
		t.Error("flows see the exporter")
	}
	if list := ports.pipeline.View().Of(1).Exporters(); len(list) != 1 || list[0].Exporter.Snap != 64 || list[0].Exporter.Arriving != (1<<32-1)/400 {
		t.Errorf("%+v", list)
	}
	if _, err := ports.Modify("x", []string{"sampling=1", "output="}); err != nil {
		t.Error(err)
	}
	if list := ports.pipeline.View().Of(0).Exporters(); list[1].Exporter.Leaving != 1<<32-1 {
		t.Errorf("%+v", list[1].Exporter)
	}
	if list, err := ports.List("x"); err != nil || list[0].State != StateUp || !strings.HasPrefix(list[0].Detail, "0 samples") {
		t.Errorf("%+v %v", list, err)
	}
	for words, want := range map[string]string{
		"type=ipfix":                         "targets= is missing",
		"type=ipfix targets=192.0.2.1":       "addresses of collectors, as in 192.0.2.1:4739",
		"type=ipfix targets=host:1":          "addresses of collectors",
		"type=sflow targets=192.0.2.1:0":     "addresses of collectors",
		"type=sflow targets=192.0.2.1:1 x=1": "no option x",
		"type=ipfix targets=192.0.2.1:1,192.0.2.1:2,192.0.2.1:3,192.0.2.1:4,192.0.2.1:5,192.0.2.1:6,192.0.2.1:7,192.0.2.1:8,192.0.2.1:9": "up to 8",
		"type=sflow targets=192.0.2.1:1 sampling=0":        "1 to 4294967295",
		"type=sflow targets=192.0.2.1:1 header=2000":       "1 to 1024",
		"type=sflow targets=192.0.2.1:1 agent=a/b":         "an address, or the name of a network device",
		"type=ipfix targets=192.0.2.1:1 collector_set=0":   "port set has this set",
		"type=ipfix targets=192.0.2.1:1 ofport_request=5":  "no option ofport_request",
		"type=ipfix targets=192.0.2.1:1 cache_max_flows=x": "0 to 4294967295",
	} {
		if _, err := ports.Add("m2", strings.Fields(words)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", words, err, want)
		}
	}
	if _, err := ports.Add("other", []string{"type=ipfix", "bridge=br2", "targets=192.0.2.1:1", "collector_set=0"}); err != nil {
		t.Error(err)
	}
}
