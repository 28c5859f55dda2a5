// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"testing"

	"weft/flowtable"
	"weft/openflow"
)

// encap and decap change the packet type. A packet without an Ethernet header is not sent.
func TestEncap(t *testing.T) {
	const (
		v4    = "in_port=1,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02,tcp,nw_tos=32,nw_ttl=7"
		mpls  = "in_port=1,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02,mpls,mpls_label=5,mpls_bos=1,mpls_ttl=8"
		nsh   = "in_port=1,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02,dl_type=0x894f,nsh_mdtype=1,nsh_ttl=2,nsh_spi=7"
		plain = "set(eth(dst=00:00:00:00:00:00)),set(eth(src=00:00:00:00:00:00))"
	)
	for _, c := range []struct{ frame, actions, first, second string }{
		{v4, "encap(mpls),set_mpls_label:2,encap(ethernet),mod_dl_dst:00:00:00:00:00:09,2",
			"add_mpls(eth_type=0x8847,lse=0x00000107),push_eth,set(eth(dst=00:00:00:00:00:09)),set(shim=0x00002107),2", ""},
		{v4, "encap(mpls_mc),set_mpls_label:3,encap(mpls_mc),set_mpls_label:2,encap(ethernet),2",
			"add_mpls(eth_type=0x8848,lse=0x00000107),push_eth,set(shim=0x00003107),push_mpls(eth_type=0x8848,lse=0x00003007),set(shim=0x00002007),2", ""},
		{v4, "decap,encap(mpls),encap(ethernet),2", "push_mpls(eth_type=0x8847,lse=0x00000107)," + plain + ",2", ""},
		{v4, "decap(),encap(ethernet),2,resubmit(,1)", plain + ",2,3", ""},
		{mpls, "decap(),decap(packet_type(ns=0,type=0)),2", "pop_eth,pop_mpls(eth_type=0x6558),2", ""},
		{mpls, "decap(),decap(packet_type(ns=0,type=0)),enqueue:2:1,set_queue:1,pop_queue,output(port=2,max_len=20)",
			"pop_eth,pop_mpls(eth_type=0x6558),2,trunc(20),2", ""},
		{mpls, "decap(),decap(packet_type(ns=0,type=0)),resubmit(,1)", "pop_eth,pop_mpls(eth_type=0x6558),recirc", "3"},
		{mpls, "decap(),decap(packet_type(ns=1,type=0x800)),encap(ethernet),2", "pop_mpls(eth_type=0x0800),recirc", plain + ",2"},
		{mpls, "decap(),decap(packet_type(ns=1,type=0x8847)),decap(packet_type(ns=0,type=0)),2", "pop_mpls(eth_type=0x8847),recirc",
			"pop_eth,pop_mpls(eth_type=0x6558),2"},
		{mpls, "clone(decap(),decap(packet_type(ns=0,type=0)),2),3", "recirc,3", "pop_eth,pop_mpls(eth_type=0x6558),2"},
		{v4, "write_actions(2,encap(ethernet),decap())", plain + ",2", ""},
		{v4, "1,3,decap(),2", "3", ""},
		{v4, "decap(),resubmit(,1)", "drop(packet-type)", ""},
		{v4, "decap(),normal", "drop(packet-type)", ""},
		{v4, "decap(),controller", "drop(packet-type)", ""},
		{v4, "encap(mpls),output(port=2,max_len=99)", "drop(packet-type)", ""},
		{v4, "3,encap(ethernet),2", "3,drop(packet-type)", ""},
		{v4, "decap(),decap(),encap(ethernet),2", "drop(packet-type)", ""},
		{mpls, "decap(),decap(),2", "drop(packet-type)", ""},
		{v4 + ",dl_vlan=5", "decap(),encap(ethernet),2", "drop(packet-type)", ""},
		{v4, "encap(nsh(md_type=1)),set_field:0x1234->nsh_spi,set_field:0x11223344->nsh_c1,encap(ethernet),mod_dl_dst:00:00:00:00:00:09,2",
			"push_nsh(flags=0,ttl=63,mdtype=1,np=3,spi=0x0,si=255),push_eth,set(eth(dst=00:00:00:00:00:09)),set(nsh(spi=0x1234)),set(nsh(c1=0x11223344)),2", ""},
		{v4, "decap(),encap(nsh(md_type=2)),encap(ethernet),2", "push_nsh(flags=0,ttl=63,mdtype=2,np=1,spi=0x0,si=255)," + plain + ",2", ""},
		{mpls, "decap(),encap(nsh),encap(ethernet),2", "push_nsh(flags=0,ttl=63,mdtype=1,np=5,spi=0x0,si=255)," + plain + ",2", ""},
		{nsh, "decap(),encap(nsh),encap(ethernet),2", "push_nsh(flags=0,ttl=63,mdtype=1,np=4,spi=0x0,si=255)," + plain + ",2", ""},
		{"in_port=1,dl_type=0x88cc", "decap(),encap(nsh),encap(ethernet),2", "drop(packet-type)", ""},
		{nsh + ",nsh_np=3", "decap(),decap(),2", "pop_eth,pop_nsh(eth_type=0x6558),2", ""},
		{nsh + ",nsh_np=3", "decap(),decap(),resubmit(,1)", "pop_eth,pop_nsh(eth_type=0x6558),recirc", "3"},
		{nsh + ",nsh_np=1", "decap(),decap(),encap(ethernet),2", "pop_nsh(eth_type=0x0800),recirc", plain + ",2"},
		{nsh + ",nsh_np=5", "decap(),decap(packet_type(ns=1,type=0x8847)),encap(ethernet),2", "pop_nsh(eth_type=0x8847),recirc", plain + ",2"},
		{nsh + ",nsh_np=9", "decap(),decap(),2", "drop(packet-type)", ""},
		{nsh + ",nsh_np=1", "decap(),decap(packet_type(ns=0,type=0)),2", "drop(packet-type)", ""},
		{nsh, "dec_nsh_ttl,2,dec_nsh_ttl,3", "set(nsh(ttl=1)),2", ""},
		{v4, "encap(nsh),output:2", "drop(packet-type)", ""},
	} {
		p, env := pipelineOf(t, "table=1,actions=3"), newRecircEnv()
		actions, err := openflow.ParseActions(c.actions, nil)
		if err != nil {
			t.Fatalf("%s: %v", c.actions, err)
		}
		if _, err := p.Apply([]openflow.FlowMod{{Command: openflow.Add, Actions: actions}}, 0); err != nil {
			t.Fatal(err)
		}
		k := frameKey(t, c.frame)
		first := Translate(p, &k, env).Actions
		if got := recircID.ReplaceAllString(openflow.FormatDatapathActions(first, nil), "recirc"); got != c.first {
			t.Errorf("%s on %s:\n got %s\nwant %s", c.actions, c.frame, got, c.first)
		}
		second := ""
		for _, a := range first {
			if a.Op == flowtable.OpRecirc {
				again := k // the second translation sees the frame whose last label is left
				again.SetRecirc(a.U32)
				second = openflow.FormatDatapathActions(Translate(p, &again, env).Actions, nil)
			}
		}
		if second != c.second {
			t.Errorf("%s, second look-up:\n got %s\nwant %s", c.actions, second, c.second)
		}
	}
}
