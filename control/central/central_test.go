// SPDX-License-Identifier: Apache-2.0

package central

import (
	"slices"
	"testing"

	"weft/control/agent"
	"weft/control/store"
)

type fakeSwitch struct {
	agent.Switch
	ports []agent.LocalPort
}

func (f *fakeSwitch) Ports() []agent.LocalPort { return slices.Clone(f.ports) }

// The agent takes a stored port and the same port after loading as one port. A port that was deleted
// and added again is another port.
func TestStoredPortsAreTheLoadedOnes(t *testing.T) {
	sw := &fakeSwitch{}
	r := &restoring{Switch: sw}
	r.stored.Store(storedPorts([]store.Port{
		{Name: "vm1", Options: []string{"type=vhost-user", "path=/x", "id=i1"}}, {Name: "up", Options: []string{"type=af_xdp", "dev=eth0"}},
		{Name: "t1", Options: []string{"type=tap"}}}))
	want := []agent.LocalPort{{Name: "vm1", ID: "i1"}, {Name: "t1"}}
	if got := r.Ports(); !slices.Equal(got, want) {
		t.Errorf("stored: %+v", got)
	}
	sw.ports = []agent.LocalPort{{Name: "vm1", ID: "i1", Added: 1}, {Name: "t1", Added: 2}}
	r.load()
	if got := r.Ports(); !slices.Equal(got, want) {
		t.Errorf("loaded: %+v", got)
	}
	sw.ports[1].Added = 3
	if got := r.Ports(); got[0].Added != 0 || got[1].Added != 3 {
		t.Errorf("added again: %+v", got)
	}
}
