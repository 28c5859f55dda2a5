// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"testing"

	"weft/api"
	"weft/control/flowexport"
)

// Collectors see the ports of a bridge under its own number and datapath ID, also after another bridge has
// been deleted, and of a first bridge without a name.
func TestInterfacesOfBridges(t *testing.T) {
	f := newFakes(t)
	for _, add := range []api.AddBridge{{Name: "br1"}, {Name: "br2", DatapathID: "77"}} {
		if _, err := f.d.bridges.Add(add); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.d.bridges.Delete("br1"); err != nil {
		t.Fatal(err)
	}
	for name, words := range map[string][]string{
		"first": {"type=vxlan", "vni=8", "remote=192.0.2.1"}, "second": {"type=vxlan", "vni=9", "remote=192.0.2.1", "bridge=br2"},
	} {
		if _, err := f.d.ports.Add(name, words); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]flowexport.Interface{}
	for _, i := range f.d.interfaces() {
		seen[i.Name] = i
	}
	for name, bridge := range map[string]string{"first": "", "second": "br2"} {
		b := f.d.bridges.Named(bridge)
		id := fmt.Sprintf("%016x", seen[name].DatapathID)
		if want := f.d.bridges.Describe(b).DatapathID; id != want || seen[name].Index>>16 != uint32(b.Number)+1 {
			t.Errorf("%s: datapath ID %s, index %#x; expected %s and bridge number %d", name, id, seen[name].Index, want, b.Number)
		}
	}
}
