// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"net/netip"
	"strings"
	"testing"

	"weft/control/change"
)

// A change of ports makes one view, because making a view takes time for each port.
func TestChangeOfPortsMakesOneView(t *testing.T) {
	ports, configuration := newTestPorts(t)
	ports.addBridges("br1", "br2")
	var views countedViews
	ports.declared = &views
	check := func(verb string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(verb, err)
		}
		if views != 1 {
			t.Errorf("%s made %d views, want 1", verb, views)
		}
		views = 0
	}
	add := func(name string, words ...string) {
		t.Helper()
		_, err := ports.Add(name, append(words, "type=patch"))
		check("add-port", err)
	}
	add("a", "peer=b")
	add("b", "peer=a", "bridge=br1")
	add("c", "peer=d", "bridge=br1")
	_, err := ports.Modify("a", []string{"tag=7"})
	check("mod-port", err)
	check("del-port", ports.Delete("a"))
	configuration.Do(func(tx *change.Tx) { ports.DeleteAll(tx, 1) })
	check("del-br", nil)
	declare := func(endpoint string) {
		t.Helper()
		check("a declaration", configuration.Update(func(tx *change.Tx) error {
			return ports.Declare(tx, netip.MustParseAddr(endpoint), map[string]*Declaration{"guest": {VNI: 5}})
		}))
	}
	if reason := ports.CentralTrouble(); reason != "" {
		t.Errorf("trouble without weft-central: %s", reason)
	}
	declare("192.0.2.1")
	if reason := ports.CentralTrouble(); !strings.Contains(reason, "no working uplink") || !strings.Contains(reason, "192.0.2.1") {
		t.Errorf("trouble without an uplink: %q", reason)
	}
}
