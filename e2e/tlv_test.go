// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// Open vSwitch's userspace datapath sets Geneve options that Weft matches, and matches those
// that Weft sets. Frames with other options match no flow.
func TestGeneveOptionsWithOpenVSwitch(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ovs-vswitchd", "ovsdb-server", "ovs-vsctl", "ovs-ofctl"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(name + " is missing: install openvswitch-switch")
		}
	}
	l := newLab(t)
	near, far, guest := l.Host("near"), l.Host("far"), l.Host("guest")
	l.Wire(near, "u0", far, "u0", underlayMTU)
	near.Address("u0", "172.16.0.1/24")
	far.NoOffloads("u0")
	o := newOpenVSwitch(t, far)
	o.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure")
	o.vsctl("add-br phy -- set bridge phy datapath_type=netdev")
	o.vsctl("add-port phy u0")
	far.Address("phy", "172.16.0.2/24")
	o.vsctl("add-port br0 gn -- set interface gn type=geneve options:key=7 options:remote_ip=172.16.0.1 ofport_request=2")
	ofctl := func(words ...string) { t.Helper(); o.run(append([]string{"ovs-ofctl"}, words...)...) }
	const wide = "0x0102030405060708090a0b0c0d0e0f1011121314"
	ofctl("add-tlv-map", "br0", "{class=0x102,type=1,len=4}->tun_metadata0,{class=0x102,type=0x80,len=20}->tun_metadata1")
	ofctl("add-flow", "br0", "in_port=LOCAL,actions=set_field:0xabcd->tun_metadata0,set_field:"+wide+"->tun_metadata1,output:2")
	ofctl("add-flow", "br0", "in_port=2,tun_metadata0=0x1234/0xffff,tun_metadata1="+wide+",actions=LOCAL")
	far.Address("br0", "10.0.0.2/24")

	d := near.Weftd()
	d.Weft("add-port", "uplink", "type=af_packet", "dev=u0")
	d.Weft("add-port", "gn", "type=geneve", "vni=7", "remote=172.16.0.2")
	d.Tap(guest, guestMAC, "10.0.0.1/24", 1300)
	d.Weft("add-tlv-map", "{class=0x102,type=1,len=4}->tun_metadata5,{class=0x102,type=0x80,len=20}->tun_metadata6")
	d.Weft("add-flow", "in_port=guest,actions=load:0x1234->tun_metadata5[0..15],set_field:"+wide+"->tun_metadata6,output:gn")
	matching := "in_port=gn,tun_metadata5=0xabcd,tun_metadata6=" + wide
	d.Weft("add-flow", matching+",actions=output:guest")
	ping := func() error { _, err := guest.Try("ping", "-c1", "-W1", "10.0.0.2"); return err }
	eventually(t, ping)
	if text := d.Weft("dump-flows", matching); strings.Contains(text, "n_packets=0,") {
		t.Errorf("no frame with the options:\n%s", text)
	}
	if _, stderr, code := d.TryWeft("del-tlv-map"); code == 0 || !strings.Contains(stderr, "tun_metadata5 is used by a flow") {
		t.Errorf("del-tlv-map of a map in use: %d %s", code, stderr)
	}

	// Another value of the option is another megaflow, which drops the frame.
	ofctl("add-flow", "br0", "in_port=LOCAL,actions=set_field:0xabce->tun_metadata0,set_field:"+wide+"->tun_metadata1,output:2")
	d.Weft("add-flow", "in_port=gn,tun_metadata5=0xabce,actions=drop")
	eventually(t, func() error {
		_ = ping() // sends a frame; there is no answer any more
		if text := d.Weft("dump-flows", "in_port=gn,tun_metadata5=0xabce"); strings.Contains(text, "n_packets=0,") {
			return fmt.Errorf("no frame with the other value:\n%s", text)
		}
		return nil
	})
	text := d.Weft("trace", "in_port=gn,tun_metadata5=0xabce")
	if !strings.Contains(text, "tun_metadata5=0xabce") || !strings.Contains(text, "drop") {
		t.Errorf("trace shows\n%s", text)
	}
}
