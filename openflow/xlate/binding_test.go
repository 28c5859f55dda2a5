// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/openflowtest"
	"weft/packet"
)

func bindingOf(t *testing.T, macs, addresses string) *Binding {
	t.Helper()
	b, wrong, expected := ParseBinding(macs, addresses)
	if expected != "" {
		t.Fatalf("ParseBinding refuses %s: expected %s", wrong, expected)
	}
	return b
}

// slowSpoofed is the slow twin of bindingCheck.spoofed.
func slowSpoofed(b *Binding, f *openflow.Flow) bool {
	get := func(id openflow.FieldID) openflow.Value128 { return openflow.WholeField(id).Get(f) }
	hostOf := func(id openflow.FieldID) *BoundHost { return b.host(get(id)[1]) }
	owns := func(h *BoundHost, a netip.Addr) bool {
		return len(h.Prefixes) == 0 || a.Is6() && h.linkLocal.Contains(a) ||
			slices.ContainsFunc(h.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	v4 := func(id openflow.FieldID) netip.Addr { return openflow.ValueAddr(get(id), 32) }
	v6 := func(id openflow.FieldID) netip.Addr { return openflow.ValueAddr(get(id), 128) }
	host := hostOf(openflow.FEthSrc)
	if host == nil {
		return true
	}
	proto, frag := get(openflow.FIPProto)[1], get(openflow.FIPFrag)[1]
	switch eth := get(openflow.FEthType)[1]; eth {
	case packet.EtherTypeARP, packet.EtherTypeRARP:
		sender := hostOf(openflow.FARPSha)
		if sender == nil {
			return true
		}
		if owns(sender, v4(openflow.FARPSpa)) {
			return false
		}
		return !v4(openflow.FARPSpa).IsUnspecified() || eth == packet.EtherTypeARP && !owns(sender, v4(openflow.FARPTpa))
	case packet.EtherTypeIPv4:
		dhcp := proto == packet.ProtoUDP && frag&flowtable.FragLater == 0 && get(openflow.FUDPSrc)[1] == 68 && get(openflow.FUDPDst)[1] == 67
		return !owns(host, v4(openflow.FIPSrc)) && !(v4(openflow.FIPSrc).IsUnspecified() && dhcp)
	case packet.EtherTypeIPv6:
		src := v6(openflow.FIPv6Src)
		owned := owns(host, src)
		if !owned && !src.IsUnspecified() {
			return true
		}
		typ := get(openflow.FICMPv6Type)[1]
		if proto != packet.ProtoICMPv6 || frag&flowtable.FragLater != 0 || typ != packet.NDSolicitation && typ != packet.NDAdvertisement {
			mld := proto == packet.ProtoICMPv6 && frag&flowtable.FragLater == 0 && (typ == 131 || typ == 132 || typ == 143)
			return !owned && !mld
		}
		link := openflow.FNDSll
		if typ == packet.NDAdvertisement {
			link = openflow.FNDTll
		}
		if !get(link).IsZero() {
			host = hostOf(link)
		}
		return frag != 0 || get(openflow.FNDTarget).IsZero() || host == nil ||
			(typ == packet.NDAdvertisement || src.IsUnspecified()) && !owns(host, v6(openflow.FNDTarget))
	case 0x8100, 0x88a8:
		return len(host.Prefixes) > 0
	}
	return false
}

func TestBindingDropsWhatIsSpoofed(t *testing.T) {
	const (
		own = "02:00:00:00:00:01"
		ll  = "fe80::ff:fe00:1"
	)
	env := newEnv()
	env.ports[0].Binding = bindingOf(t, "02:00:00:00:00:02", own+" 10.0.0.1 10.1.0.0/16 10.9.0.7/24 fd00::1")
	p := pipelineOf(t, "actions=2")
	ok, no := packet.DropNone, packet.DropSpoofed
	for _, c := range []struct {
		frame string
		want  packet.DropReason
	}{
		{"dl_src=" + own, ok},
		{"dl_src=02:00:00:00:00:03", no},
		{"dl_vlan=7,dl_src=" + own, ok},
		{"dl_type=0x88a8,dl_src=" + own, no},
		{"dl_type=0x88a8,dl_src=02:00:00:00:00:02", ok},
		{"ip,nw_src=10.0.0.1,dl_src=" + own, ok},
		{"ip,nw_src=10.0.0.2,dl_src=" + own, no},
		{"ip,nw_src=10.1.2.3,dl_src=" + own, ok},
		{"ip,nw_src=10.9.0.7,dl_src=" + own, ok},
		{"ip,nw_src=10.9.0.8,dl_src=" + own, no},
		{"ip,nw_src=10.0.0.2,dl_src=02:00:00:00:00:02", ok},
		{"ip,nw_src=10.0.0.2,nw_frag=later,dl_src=" + own, no},
		{"udp,nw_src=0.0.0.0,tp_src=68,tp_dst=67,dl_src=" + own, ok},
		{"udp,nw_src=0.0.0.0,tp_src=68,tp_dst=53,dl_src=" + own, no},
		{"tcp,nw_src=0.0.0.0,tp_src=68,tp_dst=67,dl_src=" + own, no},
		{"arp,arp_op=1,arp_spa=10.0.0.1,arp_tpa=10.0.0.9,arp_sha=" + own + ",dl_src=" + own, ok},
		{"arp,arp_op=2,arp_spa=10.0.0.9,arp_tpa=10.0.0.1,arp_sha=" + own + ",dl_src=" + own, no},
		{"arp,arp_op=2,arp_spa=10.0.0.1,arp_sha=02:00:00:00:00:09,dl_src=" + own, no},
		{"arp,arp_op=1,arp_spa=0.0.0.0,arp_tpa=10.0.0.1,arp_sha=" + own + ",dl_src=" + own, ok},
		{"arp,arp_op=1,arp_spa=0.0.0.0,arp_tpa=10.0.0.9,arp_sha=" + own + ",dl_src=" + own, no},
		{"arp,dl_src=" + own, no}, // ARP of an unknown hardware type
		{"rarp,arp_op=3,arp_sha=" + own + ",dl_src=" + own, ok},
		{"rarp,arp_op=3,arp_sha=02:00:00:00:00:09,dl_src=" + own, no},
		{"ipv6,ipv6_src=fd00::1,dl_src=" + own, ok},
		{"ipv6,ipv6_src=fd00::2,dl_src=" + own, no},
		{"ipv6,ipv6_src=" + ll + ",dl_src=" + own, ok},
		{"ipv6,ipv6_src=fe80::1,dl_src=" + own, no},
		{"ipv6,ipv6_src=fd00::2,dl_src=02:00:00:00:00:02", ok},
		{"tcp6,ipv6_src=::,dl_src=" + own, no},
		{"icmp6,icmp_type=143,ipv6_src=::,dl_src=" + own, ok},
		{"icmp6,icmp_type=128,ipv6_src=::,dl_src=" + own, no},
		{"icmp6,icmp_type=135,ipv6_src=::,nd_target=fd00::1,dl_src=" + own, ok},
		{"icmp6,icmp_type=135,ipv6_src=::,nd_target=" + ll + ",dl_src=" + own, ok},
		{"icmp6,icmp_type=135,ipv6_src=::,nd_target=fd00::2,dl_src=" + own, no},
		{"icmp6,icmp_type=135,ipv6_src=fd00::1,nd_target=fd00::2,nd_sll=" + own + ",dl_src=" + own, ok},
		{"icmp6,icmp_type=135,ipv6_src=fd00::1,nd_target=fd00::2,nd_sll=02:00:00:00:00:09,dl_src=" + own, no},
		{"icmp6,icmp_type=135,ipv6_src=fd00::1,nw_frag=first,nd_target=fd00::2,dl_src=" + own, no},
		{"icmp6,icmp_type=136,ipv6_src=fd00::1,nd_target=fd00::1,nd_tll=" + own + ",dl_src=" + own, ok},
		{"icmp6,icmp_type=136,ipv6_src=fd00::1,nd_target=fd00::2,nd_tll=" + own + ",dl_src=" + own, no},
		{"icmp6,icmp_type=136,ipv6_src=fd00::1,nd_target=fd00::1,nd_tll=02:00:00:00:00:09,dl_src=" + own, no},
		{"icmp6,icmp_type=136,ipv6_src=fd00::1,nd_target=::,dl_src=" + own, no},
	} {
		k := keyOfText(t, "in_port=1,"+c.frame)
		tr := Translate(p, &k, env)
		if tr.Drop != c.want || c.want == ok && len(tr.Actions) != 1 {
			t.Errorf("%s: drop %v, actions %s; want drop %v", c.frame, tr.Drop, openflow.FormatDatapathActions(tr.Actions, nil), c.want)
		}
		k.SetInPort(4)
		if tr := Translate(p, &k, env); tr.Drop != ok || tr.Mask[flowtable.WEthSrc] != 0 {
			t.Errorf("%s from an unbound port: drop %v, mask %x", c.frame, tr.Drop, tr.Mask)
		}
	}
}

// A megaflow of a port without a binding matches no frame of a bound port. Without
// any binding, megaflows match neither source address nor port.
func TestBindingSeparatesPorts(t *testing.T) {
	env, p := newEnv(), pipelineOf(t, "actions=drop")
	k := keyOfText(t, "in_port=4,ip,nw_src=10.0.0.1,dl_src=00:00:00:00:00:01")
	if tr := Translate(p, &k, env); tr.Mask.InPort() != 0 {
		t.Errorf("no port is bound: mask is %x", tr.Mask)
	}
	env.ports[0].Binding = bindingOf(t, "", "00:00:00:00:00:01 10.0.0.2")
	if tr := Translate(p, &k, env); tr.Mask.InPort() != 0xffffffff || tr.Drop != packet.DropFlow {
		t.Errorf("unexpected mask %x or drop %v", tr.Mask, tr.Drop)
	}
	// The binding does not apply after a ct action, because NAT may have changed the
	// addresses.
	k = keyOfText(t, "in_port=1,ip,nw_src=10.0.0.1,dl_src=00:00:00:00:00:09")
	k.SetRecirc(7)
	if tr := Translate(p, &k, env); tr.Drop == packet.DropSpoofed {
		t.Error("the frame was checked again behind ct")
	}
}

// Random addresses on a bound port are dropped by megaflows with few masks.
func TestSpoofedFramesTakeFewMegaflows(t *testing.T) {
	env, p := newEnv(), pipelineOf(t, "actions=2")
	env.ports[0].Binding = bindingOf(t, "", "02:00:00:00:00:01 10.0.0.1")
	flows, masks := map[flowtable.Key]bool{}, map[flowtable.Key]bool{}
	for i := range uint64(100_000) {
		var k flowtable.Key
		k[flowtable.WPort], k[flowtable.WEthSrc] = 1<<32, i*0x9e3779b97f4a7c15&^0xffff
		tr := Translate(p, &k, env)
		for w := range k {
			k[w] &= tr.Mask[w]
		}
		flows[k], masks[tr.Mask] = true, true
	}
	if len(flows) > 6*256 || len(masks) > 6 {
		t.Errorf("spoofed frames need too many megaflows: %d, with %d masks", len(flows), len(masks))
	}
}

func TestBindingRefused(t *testing.T) {
	many := func(n int, form string) string {
		var words []string
		for i := range n {
			words = append(words, fmt.Sprintf(form, i/256, i%256))
		}
		return strings.Join(words, " ")
	}
	for _, c := range []struct{ macs, addresses, want string }{
		{"2:3", "", "unicast MAC"},
		{"01:00:00:00:00:01", "", "unicast MAC"},
		{"00:00:00:00:00:00", "", "unicast MAC"},
		{"02:00:00:00:00:01,02:00:00:00:00:01", "", "once"},
		{"02:00:00:00:00:01", "02:00:00:00:00:01 10.0.0.1", "once"},
		{"02:00:00:00:00:01 10.0.0.1", "", "unicast MAC"},
		{"", "10.0.0.1", "unicast MAC"},
		{"", "02:00:00:00:00:01 10.0.0", "IP addresses"},
		{"", "02:00:00:00:00:01 10.0.0.1/33", "IP addresses"},
		{"", "02:00:00:00:00:01 224.0.0.1", "IP addresses"},
		{"", "02:00:00:00:00:01 ::ffff:10.0.0.1", "IP addresses"},
		{"", "02:00:00:00:00:01,", "unicast MAC"},
		{strings.ReplaceAll(many(65, "02:00:00:00:%02x:%02x"), " ", ","), "", "64 MAC"},
		{"", "02:00:00:00:00:01 " + many(257, "10.0.%d.%d"), "256 IP"},
	} {
		if _, _, expected := ParseBinding(c.macs, c.addresses); !strings.Contains(expected, c.want) {
			t.Errorf("mac=%s addresses=%s: expected %q, want %q", c.macs, c.addresses, expected, c.want)
		}
	}
	if b, _, expected := ParseBinding("", ""); b != nil || expected != "" {
		t.Error("ParseBinding without addresses returns a binding")
	}
}

// A megaflow of a bound port matches either only spoofed frames or only allowed frames.
func TestBindingAgainstWholeFields(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	env, p := newEnv(), pipelineOf(t, "actions=2")
	b := bindingOf(t, "", "00:00:00:00:00:01 10.0.0.0/15 10.3.0.1 fe80::1,00:00:00:00:00:02,0a:00:00:00:00:01 10.0.0.2 fe80::/64")
	env.ports[0].Binding = b
	random := func() flowtable.Key {
		k := openflowtest.Key(r)
		k.SetInPort(1)
		switch r.IntN(8) {
		case 0:
			k[flowtable.WIPv4] &= 0xffffffff
			k[flowtable.WIPv6Src], k[flowtable.WIPv6Src+1] = 0, 0
		case 1:
			k[flowtable.WL4] = 68<<48 | 67<<32
		case 2:
			k[flowtable.WNDTarget], k[flowtable.WNDTarget+1] = 0, 0
		}
		return k
	}
	verdicts := map[bool]int{}
	for range 5000 {
		k := random()
		tr := Translate(p, &k, env)
		for range 20 {
			if !realFrame(&k) {
				break
			}
			var f openflow.Flow
			copy(f[:], k[:])
			want := slowSpoofed(b, &f)
			if got := tr.Drop == packet.DropSpoofed; got != want {
				t.Fatalf("%s is spoofed: %v, want %v; mask %x", frameText(&k), got, want, tr.Mask)
			}
			verdicts[want]++
			o := random()
			for i := range o {
				o[i] = k[i]&tr.Mask[i] | o[i]&^tr.Mask[i]
			}
			k = o
		}
	}
	if verdicts[true] < 1000 || verdicts[false] < 1000 {
		t.Errorf("one verdict is rarely tested: %v", verdicts)
	}
}

func frameText(k *flowtable.Key) string {
	all := flowtable.Key{}
	for i := range all {
		all[i] = ^uint64(0)
	}
	m := openflow.MatchOf(k, &all)
	return openflow.FormatMatch(&m, nil)
}

// The bound hosts of a port are declared in the port's segment, with their single addresses.
func TestDeclares(t *testing.T) {
	got := Declares([]PortInfo{
		{No: 1, Datapath: 7, Bridge: 2, InVNI: true, VNI: 4, Binding: bindingOf(t, "", "00:00:00:00:00:01 10.0.0.1 10.1.0.0/16")},
		{No: 2, Binding: bindingOf(t, "00:00:00:00:00:02", "")}, {No: 3},
	})
	want := []fdb.Declared{{Segment: fdb.TrunkOf(2) | fdb.SegmentOf(4), Port: 7, MAC: 1, IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
		{Port: 2, MAC: 2}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
