// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"weft/e2e/lab"
)

// Switch a pushes VLAN tags and decrements the TTL before encapsulation; switch b
// pops the tags. Checksums stay valid for small, large and unfinished frames. dec_ttl
// with push_vlan needs a match of ip or ipv6, as in Open vSwitch.
//
//	one ──tap── weftd a ── u0 ══veth══ u0 ── weftd b ──tap── two
func TestVLANWithTTLIntoVXLAN(t *testing.T) {
	t.Parallel()
	oneTag := vlanCase{"push_vlan:0x8100,set_field:4103->vlan_vid,dec_ttl", "dl_vlan=7", "dec_ttl,pop_vlan"}
	twoTags := vlanCase{"dec_ttl,push_vlan:0x8100,set_field:4103->vlan_vid,push_vlan:0x88a8,set_field:4105->vlan_vid",
		"dl_vlan=9", "pop_vlan,pop_vlan,dec_ttl"}
	for _, uplink := range []string{"af_xdp", "af_packet"} {
		t.Run(uplink+", one tag", func(t *testing.T) { vlanIntoVXLAN(t, uplink, oneTag) })
		t.Run(uplink+", two tags", func(t *testing.T) { vlanIntoVXLAN(t, uplink, twoTags) })
	}
}

// vlanCase has the actions of switch a, and the match and actions of switch b.
type vlanCase struct{ push, match, pop string }

func vlanIntoVXLAN(t *testing.T, uplink string, c vlanCase) {
	l := newLab(t)
	hosts := []*lab.Host{l.Host("a"), l.Host("b")}
	guests := []*lab.Host{l.Host("one"), l.Host("two")}
	l.Wire(hosts[0], "u0", hosts[1], "u0", underlayMTU)
	underlay, v4, v6 := []string{hostIP, peerIP}, []string{guestIP, remoteIP}, []string{"fd00::1", "fd00::2"}
	for i, h := range hosts {
		h.Address("u0", underlay[i]+"/24")
	}
	var weft []*lab.Daemon
	for i, h := range hosts {
		d := h.Weftd()
		weft = append(weft, d)
		d.Weft("add-port", "uplink", "type="+uplink, "dev=u0")
		d.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+underlay[1-i])
		d.Tap(guests[i], fmt.Sprint("02:00:00:00:00:0", i+1), v4[i]+"/24", guestMTU)
		guests[i].EnableIPv6()
		guests[i].Address("eth0", v6[i]+"/64")
		name := guests[i].Name
		for _, ip := range []string{"ip", "ipv6"} {
			d.Weft("add-flow", "priority=10,in_port="+name+","+ip+",actions="+c.push+",output:overlay")
			d.Weft("add-flow", "priority=10,in_port=overlay,"+c.match+","+ip+",actions="+c.pop+",output:"+name)
		}
		// neighbour discovery needs an unchanged hop limit of 255, so its frames get
		// other flows
		for _, words := range []string{"arp", "icmp6,icmp_type=135", "icmp6,icmp_type=136"} {
			d.Weft("add-flow", "priority=20,in_port="+name+","+words+",actions="+removeAction(c.push, "dec_ttl")+",output:overlay")
			d.Weft("add-flow", "priority=20,in_port=overlay,"+c.match+","+words+",actions="+removeAction(c.pop, "dec_ttl")+",output:"+name)
		}
	}
	wrong := 0
	for i, from := range guests {
		reach(t, from, v4[1-i])
		reach(t, from, v6[1-i])
		wrong += checksumErrors(t, from, "cat")
	}
	for _, to := range []string{v4[1], v6[1]} {
		// ping counts a reply that takes longer than two round trips as lost
		out, err := guests[0].Try("ping", "-n", "-c", "10", "-i", "0.1", to)
		if replies := strings.Count(out, "ttl="); err != nil || replies == 0 || strings.Count(out, "ttl=62 ") != replies {
			t.Errorf("ping %s, with a hop in each switch: %v\n%s", to, err, out)
		}
		flood(t, guests[0], guests[1], to)
		flood(t, guests[0], guests[1], to, "-u", "-b", "50M")
	}
	if p := portOf(t, weft[0], "one").Stats; p.RxBytes < 2000*p.RxPackets {
		t.Errorf("the guest sent %d frames of %d bytes in all: no large ones", p.RxPackets, p.RxBytes)
	}
	for _, g := range guests {
		wrong -= checksumErrors(t, g, "cat")
	}
	if wrong != 0 {
		t.Errorf("%d wrong checksums or headers", -wrong)
	}
	for _, reason := range []string{"bad-offload", "bad-ipv4", "bad-ipv6", "bad-transport", "no-headroom", "too-big-for-tunnel"} {
		for _, d := range weft {
			if n := drops(d, reason); n != 0 {
				t.Errorf("%d frames dropped as %s", n, reason)
			}
		}
	}
}

func removeAction(actions, action string) string {
	return strings.Trim(strings.ReplaceAll(","+actions+",", ","+action+",", ","), ",")
}
