// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/packet"
)

// servedEnv is networkEnv whose network of VNI 1 has services at 10.0.0.200.
func servedEnv() *fakeEnv {
	env := networkEnv(true)
	env.macs.Change(&fdb.Change{Networks: map[fdb.Segment]*fdb.Network{
		fdb.SegmentOf(1): {Flood: true, Members: []netip.Addr{underlayIP(1)}, Services: &fdb.Services{DHCPv4: true, DHCPv6: true, Advertise: true, Addresses: []netip.Addr{hostIP(200)}}},
	}})
	return env
}

// The host itself takes a DHCP request, but only in a network with services. Services do not change
// where other frames go. Megaflows of other frames match UDP ports only for broadcasts.
func TestRequests(t *testing.T) {
	p, env := centralPipeline(t), servedEnv()
	const dhcp = "udp,nw_src=0.0.0.0,nw_dst=255.255.255.255,tp_src=68,tp_dst=67,dl_src=00:00:00:00:00:01,"
	ports := uint64(0xffffffff) << flowtable.TPDstShift
	for text, want := range map[string]struct {
		request, dropped, ports bool
	}{
		"in_port=1," + dhcp + "dl_dst=ff:ff:ff:ff:ff:ff":                                                      {true, true, true},
		"in_port=1," + dhcp + "dl_dst=02:57:65:66:74:00":                                                      {true, true, true},
		"in_port=1," + dhcp + "dl_dst=00:00:00:00:00:02":                                                      {false, false, false},
		"in_port=3," + dhcp + "dl_dst=ff:ff:ff:ff:ff:ff":                                                      {false, false, false},
		"in_port=9,tun_id=1," + dhcp + "dl_dst=ff:ff:ff:ff:ff:ff":                                             {false, false, false},
		"in_port=1,udp,tp_src=68,tp_dst=69,dl_src=00:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff":                 {false, false, true},
		"in_port=1,udp,tp_src=69,tp_dst=67,dl_src=00:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff":                 {false, false, true},
		"in_port=1,tcp,tp_src=68,tp_dst=67,dl_src=00:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff":                 {false, false, false},
		"in_port=1,arp,arp_op=1,dl_src=00:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff":                            {false, false, false},
		"in_port=1,icmp,dl_src=00:00:00:00:00:01,dl_dst=02:57:65:66:74:00":                                    {false, true, false},
		"in_port=1,udp,tp_src=1,tp_dst=53,dl_src=00:00:00:00:00:01,dl_dst=02:57:65:66:74:00":                  {false, true, true},
		"in_port=1,udp6,tp_src=68,tp_dst=67,dl_src=00:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff":                {false, false, false},
		"in_port=1,dl_vlan=5," + dhcp + "dl_dst=ff:ff:ff:ff:ff:ff":                                            {false, false, false},
		"in_port=1,udp,nw_frag=later,dl_src=00:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff":                       {false, false, false},
		"in_port=1,udp,tp_src=68,tp_dst=67,nw_src=10.0.0.1,dl_src=00:00:00:00:00:01,dl_dst=01:00:5e:00:00:01": {false, false, false},
		"in_port=1,icmp6,icmp_type=133,icmp_code=0,dl_src=00:00:00:00:00:01,dl_dst=33:33:00:00:00:02":         {true, true, false},
		"in_port=1,icmp6,icmp_type=134,icmp_code=0,dl_src=00:00:00:00:00:01,dl_dst=33:33:00:00:00:02":         {false, false, false},
		"in_port=3,icmp6,icmp_type=133,icmp_code=0,dl_src=00:00:00:00:00:01,dl_dst=33:33:00:00:00:02":         {false, false, false},
		"in_port=1,udp6,tp_src=546,tp_dst=547,dl_src=00:00:00:00:00:01,dl_dst=33:33:00:01:00:02":              {true, true, true},
		"in_port=1,udp6,tp_src=546,tp_dst=546,dl_src=00:00:00:00:00:01,dl_dst=33:33:00:01:00:02":              {false, false, true},
		"in_port=1,udp6,tp_src=546,tp_dst=547,dl_src=00:00:00:00:00:01,dl_dst=33:33:00:00:00:01":              {false, false, false},
	} {
		k := keyOfText(t, text)
		tr := Translate(p, &k, env)
		dropped := len(tr.Actions) == 1 && tr.Actions[0].Op == flowtable.OpDrop && tr.Drop == packet.DropReserved
		if tr.Request != want.request || dropped != want.dropped || want.ports != (tr.Mask[flowtable.WL4]&ports != 0) && !strings.Contains(text, "icmp6") {
			t.Errorf("%s: request %v, actions %v, mask of ports %x", text, tr.Request, tr.Actions, tr.Mask[flowtable.WL4])
		}
	}
	// A change of the services changes the frame's translation, so it depends on the network.
	k := keyOfText(t, "in_port=1,"+dhcp+"dl_dst=ff:ff:ff:ff:ff:ff")
	for name, e := range map[string]*fakeEnv{"with services": env, "without": networkEnv(true)} {
		if tr := Translate(p, &k, e); !slices.Contains(tr.Addresses, fdb.RefOfNetwork(fdb.SegmentOf(1))) {
			t.Errorf("%s: depends on %x", name, tr.Addresses)
		}
	}
}

// The host answers for the service's address with the service's MAC address.
func TestServiceAddress(t *testing.T) {
	p, env := centralPipeline(t), servedEnv()
	arp := "arp,arp_op=1,dl_src=00:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff,arp_sha=00:00:00:00:00:01,arp_spa=" + hostIP(1).String() + ",arp_tpa=" + hostIP(200).String()
	k := keyOfText(t, "in_port=1,"+arp)
	tr := Translate(p, &k, env)
	if len(tr.Actions) != 1 || tr.Actions[0].Op != flowtable.OpAnswer || tr.Actions[0].U64 != fdb.ServiceMAC || openflow.FormatEthernet(tr.Actions[0].U64) != "02:57:65:66:74:00" ||
		!slices.Contains(tr.Addresses, fdb.RefOfNetwork(fdb.SegmentOf(1))) {
		t.Errorf("%v, depends on %x", tr.Actions, tr.Addresses)
	}
	k = keyOfText(t, "in_port=3,"+arp)
	if tr := Translate(p, &k, env); len(tr.Actions) == 1 && tr.Actions[0].Op == flowtable.OpAnswer {
		t.Errorf("another network: %v", tr.Actions)
	}
}
