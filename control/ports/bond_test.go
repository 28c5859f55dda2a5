// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"strings"
	"testing"

	"weft/control/bond"
	"weft/control/change"
)

// Members follow their links. Translations see the bond with the members that are up.
func TestBondPorts(t *testing.T) {
	tap, links := portKinds[kindTap], map[string]*virtualPort{}
	defer func() { portKinds[kindTap] = tap }()
	portKinds[kindTap] = portKind{kind: tap.kind, options: tap.options, make: func(c portContext) portDriver {
		links[c.name] = &virtualPort{}
		return links[c.name]
	}}
	ports, configuration := newTestPorts(t)
	ports.addBridges("br1", "br2")
	add := func(name, words string) {
		t.Helper()
		if _, err := ports.Add(name, strings.Fields(words)); err != nil {
			t.Fatal(err)
		}
	}
	number := func(name string) uint32 {
		n, _ := ports.pipeline.View().DatapathByName(name)
		return n
	}
	// sends lets the bond follow its links. It expects the active member and the state of the bond's
	// port.
	sends := func(active, state string) {
		t.Helper()
		configuration.Do(func(tx *change.Tx) { ports.updateLiveness(tx) })
		list, err := ports.List("bond0")
		if err != nil || list[0].Bond.Active != active || !strings.Contains(list[0].State+" "+list[0].Detail, state) {
			t.Fatalf("%+v %+v %v, want %s active and %s", list, list[0].Bond, err, active, state)
		}
		p, _ := ports.pipeline.View().PortAt(number("bond0"))
		if p.Members == nil || active != "" && p.Members.Active != number(active) {
			t.Errorf("translations see %+v", p.Members)
		}
	}
	add("a", "type=tap bond=bond0")
	if p, _ := ports.pipeline.View().PortAt(number("a")); p.Bond != absentBond {
		t.Errorf("a member without its bond: %+v", p)
	}
	add("bond0", "type=bond bridge=br1")
	sends("", "down no port has bond=bond0")
	if err := ports.Delete("bond0"); err != nil {
		t.Fatal(err)
	}
	add("bond0", "type=bond tag=5")
	add("b", "type=tap bond=bond0")
	sends("a", "up")
	links["a"].setTrouble("no carrier")
	sends("b", "up")
	links["b"].setTrouble("no carrier")
	sends("", "down no member is up")
	links["b"].setTrouble("")
	links["a"].setTrouble("")
	sends("b", "up")
	if _, err := ports.Modify("bond0", []string{"bond_primary=a", "bond_mode=balance-slb"}); err != nil {
		t.Error(err)
	}
	sends("a", "up")
	active := func(b *bond.Bond, n uint32) string { b.SetActive(n); return "" }
	for _, c := range [][3]string{{"x", "a", "x: no such bond"}, {"bond0", "x", "no such member"}, {"a", "b", "no such bond"}} {
		if err := ports.ChangeBond(c[0], c[1], active); err == nil || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%v: %v", c, err)
		}
	}
	if err := ports.ChangeBond("bond0", "b", active); err != nil {
		t.Error(err)
	}
	sends("b", "up")
	if _, err := ports.Modify("b", []string{"bond="}); err != nil {
		t.Error(err)
	}
	sends("a", "up")
	if p, _ := ports.pipeline.View().PortAt(number("b")); p.Bond != 0 {
		t.Errorf("a former member: %+v", p)
	}
	for words, want := range map[string]string{
		"type=bond bond_mode=balance-xor":  "active-backup, balance-slb, balance-tcp",
		"type=bond bond_mode=balance-tcp":  "expected lacp=active or lacp=passive as well",
		"type=bond lacp_system_id=1:2":     "a unicast MAC address",
		"type=device lacp_port_id=4":       "expected bond= as well",
		"type=bond bond_updelay=-1":        "0 to 600000",
		"type=bond bond_primary=,":         "name of a port",
		"type=bond qos=0:1G":               "no option qos",
		"type=patch peer=x bond=bond0":     "no option bond",
		"type=tap bond=1":                  "name of a port",
		"type=bond ofport_request=1 dev=a": "no option dev",
	} {
		if _, err := ports.Add("x", strings.Fields(words)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", words, err, want)
		}
	}
}
