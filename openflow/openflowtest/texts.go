// SPDX-License-Identifier: Apache-2.0

// Package openflowtest makes random flows and frames for the tests of package openflow and of packages that
// import it. A flow is a text, and a frame is a flowtable.Key. So this package does not import openflow, and
// the tests of openflow can use it. It also has the port names and the TLV map of these tests.
package openflowtest

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"

	"weft/flowtable"
	"weft/packet"
)

// Options has the Geneve options of several frames. The TLV map TLVMappings has some of these options. Some
// options have another length than in the map. Some are critical, with or without a mapping.
var Options = [][]byte{
	{1, 2, 0, 1, 0, 0, 0, 1},
	{1, 2, 0, 1, 0, 0, 0, 2, 1, 2, 1, 2, 0, 0, 0, 0, 0, 0, 0, 1},
	{0, 9, 9, 1, 7, 7, 7, 7, 1, 2, 1, 2, 0, 0, 0, 0, 0, 0, 0, 2},
	{1, 2, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1},
	{0xff, 0xff, 0x80, 0, 1, 2, 0, 1, 0, 0, 0, 1},
	{0, 0, 0x81, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5},
	{1, 2, 0, 1, 0, 0, 0, 1, 0, 9, 0x80, 0},
	{0, 0, 0x81, 1, 0, 0, 0, 0},
}

// IsCritical reports whether one of the Geneve options in "raw" is critical: a receiver that does not know it
// must drop the frame.
func IsCritical(raw []byte) bool {
	for ; len(raw) >= 4; raw = raw[4+4*int(raw[3]&31):] {
		if raw[2]&0x80 != 0 {
			return true
		}
	}
	return false
}

// Pick returns a random element of the list.
func Pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// Key returns the key of a random valid frame. Each field has few different values, so that random flows
// match often.
func Key(r *rand.Rand) (k flowtable.Key) {
	put := func(word, shift int, v uint64) { k[word] |= v << shift }
	put(flowtable.WPort, 32, uint64(1+r.IntN(6)))
	put(flowtable.WEthSrc, 16, Pick[uint64](r, 1, 2, 3, 0x0a0000000001))
	put(flowtable.WEthDst, 16, Pick[uint64](r, 1, 2, 3, 0xffffffffffff, 0x0180c2000001, 0x010000000001))
	if r.IntN(2) == 0 {
		k[flowtable.WEthSrc] |= uint64(flowtable.VLANPresent | r.IntN(3) | r.IntN(2)<<13)
		if r.IntN(3) == 0 {
			k[flowtable.WIP] |= uint64(flowtable.VLANPresent|r.IntN(3)) << flowtable.InnerTCIShift
		}
	}
	if r.IntN(3) == 0 {
		put(flowtable.WTunID, 0, uint64(r.IntN(3)))
		put(flowtable.WTunIPv4, 32, 0xc0000200|uint64(r.IntN(3)))
		put(flowtable.WTunIPv4, 0, 0xc0000200|uint64(r.IntN(3)))
		put(flowtable.WTunMeta, flowtable.TunGBPIDShift, uint64(r.IntN(3)))
		put(flowtable.WTunMeta, flowtable.TunGBPFlagsShift, uint64(Pick(r, 0, 8, 0x48)))
		put(flowtable.WTunMeta, flowtable.TunFlagsShift, uint64(r.IntN(2)))
		if n := r.IntN(len(Options) + 1); n > 0 {
			k[flowtable.WTunOpts] = uint64(n)
			if IsCritical(Options[n-1]) {
				k[flowtable.WTunMeta] |= flowtable.TunCritical
			}
		}
	}
	eth := Pick[uint64](r, packet.EtherTypeIPv4, packet.EtherTypeIPv4, packet.EtherTypeIPv6, packet.EtherTypeARP, 0x88cc, packet.EtherTypeMPLS, packet.EtherTypePBB, packet.EtherTypeNSH)
	put(flowtable.WEthDst, 0, eth)
	v4 := func() uint64 { return 0x0a000000 | uint64(r.IntN(4))<<16 | uint64(r.IntN(3)) }
	switch eth {
	case packet.EtherTypeARP:
		put(flowtable.WIP, flowtable.ProtoShift, uint64(1+r.IntN(2)))
		put(flowtable.WIPv4, 32, v4())
		put(flowtable.WIPv4, 0, v4())
		put(flowtable.WARPSha, 16, uint64(r.IntN(3)))
		put(flowtable.WARPTha, 16, uint64(r.IntN(3)))
		return k
	case packet.EtherTypeMPLS:
		put(flowtable.WIPv4, flowtable.ShimShift+12, uint64(r.IntN(3)))
		put(flowtable.WIPv4, flowtable.ShimShift, uint64(r.IntN(4)))
		put(flowtable.WIPv4, flowtable.ShimShift+9, uint64(r.IntN(2)))
		put(flowtable.WIPv4, flowtable.ShimShift+8, uint64(r.IntN(2)))
		return k
	case packet.EtherTypePBB:
		put(flowtable.WIPv4, flowtable.ShimShift, uint64(r.IntN(3)))
		return k
	case packet.EtherTypeNSH:
		put(flowtable.WIPv4, packet.NSHFlagsShift, uint64(r.IntN(2)))
		put(flowtable.WIPv4, packet.NSHTTLShift, uint64(r.IntN(4)))
		put(flowtable.WIPv4, packet.NSHMDTypeShift, packet.NSHType1)
		put(flowtable.WIPv4, packet.NSHNextShift, uint64(1+r.IntN(3)))
		put(flowtable.WIPv4, packet.NSHSPIShift, uint64(r.IntN(3)))
		put(flowtable.WIPv4, 0, uint64(r.IntN(3)))
		put(flowtable.WIPv6Src, 32, uint64(r.IntN(3)))
		put(flowtable.WIPv6Src, 0, uint64(r.IntN(3)))
		put(flowtable.WIPv6Src+1, 32, uint64(r.IntN(3)))
		put(flowtable.WIPv6Src+1, 0, uint64(r.IntN(3)))
		return k
	case packet.EtherTypeIPv4:
		put(flowtable.WIPv4, 32, v4())
		put(flowtable.WIPv4, 0, v4())
	case packet.EtherTypeIPv6:
		for _, word := range []int{flowtable.WIPv6Src, flowtable.WIPv6Dst} {
			k[word], k[word+1] = 0xfe80<<48, uint64(r.IntN(3))
		}
	default:
		return k
	}
	put(flowtable.WIP, flowtable.TOSShift, uint64(Pick(r, 0, 0, 4, 8, 1)))
	put(flowtable.WIP, flowtable.TTLShift, uint64(Pick(r, 0, 1, 2, 3, 5, 63, 64, 128, 255)))
	put(flowtable.WIP, flowtable.FragShift, uint64(Pick(r, 0, 0, 0, 1, 3)))
	proto := Pick[uint64](r, packet.ProtoTCP, packet.ProtoTCP, packet.ProtoUDP, packet.ProtoICMP, packet.ProtoICMPv6, packet.ProtoSCTP)
	put(flowtable.WIP, flowtable.ProtoShift, proto)
	if k[flowtable.WIP]>>flowtable.FragShift&flowtable.FragLater != 0 {
		return k
	}
	src := uint64(Pick(r, 80, 81, 443, 135, 136))
	if proto == packet.ProtoICMP || proto == packet.ProtoICMPv6 {
		src &= 0xff // an ICMP type
	}
	put(flowtable.WL4, flowtable.TPSrcShift, src)
	put(flowtable.WL4, flowtable.TPDstShift, uint64(Pick(r, 80, 0, 22)))
	if eth == packet.EtherTypeIPv6 && r.IntN(2) == 0 {
		put(flowtable.WL4, 0, uint64(r.IntN(4)))
		put(flowtable.WL4, flowtable.ExtHdrShift, uint64(r.IntN(4)))
	}
	if eth == packet.EtherTypeIPv6 && proto == packet.ProtoICMPv6 && k[flowtable.WL4]>>flowtable.TPSrcShift >= packet.NDSolicitation {
		k[flowtable.WNDTarget], k[flowtable.WNDTarget+1] = 0xfe80<<48, uint64(r.IntN(3))
		put(flowtable.WARPSha, 16, uint64(r.IntN(3)))
		put(flowtable.WARPTha, 16, uint64(r.IntN(3)))
		put(flowtable.WND, 32, uint64(r.IntN(3))<<30)
		put(flowtable.WND, 24, uint64(r.IntN(3)))
	}
	if proto == packet.ProtoTCP {
		put(flowtable.WIP, 0, uint64(r.IntN(4)))
	}
	return k
}

func randomICMPv6(r *rand.Rand) []string {
	typ := Pick(r, 80, 135, 136, 135, 136)
	w := []string{fmt.Sprintf("%s=%d", Pick(r, "icmp_type", "icmpv6_type"), typ)}
	if r.IntN(6) == 0 {
		w = append(w, fmt.Sprintf("icmpv6_code=%d", Pick(r, 0, 22)))
	}
	if typ >= packet.NDSolicitation && r.IntN(3) == 0 {
		w = append(w, fmt.Sprintf("nd_target=fe80::%d/%d", r.IntN(3), Pick(r, 126, 128)))
	}
	if typ >= packet.NDSolicitation && r.IntN(3) == 0 {
		w = append(w, fmt.Sprintf("nd_%s=00:00:00:00:00:0%d", map[int]string{packet.NDSolicitation: "sll", packet.NDAdvertisement: "tll"}[typ], r.IntN(3)))
	}
	if typ >= packet.NDSolicitation && r.IntN(3) == 0 {
		w = append(w, fmt.Sprintf("nd_reserved=%d", r.IntN(3)<<30))
	}
	if typ >= packet.NDSolicitation && r.IntN(3) == 0 {
		w = append(w, fmt.Sprintf("nd_options_type=%d", r.IntN(3)))
	}
	return w
}

// MatchText returns the text of a random match whose prerequisites are met.
func MatchText(r *rand.Rand) string {
	var w []string
	add := func(odds int, format string, args ...any) {
		if r.IntN(odds) == 0 {
			w = append(w, fmt.Sprintf(format, args...))
		}
	}
	add(12, "conj_id=%d", 1+r.IntN(4))
	add(9, "pkt_mark=%d%s", r.IntN(3), Pick(r, "", "/3"))
	add(3, "%s=%d", Pick(r, "in_port", "in_port", "in_port_oxm"), 1+r.IntN(6))
	add(40, "in_port=%s", "LOCAL")
	add(6, "dl_src=00:00:00:00:00:0%d", r.IntN(4))
	add(6, "dl_dst=01:00:00:00:00:00/01:00:00:00:00:00")
	add(6, "dl_dst=00:00:00:00:00:0%d", r.IntN(4))
	add(5, "%s", Pick(r, "dl_vlan=1", "dl_vlan=0xffff", "dl_vlan_pcp=1", "vlan_pcp=0", "vlan_vid=0x1001", "vlan_tci=0x1000/0x1000", "vlan_tci=0x1001", "vlan_tci=0x0000/0x0001", "vlan_vid=0x1002/0x1002"))
	add(6, "tun_id=%d", r.IntN(3))
	add(8, "tun_src=192.0.2.%d", r.IntN(3))
	add(12, "tun_dst=192.0.2.%d/%d", r.IntN(3), 24+r.IntN(9))
	add(40, "tun_ipv6_%s=fe80::%d", Pick(r, "src", "dst"), r.IntN(2))
	add(30, "%s", Pick(r, "tun_gbp_id=1", "tun_gbp_id=0/1", "tun_gbp_flags=8", "tun_flags=+oam", "tun_flags=-oam"))
	add(14, "%s", Pick(r, "tun_metadata0", "tun_metadata0=1", "tun_metadata0=0/1", "tun_metadata1=1", "tun_metadata1=2/3", "tun_metadata63=5", "tun_metadata3", "tun_metadata2"))
	add(6, "metadata=%d/3", r.IntN(4))
	add(5, "reg%d=%d", r.IntN(3), r.IntN(3))
	add(9, "xreg%d=0x%d0000000%d/0xf0000000f", r.IntN(3), r.IntN(3), r.IntN(3))
	add(40, "reg%d=0", r.IntN(16))
	add(40, "x%sreg%d=0/0xff", Pick(r, "", "x"), r.IntN(4))
	add(60, "xreg%d=0/3", r.IntN(8))
	switch r.IntN(8) {
	case 7:
		w = append(w, "dl_type=0x894f,nsh_mdtype=1")
		add(4, "nsh_flags=%d%s", r.IntN(2), Pick(r, "", "/1"))
		add(3, "nsh_ttl=%d", r.IntN(4))
		add(4, "nsh_np=%d", 1+r.IntN(3))
		add(3, "nsh_spi=%d", r.IntN(3))
		add(3, "nsh_si=%d", r.IntN(3))
		add(4, "nsh_c1=%d%s", r.IntN(3), Pick(r, "", "/1"))
		add(6, "nsh_c2=%d", r.IntN(3))
		add(6, "nsh_c3=%d/2", r.IntN(2)*2)
		add(6, "nsh_c4=%d", r.IntN(3))
	case 6:
		if r.IntN(3) == 0 {
			w = append(w, "dl_type=0x88e7")
			add(2, "pbb_isid=%d%s", r.IntN(3), Pick(r, "", "/1"))
			break
		}
		w = append(w, "mpls")
		add(2, "mpls_label=%d", r.IntN(3))
		add(4, "mpls_tc=%d", r.IntN(2))
		add(3, "mpls_ttl=%d", r.IntN(4))
		add(4, "mpls_bos=%d", r.IntN(2))
	case 0:
		w = append(w, "arp")
		add(2, "arp_op=%d", 1+r.IntN(2))
		add(2, "arp_spa=10.%d.0.0/16", r.IntN(4))
		add(3, "arp_sha=00:00:00:00:00:0%d", r.IntN(3))
		add(4, "arp_tpa=10.%d.0.0/16", r.IntN(4))
		add(6, "arp_tha=00:00:00:00:00:0%d/00:00:00:00:00:03", r.IntN(3))
	case 1, 2, 3:
		v6 := r.IntN(3) == 0
		proto := Pick(r, "", "tcp", "tcp", "udp", "sctp", "icmp")
		switch {
		case proto == "" && v6:
			w = append(w, "ipv6")
		case proto == "":
			w = append(w, "ip")
		case v6:
			w = append(w, proto+"6")
		default:
			w = append(w, proto)
		}
		if v6 {
			add(3, "ipv6_src=fe80::%d", r.IntN(3))
			add(3, "ipv6_dst=fe80::/10")
			add(6, "ipv6_label=%d/3", r.IntN(4))
			add(9, "ipv6_exthdr=%d%s", r.IntN(4), Pick(r, "", "/1"))
		} else {
			add(3, "nw_src=10.%d.0.0/%d", r.IntN(4), 10+r.IntN(7))
			add(3, "nw_dst=10.%d.0.%d", r.IntN(4), r.IntN(3))
			add(9, "nw_dst=0.0.0.%d/0.0.0.3", r.IntN(3))
		}
		add(6, "nw_tos=%d", r.IntN(3)*4)
		add(12, "ip_dscp=%d", r.IntN(3))
		add(6, "nw_ecn=%d", r.IntN(2))
		add(6, "nw_ttl=%d", Pick(r, 0, 1, 2, 63, 64, 127))
		if proto != "" && proto != "icmp" {
			name := Pick(r, "tp", strings.TrimSuffix(proto, "6"))
			add(3, "%s_src=%d", name, Pick(r, 80, 81, 443))
			add(4, "%s_dst=%d/0x%x", name, r.IntN(90), Pick(r, 1, 0xfff0, 0x50))
			add(6, "nw_frag=%s", Pick(r, "no", "yes", "first", "not_later"))
		} else {
			add(6, "nw_frag=%s", Pick(r, "no", "yes", "first", "not_later"))
			if proto == "icmp" && v6 {
				w = append(w, randomICMPv6(r)...)
			} else if proto == "icmp" {
				add(3, "icmp_type=%d", Pick(r, 80, 135))
				add(6, "icmp_code=%d", Pick(r, 0, 22))
			}
		}
		if proto == "tcp" {
			add(4, "tcp_flags=%s", Pick(r, "+syn", "-syn", "fin|syn", "+fin-syn"))
		}
	}
	r.Shuffle(len(w), func(i, j int) {
		w[i], w[j] = w[j], w[i]
	})
	return strings.Join(w, ",")
}

// ActionTexts are the actions that random flows have. A test of package openflow fails unless they write
// each header field that an action can write.
var ActionTexts = []string{
	"1", "2", "output:4", "set_queue:1", "pop_queue", "enqueue:2:1", "output(port=2,max_len=64)", "output(port=5,max_len=100)", "output(port=in_port,max_len=14)", "5", "6", "in_port", "flood", "all", "normal", "3", "99", "7", "local",
	"mod_dl_src:00:00:00:00:00:02", "mod_dl_dst:00:00:00:00:00:03", "mod_nw_src:10.1.0.2", "mod_nw_dst:10.2.0.1",
	"mod_nw_tos:8", "mod_nw_ecn:1", "mod_nw_ttl:2", "mod_nw_ttl:64", "mod_tp_src:81", "mod_tp_dst:22",
	"set_field:00:00:00:00:00:01/00:00:00:00:00:0f->eth_dst", "load:1->eth_src[0..3]",
	"push_vlan:0x8100", "push_vlan:0x88a8", "strip_vlan", "strip_vlan", "mod_vlan_vid:2", "mod_vlan_pcp:1",
	"set_field:0x1001->vlan_tci", "set_field:0->vlan_tci", "load:1->vlan_tci[0..2]",
	"dec_mpls_ttl", "set_mpls_ttl(3)", "set_mpls_label(2)", "set_field:1->mpls_tc", "set_field:1/1->pbb_isid", "move:mpls_label[0..3]->reg0[0..3]",
	"dec_ttl", "dec_ttl", "set_field:1->tun_id", "set_field:192.0.2.1->tun_dst", "set_tunnel:2",
	"set_field:1->pkt_mark", "load:2->pkt_mark[0..1]", "move:pkt_mark[0..3]->reg0[0..3]", "set_field:1->reg0", "load:2->reg1[0..1]", "move:eth_src[0..7]->reg0[0..7]", "move:in_port->reg2[0..15]",
	"move:vlan_tci[0..11]->reg1[0..11]", "move:reg0->reg1", "output:reg0[0..2]", "load:0->in_port", "load:3->in_port",
	"set_field:1->metadata", "move:eth_dst->eth_src", "move:tun_id[0..7]->reg0[0..7]", "note:00",
	"move:reg0[0..15]->vlan_tci", "move:nw_ttl[0..2]->reg0[0..2]", "move:reg0[0..3]->nw_ttl[0..3]", "load:1->nw_ttl[1..2]",
	"clone(mod_dl_src:00:00:00:00:00:02,1)", "move:nw_src[0..7]->reg0[0..7]", "move:ipv6_src[0..7]->reg1[0..7]",
	"learn(table=3,in_port,eth_dst=eth_src,output:in_port)", "learn(table=9,vlan_tci[0..11],reg0[0..3]=reg1[4..7],load:eth_src[0..7]->reg2[0..7],load:3->reg1)",
	"learn(table=2,priority=7,limit=3,metadata=5,result_dst=reg0[0])", "learn(table=3,limit=9,result_dst=vlan_tci[2],cookie=0,output:reg0[0..15])",
	"group:1", "group:2", "group:3", "controller", "controller(id=3,max_len=9)",
	"set_field:2->arp_op", "set_field:10.3.0.0/255.255.0.0->arp_spa", "load:0x0a000001->arp_tpa", "set_field:00:00:00:00:00:02->arp_sha",
	"move:arp_sha->arp_tha", "move:arp_op->reg2[0..15]", "move:reg0[0..15]->arp_op", "load:0x102->arp_op", "load:1->arp_op[8..15]", "move:arp_spa->arp_tpa", "set_field:8->icmp_type", "load:3->icmp_code", "set_field:0x12/0xff->ipv6_label",
	"move:ipv6_label[0..3]->reg0[0..3]", "set_field:128->icmpv6_type", "load:1->icmpv6_code", "set_field:1->nw_ecn",
	"set_field:fe80::2->nd_target", "load:5->nd_sll[0..3]", "set_field:00:00:00:00:00:07->nd_tll",
	"set_field:0xe0000000->nd_reserved", "load:1->nd_reserved[30..31]", "move:nd_reserved[29..31]->reg1[0..2]",
	"set_field:2->nd_options_type", "load:1->nd_options_type[0]", "move:nd_options_type->reg1[0..7]",
	"push:reg0", "push:eth_src", "push:nw_src[0..7]", "push:ipv6_dst", "pop:reg1", "pop:reg2[0..15]", "pop:eth_dst", "pop:vlan_tci", "exit", "sample(probability=9)",
	"multipath(symmetric_l4,50,modulo_n,3,0,reg0[])", "multipath(symmetric_l3l4,0,hash_threshold,4,0,reg1[0..1])", "multipath(eth_src,1,hrw,5,0,reg2[])",
	"multipath(symmetric_l3l4+udp,9,iter_hash,6,8,metadata[0..2])", "multipath(nw_src,0,modulo_n,2,0,reg0[])", "multipath(symmetric_l3,0,modulo_n,2,0,reg0[])",
	"bundle(symmetric_l4,0,hrw,ofport,members:1,2,4)", "bundle(nw_dst,3,active_backup,ofport,members:99,5,1)", "bundle_load(eth_src,3,hrw,ofport,reg0[0..15],members:1,2)",
	"bundle_load(symmetric_l3l4,0,hrw,ofport,reg1[],members:)",
	"set_field:1->tun_gbp_id", "load:1->tun_gbp_id[0]", "set_field:8->tun_gbp_flags", "set_field:oam->tun_flags", "move:tun_gbp_id[0..3]->reg0[0..3]",
	"set_field:1->tun_metadata0", "set_field:0x2/0xff->tun_metadata0", "load:1->tun_metadata1[3..4]", "move:reg0->tun_metadata0[0..31]", "move:tun_metadata1[0..31]->reg0",
	"move:tun_metadata63[0..127]->xxreg0", "set_field:0x11223344556677889900aabbccddeeff00->tun_metadata2", "move:tun_metadata2[0..499]->tun_metadata2[100..599]",
	"set_field:0->tun_metadata3", "delete_field:tun_metadata0", "delete_field:tun_metadata63", "push:tun_metadata1[0..31]", "pop:tun_metadata63[10..50]",
	"dec_nsh_ttl", "set_field:1->nsh_flags", "set_field:2->nsh_ttl", "set_field:1->nsh_spi", "load:1->nsh_spi[0..1]", "set_field:2->nsh_si", "set_field:1->nsh_c1", "set_field:1/1->nsh_c2",
	"move:nsh_c1[0..3]->nsh_c3[0..3]", "load:2->nsh_c4[0..7]", "move:nsh_spi[0..7]->reg0[0..7]", "move:nsh_ttl[0..3]->reg1[0..3]",
	"set_field:fe80::1->ipv6_dst", "set_field:fe80::2->ipv6_src", "move:tp_dst->reg1[0..15]", "move:tcp_src->tcp_dst", "fin_timeout(idle_timeout=2,hard_timeout=3)", "fin_timeout(idle_timeout=1)",
}

// notInSets matches those texts in ActionTexts that an action set (write_actions) cannot have.
var notInSets = regexp.MustCompile(`^(clone|note|learn|fin|output:reg|output\(|pop_queue|enqueue|sample|push:|pop:|exit|multipath|bundle)`)

// ConjunctionsText returns the text of one or two conjunction actions.
func ConjunctionsText(r *rand.Rand) string {
	w := []string{fmt.Sprintf("conjunction(%d,%d/2)", 1+r.IntN(3), 1+r.IntN(2))}
	if r.IntN(3) == 0 {
		w = append(w, fmt.Sprintf("conjunction(4,%d/3)", 1+r.IntN(3)))
	}
	return strings.Join(w, ",")
}

// ActionsText returns the text of a random list of actions for a flow of the table. depth is the number of
// clone actions that already enclose the list.
func ActionsText(r *rand.Rand, table, depth int) string {
	if depth == 0 && r.IntN(6) == 0 {
		return ConjunctionsText(r)
	}
	var w []string
	for range r.IntN(4) {
		switch r.IntN(6) {
		case 0:
			if depth < 2 {
				w = append(w, "clone("+ActionsText(r, table, depth+1)+")")
			}
		case 1:
			port := Pick(r, "", "", "1", "2")
			w = append(w, fmt.Sprintf("resubmit(%s,%d)", port, Pick(r, table+1, table+1, table+2, r.IntN(4))))
		default:
			w = append(w, Pick(r, ActionTexts...))
		}
	}
	if depth == 0 {
		w = append(w, randomSet(r, table)...)
	}
	if depth == 0 && r.IntN(4) == 0 {
		if r.IntN(2) == 0 {
			w = append(w, fmt.Sprintf("write_metadata:%d/3", r.IntN(4)))
		}
		w = append(w, fmt.Sprintf("goto_table:%d", table+1+r.IntN(2)))
	}
	if len(w) == 0 {
		return "drop"
	}
	return strings.Join(w, ",")
}

// randomSet returns the texts of random clear_actions and write_actions instructions. In most cases it
// returns none.
func randomSet(r *rand.Rand, table int) (w []string) {
	if r.IntN(12) == 0 {
		w = append(w, "clear_actions")
	}
	if r.IntN(4) > 0 {
		return w
	}
	var set []string
	for range r.IntN(5) {
		if r.IntN(8) == 0 {
			set = append(set, fmt.Sprintf("resubmit(,%d)", table+1))
		}
		a := Pick(r, ActionTexts...)
		if !notInSets.MatchString(a) {
			set = append(set, a)
		}
	}
	return append(w, "write_actions("+strings.Join(set, ",")+")")
}

// FlowText returns the text of a random flow for one of the tables 0 to 3.
func FlowText(r *rand.Rand) string {
	table := r.IntN(4)
	return fmt.Sprintf("table=%d,priority=%d,%s,actions=%s", table, r.IntN(5), MatchText(r), ActionsText(r, table, 0))
}
