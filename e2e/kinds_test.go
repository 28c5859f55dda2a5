// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"weft/e2e/lab"
)

// tunnelSite is a guest of weftd and a host behind Open vSwitch, with a tunnel of each kind
// between the two switches. Open vSwitch uses its userspace datapath.
//
//	guest ──tap── weftd ── AF_XDP u0 ══veth══ u0 ── phy, br0
//	10.0.0.1      near    172.16.0.1        172.16.0.2   far   10.0.0.2
type tunnelSite struct {
	t          *testing.T
	weft       *lab.Daemon
	guest, far *lab.Host
	ovs        *openVSwitch
}

func newTunnelSite(t *testing.T, uplink string) *tunnelSite {
	for _, name := range []string{"ovs-vswitchd", "ovsdb-server", "ovs-vsctl", "ovs-ofctl"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(name + " is missing: install openvswitch-switch")
		}
	}
	l := newLab(t)
	near := l.Host("near")
	s := &tunnelSite{t: t, guest: l.Host("guest"), far: l.Host("far")}
	l.Wire(near, "u0", s.far, "u0", underlayMTU)
	near.Address("u0", hostIP+"/24")
	if uplink == "af_packet" {
		near.NoOffloads("u0") // Open vSwitch reads frames without the note that a checksum is unfinished
	}
	s.far.NoOffloads("u0")
	s.far.Run("sysctl", "-qw", "net.ipv4.conf.u0.arp_ignore=8") // else u0 answers for the address of phy, too
	s.ovs = newOpenVSwitch(t, s.far)
	s.ovs.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev")
	s.ovs.vsctl("add-br phy -- set bridge phy datapath_type=netdev")
	s.ovs.vsctl("add-port phy u0")
	s.far.Address("phy", peerIP+"/24")
	s.far.Address("br0", remoteIP+"/24")
	s.far.NoOffloads("br0")
	s.weft = near.Weftd()
	s.weft.Weft("add-port", "uplink", "type="+uplink, "dev=u0")
	s.weft.Tap(s.guest, guestMAC, guestIP+"/24", guestMTU)
	return s
}

// add adds a tunnel with this name on both sides.
func (s *tunnelSite) add(name, ovs string, weft ...string) {
	s.ovs.vsctl(fmt.Sprintf("add-port br0 %s -- set interface %s options:key=%d options:remote_ip=%s %s", name, name, siteVNI, hostIP, ovs))
	network := fmt.Sprint("vni=", siteVNI)
	if weft[0] == "type=gre" || weft[0] == "type=erspan" {
		network = fmt.Sprint("key=", siteVNI)
	}
	s.weft.Weft(append([]string{"add-port", name, network, "remote=" + peerIP}, weft...)...)
}

// marks has the actions and matches of a tunnel for each of the two switches: the actions
// before the output to the tunnel (Set), and the match of frames from the tunnel after in_port
// (Match).
type marks struct{ ovsSet, ovsMatch, weftSet, weftMatch string }

// connect makes both switches send all frames of guest and host through the tunnel of this
// name.
func (s *tunnelSite) connect(name string, m marks) {
	s.weft.Weft("del-flows")
	s.weft.Weft("add-flow", "in_port=guest,actions="+m.weftSet+"output:"+name)
	s.weft.Weft("add-flow", "in_port="+name+m.weftMatch+",actions=output:guest")
	s.ofctl("del-flows", "br0")
	s.ofctl("add-flow", "br0", "in_port=LOCAL,actions="+m.ovsSet+"output:"+name)
	s.ofctl("add-flow", "br0", "in_port="+name+m.ovsMatch+",actions=LOCAL")
}

func (s *tunnelSite) ofctl(words ...string) string {
	return s.ovs.run(append([]string{"ovs-ofctl", "-O", "OpenFlow15", "--names"}, words...)...)
}

// works checks that the longest frames pass in both directions, and that TCP from Open vSwitch
// passes.
func (s *tunnelSite) works() {
	reach(s.t, s.guest, remoteIP)
	lab.MustPing(s.t, s.guest, remoteIP, 3, "-s", "1472", "-M", "do")
	lab.MustPing(s.t, s.far, guestIP, 3, "-s", "1472", "-M", "do")
	flood(s.t, s.far, s.guest, guestIP)
}

// Geneve and VXLAN-GPE carry TCP and UDP to and from Open vSwitch. Both switches match the Geneve
// options that the other one sends.
func TestTunnelsToOpenVSwitch(t *testing.T) {
	t.Parallel()
	s := newTunnelSite(t, "af_xdp")
	s.add("gn", "type=geneve", "type=geneve")
	s.add("gpe", "type=vxlan options:exts=gpe options:dst_port=4790", "type=vxlan-gpe")

	s.connect("gn", marks{})
	s.works()
	flood(t, s.guest, s.far, remoteIP)
	flood(t, s.guest, s.far, remoteIP, "-u", "-b", "50M")

	s.connect("gpe", marks{})
	s.works()
	const options = "{class=0x102,type=0x1,len=4}->tun_metadata0,{class=0x102,type=0x82,len=60}->tun_metadata1"
	s.ofctl("add-tlv-map", "br0", options)
	s.weft.Weft("add-tlv-map", options)
	s.connect("gn", marks{
		ovsSet:   "set_field:0x12345678->tun_metadata0,set_field:0x9->tun_metadata1,",
		weftSet:  "set_field:0x87654321->tun_metadata0,set_field:0x7->tun_metadata1,",
		ovsMatch: ",tun_metadata0=0x87654321,tun_metadata1=0x7", weftMatch: ",tun_metadata0=0x12345678,tun_metadata1=0x9",
	})
	reach(t, s.guest, remoteIP)
	lab.MustPing(t, s.far, guestIP, 3, "-s", "1400", "-M", "do")
	flood(t, s.far, s.guest, guestIP, "-M", "1300") // the options leave less room for segments
	flood(t, s.guest, s.far, remoteIP)              // the switch tells the guest the shorter length
	if n := drops(s.weft, "bad-geneve") + drops(s.weft, "bad-vxlan") + drops(s.weft, "tunnel-payload"); n != 0 {
		t.Errorf("%d frames of Open vSwitch were refused:\n%s", n, s.weft.Weft("show"))
	}
}

// GRE and ERSPAN version 2 carry TCP to and from Open vSwitch, through packet sockets. Each switch matches
// the key that the other one sends.
func TestGREToOpenVSwitch(t *testing.T) {
	t.Parallel()
	s := newTunnelSite(t, "af_packet")
	for _, c := range []struct{ name, ovs, weft string }{
		{"gre", "type=gre", "type=gre"},
		{"es2", "type=erspan options:erspan_ver=2 options:erspan_dir=1 options:erspan_hwid=7", "type=erspan erspan_ver=2 erspan_dir=1 erspan_hwid=7"},
	} {
		s.add(c.name, c.ovs, strings.Fields(c.weft)...)
		key := fmt.Sprint(",tun_id=", siteVNI)
		s.connect(c.name, marks{ovsMatch: key, weftMatch: key})
		reach(t, s.guest, remoteIP)
		flood(t, s.far, s.guest, guestIP)
		flood(t, s.guest, s.far, remoteIP)    // large frames, which the worker cuts
		s.ovs.vsctl("del-port br0 " + c.name) // Open vSwitch cannot tell GRE from ERSPAN of one remote
		s.weft.Weft("del-port", c.name)
	}
	if n := drops(s.weft, "bad-gre") + drops(s.weft, "tunnel-payload") + drops(s.weft, "no-tunnel-port"); n != 0 {
		t.Errorf("%d frames of Open vSwitch were refused:\n%s", n, s.weft.Weft("show"))
	}
}

// Linux's own vxlan device with group policies sets the mark of a received frame to the frame's
// policy, and sends the mark of a frame as its policy.
func TestGroupPolicyWithLinux(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	near, guest, far := l.Host("near"), l.Host("guest"), l.Host("far")
	l.Wire(near, "u0", far, "u0", underlayMTU)
	near.Address("u0", hostIP+"/24")
	far.Address("u0", peerIP+"/24")
	far.NoOffloads("u0")
	far.Run("ip", "link", "add", "vx7", "type", "vxlan", "id", fmt.Sprint(siteVNI), "local", peerIP, "remote", hostIP, "dstport", "4789", "dev", "u0", "gbp")
	far.Address("vx7", remoteIP+"/24")
	// packets from the tunnel without the mark 0x99 are refused, before the lookup of local addresses
	far.Run("ip", "rule", "add", "pref", "10", "lookup", "local")
	far.Run("ip", "rule", "add", "pref", "4", "fwmark", "0x99", "iif", "vx7", "lookup", "local")
	far.Run("ip", "rule", "add", "pref", "5", "iif", "vx7", "prohibit")
	far.Run("ip", "rule", "del", "pref", "0")

	d := near.Weftd()
	d.Weft("add-port", "uplink", "type=af_packet", "dev=u0")
	d.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+peerIP, "gbp=on")
	d.Tap(guest, guestMAC, guestIP+"/24", guestMTU)
	d.Weft("add-flow", "in_port=guest,actions=set_field:0x99->tun_gbp_id,output:overlay")
	d.Weft("add-flow", "in_port=overlay,arp,actions=output:guest")
	d.Weft("add-flow", "in_port=overlay,ip,tun_gbp_id=119,actions=output:guest")
	reach(t, far, guestIP, "-m", "119")

	silent := func(mark, failure string) {
		t.Helper()
		if p, err := lab.Ping(far, guestIP, 3, "-m", mark); err != nil || p.Received != 0 {
			t.Errorf("%s: %+v, %v", failure, p, err)
		}
	}
	silent("120", "another policy reaches the guest")
	d.Weft("mod-flows", "in_port=guest,actions=set_field:0x98->tun_gbp_id,output:overlay")
	silent("119", "a reply with another policy is taken")
}
