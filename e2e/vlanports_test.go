// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weft/e2e/lab"
)

// VLANs work on access ports, trunks, ports of QinQ customers, and LOCAL. The frames go
// through packet sockets, because not every kernel has VLAN devices.
func TestVLANPortsAndLocal(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h := l.Host("h")
	d := h.Weftd("--name", "sw0")
	d.Weft("add-flow", "actions=normal")
	guests, raw := map[string]*lab.Host{}, map[string]*lab.Raw{}
	for i, words := range [][]string{{"access", "tag=5"}, {"trunk", "trunks=5,9"}, {"customer", "vlan_mode=dot1q-tunnel", "tag=9", "cvlans=7"}} {
		g := l.Host(words[0])
		d.Tap(g, fmt.Sprintf("02:00:00:00:00:%02x", i+1), "", guestMTU, words[1:]...)
		guests[words[0]], raw[words[0]] = g, g.Raw("eth0")
	}
	const macs = "ffffffffffff020000000099"
	payload := "88b5" + strings.Repeat("aa", 50)
	for _, c := range []struct{ from, tags, to, want string }{
		{"access", "", "trunk", "81000005"},
		{"trunk", "81000005", "access", ""},
		{"customer", "81000007", "trunk", "88a8000981000007"},
		{"trunk", "88a8000981000007", "customer", "81000007"},
	} {
		frame, _ := hex.DecodeString(macs + c.tags + payload)
		want, _ := hex.DecodeString(macs + c.want + payload)
		if err := raw[c.from].Send(frame); err != nil {
			t.Fatal(err)
		}
		for {
			got, err := raw[c.to].Recv(settle)
			if err != nil {
				t.Errorf("%s with tags %q from %s does not arrive at %s: %v", c.from, c.tags, c.from, c.to, err)
				break
			}
			if bytes.Contains(got, want[len(want)-52:]) { // not a frame of the kernel's own
				if !bytes.Equal(got, want) {
					t.Errorf("tags %q from %s arrive at %s as %x", c.tags, c.from, c.to, got)
				}
				break
			}
		}
	}

	d.Weft("add-port", "sw0", "type=local", "tag=5")
	h.Address("sw0", "10.0.5.1/24")
	guests["access"].Address("eth0", "10.0.5.2/24")
	reach(t, guests["access"], "10.0.5.1")
	d.Weft("del-flows")
	d.Weft("add-flow", "in_port=access,actions=LOCAL")
	d.Weft("add-flow", "in_port=LOCAL,actions=output:access")
	reach(t, h, "10.0.5.2")
	d.Control().Kill()
	d.Start()
	d.KillEngine()
	reach(t, h, "10.0.5.2")
	ofctl := func(words ...string) string {
		t.Helper()
		target := "unix:" + filepath.Dir(d.Socket) + "/sw0.mgmt"
		out, err := exec.Command("ovs-ofctl", append(words[:1:1], append([]string{target}, words[1:]...)...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("ovs-ofctl %v: %v\n%s", words, err, out)
		}
		return string(out)
	}
	if _, err := exec.LookPath("ovs-ofctl"); err == nil {
		if out := ofctl("show"); !strings.Contains(out, "LOCAL(sw0)") {
			t.Errorf("ovs-ofctl show has no LOCAL(sw0): %s", out)
		}
		if out := ofctl("dump-ports", "LOCAL"); !strings.Contains(out, "LOCAL: rx pkts=") {
			t.Errorf("ovs-ofctl dump-ports LOCAL: %s", out)
		}
		local := h.Raw("sw0")
		ofctl("packet-out", "in_port=access packet="+macs+payload+" actions=LOCAL")
		if _, err := local.Recv(settle); err != nil {
			t.Errorf("a packet-out to LOCAL: %v", err)
		}
	}
	if dump := d.Weft("dump-flows", "sw0"); !strings.Contains(dump, "in_port=LOCAL actions=output:access") || !strings.Contains(dump, "actions=LOCAL") {
		t.Errorf("flows of LOCAL are shown as %s", dump)
	}
}
