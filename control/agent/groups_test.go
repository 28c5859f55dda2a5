// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"weft/central/wire"
)

// A central of 0.3.0 names a port's groups and sends no rules. Such a group allows nothing.
func TestGroupsWithoutRulesAllowNothing(t *testing.T) {
	s, b := newState(), newBatch()
	declared := &wire.LocalPort{Port: &wire.Port{Id: "p", Name: "web1", Net: "n", Mac: []byte{2, 0, 0, 0, 0, 1}, Groups: []string{"admin", "web"}},
		Groups: []*wire.Group{{Id: "web", Name: "servers", Rules: []*wire.GroupRule{{Protocol: 6}}}}}
	s.reset(netReset{view: &wire.NetView{Net: &wire.Net{Id: "n", Name: "blue", Vni: 7}}}, b)
	s.setPort(declared, LocalPort{Name: "tap1"}, b)
	ports := b.changes().Ports
	if len(ports) != 1 || len(ports[0].Groups) != 2 {
		t.Fatalf("ports %+v, expected one in two groups", ports)
	}
	if admin, web := ports[0].Groups[0], ports[0].Groups[1]; admin.ID != "admin" || admin.Rules != nil || web.Name != "servers" || len(web.Rules) != 1 {
		t.Errorf("groups %+v, expected admin without rules, then web with one", ports[0].Groups)
	}
}
