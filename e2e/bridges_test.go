// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weft/e2e/lab"
)

// A guest of br-int reaches a guest behind Linux's VXLAN through a patch port and br-tun,
// as OpenStack's agent lays them out: br-int tags each network with a local VLAN, and br-tun
// maps the VLAN to a VNI. ovs-ofctl programs both bridges on their own sockets.
func TestBridges(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ovs-ofctl"); err != nil {
		t.Skip("ovs-ofctl is missing: install openvswitch-common")
	}
	s := newUnderlay(t)
	s.weft = s.host.Weftd()
	d := s.weft
	d.Weft("add-br", "br-int")
	d.Weft("add-br", "br-tun", "--datapath-id", "77")
	d.Weft("add-port", "uplink", "type=af_xdp", "dev=u0")
	d.Weft("add-port", "patch-tun", "type=patch", "peer=patch-int", "bridge=br-int")
	d.Weft("add-port", "patch-int", "type=patch", "peer=patch-tun", "--bridge", "br-tun")
	d.Weft("add-port", "vxlan", "type=vxlan", "vni=flow", "remote=flow", "bridge=br-tun")
	d.Tap(s.guest, guestMAC, guestIP+"/24", guestMTU, "bridge=br-int", "tag=3")
	ofctl := func(verb, bridge string, words ...string) string {
		t.Helper()
		target := "unix:" + filepath.Join(filepath.Dir(d.Socket), bridge+".mgmt")
		out, err := exec.Command("ovs-ofctl", append([]string{"-O", "OpenFlow13", verb, target}, words...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("ovs-ofctl %s %s %v: %v\n%s", verb, bridge, words, err, out)
		}
		return string(out)
	}
	port := func(name string) uint32 { p := portOf(t, d, name); return p.InFlows() }
	if a, b := port("patch-tun"), port("patch-int"); a != 1 || b != 1 {
		t.Errorf("the first ports of two bridges have the numbers %d and %d, want 1", a, b)
	}
	ofctl("add-flow", "br-int", "priority=0,actions=normal")
	ofctl("add-flow", "br-tun", fmt.Sprintf("in_port=%d,actions=resubmit(,2)", port("patch-int")))
	ofctl("add-flow", "br-tun", fmt.Sprintf("in_port=%d,actions=resubmit(,4)", port("vxlan")))
	ofctl("add-flow", "br-tun", fmt.Sprintf("table=2,dl_vlan=3,actions=strip_vlan,set_field:%d->tun_id,set_field:%s->tun_dst,output:%d",
		siteVNI, peerIP, port("vxlan")))
	ofctl("add-flow", "br-tun", fmt.Sprintf("table=4,tun_id=%d,actions=push_vlan:0x8100,set_field:4099->vlan_vid,output:%d",
		siteVNI, port("patch-int")))
	reach(t, s.guest, remoteIP)
	lab.MustPing(t, s.remote, guestIP, 3)

	if got := ofctl("dump-flows", "br-int"); strings.Count(got, "actions=") != 1 {
		t.Errorf("flows of br-int:\n%s", got)
	}
	if got := ofctl("show", "br-tun"); !strings.Contains(got, "dpid:0000000000000077") || !strings.Contains(got, "(patch-int)") || strings.Contains(got, "(patch-tun)") {
		t.Errorf("ports of br-tun:\n%s", got)
	}
	trace := d.Weft("trace", "br-int", "in_port=guest,dl_dst=ff:ff:ff:ff:ff:ff")
	if !strings.Contains(trace, `bridge "br-tun"`) || !strings.Contains(trace, "crosses to patch-int") {
		t.Errorf("a trace through the patch port:\n%s", trace)
	}
	if macs := d.Weft("fdb-show", "br-int"); !strings.Contains(macs, "patch-tun") {
		t.Errorf("addresses of br-int:\n%s", macs)
	}
	if p := portOf(t, d, "patch-int"); p.Stats.RxPackets == 0 || p.Stats.TxPackets == 0 {
		t.Errorf("counters of a patch port: %+v", p.Stats)
	}

	t.Run("restarts", func(t *testing.T) {
		d.Control().Kill()
		d.Start()
		d.KillEngine()
		reach(t, s.guest, remoteIP)
		if got := ofctl("dump-flows", "br-tun"); strings.Count(got, "actions=") != 4 {
			t.Errorf("flows of br-tun:\n%s", got)
		}
	})
	t.Run("export and apply", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "host.toml")
		text := d.Weft("export")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := d.Weft("apply", file); !strings.Contains(got, "no differences") {
			t.Errorf("the same state again: %s", got)
		}
		d.Weft("del-br", "br-tun")
		if got := strings.Fields(d.Weft("list-br")); len(got) != 1 || got[0] != "br-int" {
			t.Errorf("bridges after del-br: %v", got)
		}
		if p := portOf(t, d, "patch-tun"); p.State != "down" {
			t.Errorf("a patch port without a peer is %s", p.State)
		}
		d.Weft("apply", file)
		reach(t, s.guest, remoteIP)
	})
}
