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
	"weft/openflow/ofproto"
	"weft/openflow/openflowtest"
	"weft/packet"
)

// networkEnv returns a switch with two declared networks.
//
//	1, 2: VNI 1, declared    3: VNI 2, declared    4: VNI 1, not declared
//	5: operator's vxlan port of VNI 1    6: no VNI    9: tunnel of weft-central
func networkEnv(flood bool) *fakeEnv { return networkEnvOf(0, flood) }

// networkEnvOf is like networkEnv, but its table has room for "limit" learned addresses; 0: the
// default.
func networkEnvOf(limit int, flood bool) *fakeEnv {
	env := &fakeEnv{macs: fdb.New(limit, 0), ports: []PortInfo{
		{No: 1, Name: "a", Central: true, InVNI: true, VNI: 1}, {No: 2, Name: "b", Central: true, InVNI: true, VNI: 1},
		{No: 3, Name: "c", Central: true, InVNI: true, VNI: 2}, {No: 4, Name: "d", InVNI: true, VNI: 1},
		{No: 5, Name: "vx", Kind: PortTunnel, VNI: 1, Remote: netip.MustParseAddr("192.0.2.5")}, {No: 6, Name: "e"},
		{No: 9, Name: "central", Kind: PortTunnel, Central: true, FlowVNI: true, FlowRemote: true, Local: underlayIP(99)},
	}}
	env.macs.Change(&fdb.Change{Networks: map[fdb.Segment]*fdb.Network{
		fdb.SegmentOf(1): {Flood: flood, Members: []netip.Addr{underlayIP(1), underlayIP(2)}},
		fdb.SegmentOf(2): {Flood: flood},
	}, Addresses: []fdb.NetAddress{
		{Segment: fdb.SegmentOf(1), MAC: 1, IPs: []netip.Addr{hostIP(1)}, Place: fdb.Place{Port: 1}},
		{Segment: fdb.SegmentOf(1), MAC: 2, IPs: []netip.Addr{hostIP(2)}, Place: fdb.Place{Port: 2}},
		{Segment: fdb.SegmentOf(1), MAC: 3, IPs: []netip.Addr{hostIP(3), netip.MustParseAddr("fd00::3")}, Place: fdb.Place{Remote: underlayIP(1)}},
		{Segment: fdb.SegmentOf(1), MAC: 4, Place: fdb.Place{Port: 77}},
		{Segment: fdb.SegmentOf(2), MAC: 3, Place: fdb.Place{Port: 3}},
	}})
	return env
}

// centralPipeline returns a pipeline with only weft-central's flows.
func centralPipeline(t testing.TB) *ofproto.Tables {
	t.Helper()
	p := ofproto.NewTables(ofproto.Limits{})
	var mods []openflow.FlowMod
	for _, port := range []uint32{1, 2, 3, 9} {
		mods = append(mods, ofproto.CentralFlow(openflow.Add, port))
	}
	if _, err := p.ApplyCentral(mods, 0); err != nil {
		t.Fatal(err)
	}
	return p
}

// destinations returns a translation's outputs as sorted text: a port number, "PORT
// vni VNI template TEMPLATE", or "answer MAC".
func destinations(tr *Translation) []string {
	list := []string{}
	for _, a := range tr.Actions {
		switch a.Op {
		case flowtable.OpOutput:
			list = append(list, fmt.Sprint(a.U32))
		case flowtable.OpTunnel:
			list = append(list, fmt.Sprintf("%d vni %d template %d", a.U16, a.U64, a.U32))
		case flowtable.OpAnswer:
			list = append(list, fmt.Sprintf("answer %d", a.U64))
		}
	}
	slices.Sort(list)
	return list
}

func toEndpoint(env *fakeEnv, vni uint32, endpoint netip.Addr) string {
	template, _ := env.Tunnel(9, vni, underlayIP(99), endpoint)
	return fmt.Sprintf("9 vni %d template %d", vni, template)
}

// slowNetworkDestinations returns the expected destinations in networkEnv.
func slowNetworkDestinations(env *fakeEnv, inPort, vni uint32, dst uint64) []string {
	list := []string{}
	local := func(mac bool) {
		for _, p := range env.ports {
			if p.Kind == PortNormal && p.InVNI && p.VNI == vni && p.No != inPort {
				list = append(list, fmt.Sprint(p.No))
			}
		}
	}
	network := env.macs.Network(fdb.SegmentOf(vni))
	if network == nil {
		return list
	}
	place, declared := env.macs.Place(fdb.SegmentOf(vni), dst)
	switch {
	case !declared:
		local(true)
		if network.Flood && inPort != 9 {
			for _, m := range network.Members {
				list = append(list, toEndpoint(env, vni, m))
			}
		}
	case place.Remote.IsValid() && inPort != 9:
		list = append(list, toEndpoint(env, vni, place.Remote))
	case !place.Remote.IsValid() && place.Port != inPort:
		if p, ok := env.Port(place.Port); ok && p.VNI == vni {
			list = append(list, fmt.Sprint(place.Port))
		}
	}
	slices.Sort(list)
	return list
}

func TestNetworksAgainstASlowOne(t *testing.T) {
	p := centralPipeline(t)
	for _, flood := range []bool{false, true} {
		env := networkEnv(flood)
		for _, from := range []uint32{1, 2, 3, 9} {
			for vni := range uint32(4) {
				port, _ := env.Port(from)
				if from != 9 && port.VNI != vni {
					continue
				}
				for _, dst := range []uint64{1, 2, 3, 4, 5, 0xffffffffffff, 0x01005e000001} {
					k := keyOfText(t, fmt.Sprintf("in_port=%d,tun_id=%d,udp,dl_src=00:00:00:00:00:09,dl_dst=%s", from, vni, openflow.FormatEthernet(dst)))
					tr := Translate(p, &k, env)
					if got, want := destinations(&tr), slowNetworkDestinations(env, from, vni, dst); !slices.Equal(got, want) {
						t.Errorf("flood %v, from %d in VNI %d to %x: %q, want %q", flood, from, vni, dst, got, want)
					}
				}
			}
		}
	}
}

// Frames from outside never reach a port of a declared network.
func TestNetworksAreClosed(t *testing.T) {
	p := pipelineOf(t, "actions=normal")
	for _, dst := range []string{"00:00:00:00:00:01", "00:00:00:00:00:03", "ff:ff:ff:ff:ff:ff"} {
		k := keyOfText(t, "in_port=6,udp,dl_src=00:00:00:00:00:09,dl_dst="+dst)
		tr := Translate(p, &k, networkEnv(true))
		for _, to := range destinations(&tr) {
			if to != "4" && !strings.HasPrefix(to, "5 vni 1 ") {
				t.Errorf("a frame to %s of a port without a VNI goes to %q", dst, to)
			}
		}
	}
}

func TestQuestionsInNetworks(t *testing.T) {
	p, env := centralPipeline(t), networkEnv(false)
	arp := func(inPort, src, spa, tpa string) string {
		return fmt.Sprintf("in_port=%s,dl_src=%s,dl_dst=ff:ff:ff:ff:ff:ff,arp,arp_op=1,arp_sha=%s,arp_spa=%s,arp_tpa=%s", inPort, src, src, spa, tpa)
	}
	const one, local = "00:00:00:00:00:01", "2 4"
	for _, c := range []struct{ name, frame, want string }{
		{"the first frame asks for a host behind another", arp("1", one, "10.0.0.1", "10.0.0.3"), "answer 3"},
		{"a host here", arp("1", one, "10.0.0.1", "10.0.0.2"), "answer 2"},
		{"not declared", arp("1", one, "10.0.0.1", "10.0.0.9"), local},
		{"the asker's own address", arp("1", one, "10.0.0.7", "10.0.0.1"), local},
		{"a probe", arp("1", one, "0.0.0.0", "10.0.0.3"), local},
		{"an announcement", arp("1", one, "10.0.0.3", "10.0.0.3"), local},
		{"a solicitation", "in_port=1,dl_src=" + one + ",dl_dst=33:33:ff:00:00:03,icmp6,ipv6_src=fd00::1,icmp_type=135,nd_target=fd00::3,nd_sll=" + one, "answer 3"},
		{"of another network", arp("3", "00:00:00:00:00:03", "10.0.0.1", "10.0.0.3"), ""},
	} {
		k := keyOfText(t, c.frame)
		tr := Translate(p, &k, env)
		if got := strings.Join(destinations(&tr), " "); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// An address that is not declared is learned, on its own host and on others.
func TestUndeclaredAddressesAreLearned(t *testing.T) {
	p, env := centralPipeline(t), networkEnv(false)
	run := func(frame string) Translation {
		k := keyOfText(t, frame)
		tr := Translate(p, &k, env)
		env.macs.Learn(learnOf(&tr), 1)
		return tr
	}
	run("in_port=9,tun_id=1,tun_src=192.0.2.2,tun_dst=192.0.2.99,udp,dl_src=00:00:00:00:00:77,dl_dst=00:00:00:00:00:01")
	tr := run("in_port=1,udp,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:77")
	if got, want := destinations(&tr), []string{toEndpoint(env, 1, underlayIP(2))}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if learnOf(&tr).Valid {
		t.Errorf("a declared address behind its port teaches %+v", learnOf(&tr))
	}
	// A megaflow for another host's declared address matches no underlay address.
	tr = run("in_port=9,tun_id=1,tun_src=192.0.2.1,tun_dst=192.0.2.99,udp,dl_src=00:00:00:00:00:03,dl_dst=00:00:00:00:00:01")
	if m := tr.Mask[flowtable.WTunID+1]; learnOf(&tr).Valid || m != 0 {
		t.Errorf("a declared address behind the tunnel: %+v, mask of tunnel addresses %x", learnOf(&tr), m)
	}
	if tr = run("in_port=2,udp,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02"); env.macs.Len() != 1 {
		t.Errorf("another port has learned a declared address: %+v", env.macs.Entries())
	}
}

func TestNetworksAreSound(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		p, env := centralPipeline(t), networkEnv(seed%2 == 0)
		env.macs.Learn(fdb.Learn{Valid: true, Segment: fdb.SegmentOf(1), Port: 9, Tunnel: true, MAC: 0x0a0000000001, Remote: underlayIP(2)}, 0)
		random := func() flowtable.Key {
			k := openflowtest.Key(r)
			k[flowtable.WPort] = k[flowtable.WPort]&0xffffffff | uint64(openflowtest.Pick[uint32](r, 1, 2, 3, 4, 9))<<32
			return k
		}
		for range 60 {
			k := random()
			got := Translate(p, &k, env)
			for range 20 {
				o := agreeing(r, &k, &got.Mask)
				other := Translate(p, &o, env)
				other.Mask = got.Mask
				if !reflect.DeepEqual(got, other) {
					t.Fatalf("seed %d: %x and %x agree on the mask %x, but their translations are\n%+v\n%+v", seed, k, o, got.Mask, got, other)
				}
			}
		}
	}
}

func TestTraceNamesThePlace(t *testing.T) {
	p, env := centralPipeline(t), networkEnv(false)
	for dst, want := range map[string]string{
		"00:00:00:00:00:03": "declared by central: behind 192.0.2.1", "00:00:00:00:00:02": "declared by central: at port b",
		"00:00:00:00:00:04": "declared by central, but its port is not on this host now",
	} {
		k := keyOfText(t, "in_port=1,udp,dl_src=00:00:00:00:00:01,dl_dst="+dst)
		var notes, tables []string
		Trace(p, &k, env, func(s TraceStep) {
			if s.Note != "" {
				notes = append(notes, s.Note)
			}
			if s.Lookup {
				tables = append(tables, fmt.Sprint(s.Table, s.Rule != nil))
			}
		})

		if !slices.Equal(notes, []string{want}) || !slices.Equal(tables, []string{"0 false", "250 true"}) {
			t.Errorf("trace to %s has notes %q and look-ups %q, want note %q", dst, notes, tables, want)
		}
	}
}

// An operator cannot change CentralTable. It comes after table 0, and only frames of declared ports
// reach it.
func TestCentralTable(t *testing.T) {
	p := centralPipeline(t)
	const belongs = "table=250: belongs to weft-central; expected another table"
	for command, text := range map[openflow.Command]string{
		openflow.Add: "table=250,actions=drop", openflow.Modify: "table=250,actions=drop", openflow.ModifyStrict: "table=250,in_port=1,actions=drop",
		openflow.Delete: "table=250", openflow.DeleteStrict: "table=250,in_port=1",
	} {
		m, err := openflow.ParseFlowMod(text, command, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Apply([]openflow.FlowMod{m}, 0); err == nil || err.Error() != belongs {
			t.Errorf("command %d: %v", command, err)
		}
	}
	learning, err := openflow.ParseFlowMod("actions=clone(learn(table=250,in_port=1))", openflow.Add, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Apply([]openflow.FlowMod{learning}, 0); err == nil || err.Error() != belongs {
		t.Errorf("learn: %v", err)
	}
	all := openflow.FlowMod{Command: openflow.Delete, Table: openflow.TableAll}
	if c, err := p.Apply([]openflow.FlowMod{all}, 0); err != nil || len(c.Removed) != 0 || p.Len() != 4 {
		t.Errorf("a delete of all tables removed %d flows, %v; %d are left", len(c.Removed), err, p.Len())
	}
	if got := len(p.Select(&openflow.FlowMod{Command: openflow.Delete, Table: openflow.TableAll})); got != 4 {
		t.Errorf("a dump shows %d flows", got)
	}
	k := keyOfText(t, "in_port=4,udp,dl_src=00:00:00:00:00:09,dl_dst=00:00:00:00:00:01")
	if tr := Translate(p, &k, networkEnv(false)); tr.Drop != packet.DropTableMiss {
		t.Errorf("a frame of a port that is not declared: %+v", tr)
	}
	first, _ := openflow.ParseFlowMod("in_port=1,actions=drop", openflow.Add, nil)
	if _, err := p.Apply([]openflow.FlowMod{first}, 0); err != nil {
		t.Fatal(err)
	}
	k = keyOfText(t, "in_port=1,udp,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02")
	if tr := Translate(p, &k, networkEnv(false)); tr.Drop != packet.DropFlow || len(tr.Rules) != 1 || tr.Rules[0].Table != 0 {
		t.Errorf("an operator's flow does not precede: %+v", tr)
	}
	if c, err := p.ApplyCentral([]openflow.FlowMod{ofproto.CentralFlow(openflow.DeleteStrict, 1)}, 0); err != nil || len(c.Removed) != 1 {
		t.Errorf("weft-central's delete: %+v, %v", c, err)
	}
}

// ApplyCentral adds flows to a full pipeline, and eviction does not remove these flows.
func TestCentralFlowsIgnoreTheLimit(t *testing.T) {
	p := ofproto.NewTables(ofproto.Limits{Rules: 1})
	p.Configure(0, ofproto.TableConfig{Evict: true})
	p.Configure(ofproto.CentralTable, ofproto.TableConfig{Evict: true, Limit: 1})
	if _, err := p.Apply([]openflow.FlowMod{{Command: openflow.Add, Importance: 0}}, 0); err != nil {
		t.Fatal(err)
	}
	if c, err := p.ApplyCentral([]openflow.FlowMod{ofproto.CentralFlow(openflow.Add, 1), ofproto.CentralFlow(openflow.Add, 2)}, 0); err != nil || len(c.Removed) != 0 {
		t.Errorf("the change has effects %+v and error %v", c, err)
	}
	if c, err := p.Apply([]openflow.FlowMod{{Command: openflow.Add, Priority: 7, Importance: 9, IdleTimeout: 1}}, 0); err != nil || len(c.Removed) != 1 || c.Removed[0].Table != 0 {
		t.Errorf("the change has effects %+v and error %v", c, err)
	}
}

func hostIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }

func underlayIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }
