// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"weft/e2e/lab"
)

// bondHosts makes the host h of a switch, the guest a at its device p0, and the host far at the other
// ends of its devices e1 and e2.
func bondHosts(l *lab.Lab) (h, a, far *lab.Host) {
	h, a, far = l.Host("h"), l.Host("a"), l.Host("far")
	l.Wire(h, "p0", a, "eth0", guestMTU)
	a.Address("eth0", guestIP+"/24")
	l.Wire(h, "e1", far, "e1", guestMTU)
	l.Wire(h, "e2", far, "e2", guestMTU)
	return h, a, far
}

// ovs-vsctl makes a bond of two cables to a Linux bridge, which floods the frames of one cable into
// the other. Traffic passes on one cable after the other, and ovs-appctl chooses the cable.
func TestOVSDBBond(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h, a, far := bondHosts(l)
	far.Run("ip", "link", "add", "sw", "type", "bridge")
	for _, dev := range []string{"e1", "e2"} {
		far.Run("ip", "link", "set", "dev", dev, "master", "sw")
	}
	far.Run("ip", "link", "set", "dev", "sw", "up")
	far.Address("sw", remoteIP+"/24")
	r := newRuled(t, h)
	appctl := func(words ...string) string {
		t.Helper()
		return r.run(append([]string{"ovs-appctl", "-t", "ovs-vswitchd"}, words...)...)
	}
	active := func(member string) {
		t.Helper()
		r.expect("port", "bond0", "bond_active_slave", macOf(t, h, member))
		if text := appctl("bond/show", "bond0"); !strings.Contains(text, "active member mac: "+macOf(t, h, member)+"("+member+")") {
			t.Errorf("bond/show:\n%s", text)
		}
	}

	r.vsctl("add-br br0 -- add-port br0 p0 -- add-bond br0 bond0 e1 e2 -- set port bond0 bond_mode=active-backup other_config:bond-primary=e1")
	active("e1")
	reach(t, a, remoteIP)
	far.Run("ip", "link", "set", "dev", "e1", "down")
	active("e2")
	reach(t, a, remoteIP)
	far.Run("ip", "link", "set", "dev", "e1", "up")
	active("e1")
	if got := appctl("bond/set-active-member", "bond0", "e2"); !strings.Contains(got, "done") {
		t.Errorf("bond/set-active-member: %s", got)
	}
	active("e2")
	reach(t, a, remoteIP)
	if got := appctl("bond/list"); !strings.Contains(got, "bond0\tactive-backup\t-1\te") {
		t.Errorf("bond/list:\n%s", got)
	}

	r.vsctl("set port bond0 bond_mode=balance-slb")
	reach(t, a, remoteIP)
	eventually(t, func() error {
		if got := appctl("bond/show"); !strings.Contains(got, "bond_mode: balance-slb") || strings.Count(got, ": enabled") != 2 {
			return fmt.Errorf("bond/show:\n%s", got)
		}
		return nil
	})
	if got := appctl("bond/migrate", "bond0", "7", "e1"); !strings.Contains(got, "migrated") {
		t.Errorf("bond/migrate: %s", got)
	}
	r.vsctl("set port bond0 bond_mode=balance-tcp")
	r.expect("interface", "e1", "error", "expected lacp=active or lacp=passive")
	r.vsctl("set port bond0 lacp=off bond_mode=active-backup")
	r.expect("interface", "e1", "error", "[]")
	reach(t, a, remoteIP)
}
