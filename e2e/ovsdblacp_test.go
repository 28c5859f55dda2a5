// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A bond of two cables speaks LACP with a genuine ovs-vswitchd at the other end, and both spread
// connections over the cables. Either end may be passive. A cable that fails, and a partner that no
// longer speaks LACP, move the traffic or end it.
func TestOVSDBLACP(t *testing.T) {
	t.Parallel()
	needOpenvSwitch(t)
	l := newLab(t)
	h, a, far := bondHosts(l)
	peer := newOpenVSwitch(t, far)
	const settings = " -- set port bond0 lacp=active bond_mode=balance-tcp other_config:lacp-time=fast"
	peer.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev -- add-bond br0 bond0 e1 e2" + settings)
	far.Address("br0", remoteIP+"/24")
	// The kernel of far sees the frames of the cables too, and would answer ARP for br0 on them.
	far.Run("sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1")
	r := newRuled(t, h)
	r.vsctl("add-br br0 -- add-port br0 p0 -- add-bond br0 bond0 e1 e2" + settings)

	own := func(words ...string) string {
		t.Helper()
		return r.run(append([]string{"ovs-appctl", "-t", "ovs-vswitchd"}, words...)...)
	}
	theirs := func(words ...string) string {
		t.Helper()
		return peer.run(append([]string{"ovs-appctl", "-t", peer.dir + "/ctl"}, words...)...)
	}
	carries := regexp.MustCompile(`(?m)^member: (\S+): current attached$(?:\n.*){2}\n  may_enable: true$`)
	agreement := func(want string) error {
		for _, text := range []string{own("lacp/show", "bond0"), theirs("lacp/show", "bond0")} {
			members := ""
			for _, m := range carries.FindAllStringSubmatch(text, -1) {
				members += m[1] + " "
			}
			if strings.TrimSpace(members) != want {
				return fmt.Errorf("members %s, want %s:\n%s", members, want, text)
			}
		}
		return nil
	}
	agreed := func(want string) {
		t.Helper()
		var err error
		for end := time.Now().Add(3 * settle); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if err = agreement(want); err == nil {
				return
			}
		}
		t.Fatal(err)
	}
	agreed("e1 e2")
	reach(t, a, remoteIP)
	for _, e := range []string{"e1", "e2"} {
		r.expect("interface", e, "lacp_current", "true")
	}
	labels := func(text string) string {
		return regexp.MustCompile(`(?m)(: ?)\S.*$`).ReplaceAllString(strings.TrimSpace(text), "$1")
	}
	for _, verb := range []string{"lacp/show", "lacp/show-stats"} {
		if got, want := own(verb, "bond0"), theirs(verb, "bond0"); labels(got) != labels(want) {
			t.Errorf("%s:\n%s\nOpen vSwitch's:\n%s", verb, got, want)
		}
	}
	eventually(t, func() error {
		if text := own("bond/show", "bond0"); !strings.Contains(text, "lacp_status: negotiated") || !strings.Contains(text, "bond_mode: balance-tcp") {
			return fmt.Errorf("bond/show:\n%s", text)
		}
		return nil
	})

	far.Run("ip", "link", "set", "dev", "e1", "down")
	agreed("e2")
	reach(t, a, remoteIP)
	far.Run("ip", "link", "set", "dev", "e1", "up")
	agreed("e1 e2")

	peer.vsctl("set port bond0 lacp=passive")
	agreed("e1 e2")
	r.vsctl("set port bond0 lacp=passive")
	peer.vsctl("set port bond0 lacp=off bond_mode=active-backup")
	r.expect("interface", "e1", "lacp_current", "false")
	r.expect("port", "bond0", "bond_active_slave", "[]")
	r.vsctl("set port bond0 other_config:lacp-fallback-ab=true")
	r.expect("port", "bond0", "bond_active_slave", ":")
	peer.vsctl("set port bond0 lacp=active bond_mode=balance-tcp")
	agreed("e1 e2")
	reach(t, a, remoteIP)
	r.vsctl("set port bond0 lacp=off")
	r.expect("interface", "e1", "error", "expected lacp=active or lacp=passive")
}
