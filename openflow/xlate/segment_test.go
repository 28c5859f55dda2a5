// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
)

// segmentEnv returns a switch with guests and tunnels of two VNIs, and a guest
// without a VNI.
//
//	11, 12: VNI 1    21, 22: VNI 2    31: none    41: VNI 1's tunnel    42: VNI 2's
func segmentEnv() *fakeEnv {
	guest := func(number, vni uint32) PortInfo { return PortInfo{No: number, InVNI: vni != 0, VNI: vni} }
	tunnel := func(number, vni uint32, remote string) PortInfo {
		return PortInfo{No: number, Kind: PortTunnel, VNI: vni, Remotes: []netip.Addr{netip.MustParseAddr(remote), netip.MustParseAddr("192.0.2.99")}}
	}
	return &fakeEnv{macs: fdb.New(0, 0), ports: []PortInfo{
		guest(11, 1), guest(12, 1), guest(21, 2), guest(22, 2), guest(31, 0), tunnel(41, 1, "192.0.2.1"), tunnel(42, 2, "192.0.2.2"),
	}}
}

func reached(t *Translation) (ports []uint32) {
	for _, a := range t.Actions {
		switch a.Op {
		case flowtable.OpOutput:
			ports = append(ports, a.U32)
		case flowtable.OpTunnel:
			ports = append(ports, uint32(a.U16))
		case flowtable.OpAnswer:
			ports = append(ports, 0)
		}
	}
	return slices.Compact(ports)
}

func TestSegmentsDoNotMeet(t *testing.T) {
	for _, actions := range []string{"normal", "all", "flood"} {
		p := pipelineOf(t, "actions="+actions)
		for from, want := range map[string][]uint32{
			"11": {12, 31, 41}, "22": {21, 31, 42}, "31": {11, 12, 21, 22, 41, 42},
			"41,tun_id=1": {11, 12, 31}, "42,tun_id=2": {21, 22, 31},
		} {
			k := keyOfText(t, "in_port="+from+",dl_src=00:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff")
			tr := Translate(p, &k, segmentEnv())
			if got := reached(&tr); !slices.Equal(got, want) {
				t.Errorf("%s from %s reaches %v, want %v", actions, from, got, want)
			}
		}
	}
	// Only an output to a named port crosses from one segment to another.
	k := keyOfText(t, "in_port=11")
	tr := Translate(pipelineOf(t, "actions=output:22"), &k, segmentEnv())
	if got := reached(&tr); !slices.Equal(got, []uint32{22}) {
		t.Errorf("an output that names the port reaches %v", got)
	}
}

// Two VNIs learn the same address separately. A frame from a port without a VNI goes to
// the VNI that learned the address first.
func TestAddressesAreLearnedBySegment(t *testing.T) {
	env, p := segmentEnv(), pipelineOf(t, "actions=normal")
	send := func(inPort, src, dst string) []uint32 {
		k := keyOfText(t, fmt.Sprintf("in_port=%s,dl_src=00:00:00:00:00:0%s,dl_dst=00:00:00:00:00:0%s", inPort, src, dst))
		tr := Translate(p, &k, env)
		env.macs.Learn(learnOf(&tr), 1)
		return reached(&tr)
	}
	send("41,tun_id=1,tun_src=192.0.2.1", "7", "1")
	send("22", "7", "1")
	for _, c := range []struct {
		from string
		want []uint32
	}{{"11", []uint32{41}}, {"21", []uint32{22}}, {"31", []uint32{41}}} {
		if got := send(c.from, "8", "7"); !slices.Equal(got, c.want) {
			t.Errorf("from %s to an address of both VNIs: %v, want %v", c.from, got, c.want)
		}
	}
	// An address of VNI 1 now also sends in VNI 2, but frames to it from a port without a VNI still
	// go to VNI 1. VNI 2 cannot take an address of a port without a VNI either.
	send("31", "5", "1")
	if got := send("22", "5", "1"); !slices.Equal(got, []uint32{21, 31, 42}) {
		t.Errorf("a frame with an address of another segment reaches %v", got)
	}
	for _, from := range []string{"11", "22"} {
		if got := send(from, "8", "5"); !slices.Equal(got, []uint32{31}) {
			t.Errorf("a frame from %s to a port without a VNI, after VNI 2 has used its address, reaches %v", from, got)
		}
	}
	send("12", "6", "1")
	if got := send("31", "5", "6"); !slices.Equal(got, []uint32{12}) {
		t.Errorf("a frame from a port without a VNI reaches %v", got)
	}
}

func TestQuestionsAreAnswered(t *testing.T) {
	const all = "dl_dst=ff:ff:ff:ff:ff:ff"
	arp := func(port, src, op, spa, tpa string) string {
		return fmt.Sprintf("in_port=%s,dl_src=%s,%s,arp,arp_op=%s,arp_spa=%s,arp_tpa=%s,arp_sha=%s", port, src, all, op, spa, tpa, src)
	}
	nd := func(port, src, inPort, target string) string {
		return fmt.Sprintf("in_port=%s,dl_src=%s,dl_dst=33:33:00:00:00:01,icmp6,icmp_type=135,ipv6_src=%s,nd_target=%s,nd_sll=%s", port, src, inPort, target, src)
	}
	const a, b, c, d, e = "00:00:00:00:00:0a", "00:00:00:00:00:0b", "00:00:00:00:00:0c", "00:00:00:00:00:0d", "00:00:00:00:00:0e"
	env, p := segmentEnv(), pipelineOf(t, "actions=normal")
	run := func(frame string) (Translation, []uint32) {
		k := keyOfText(t, frame)
		tr := Translate(p, &k, env)
		env.macs.Learn(learnOf(&tr), 1)
		return tr, reached(&tr)
	}
	flooded := []uint32{12, 31, 41}
	check := func(name, frame string, want []uint32) {
		t.Helper()
		if _, got := run(frame); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	check("not known", arp("11", a, "1", "10.0.0.1", "10.0.0.2"), flooded)
	run(arp("41,tun_id=1,tun_src=192.0.2.1", b, "1", "10.0.0.2", "10.0.0.3"))
	tr, got := run(arp("11", a, "1", "10.0.0.1", "10.0.0.2"))
	if !slices.Equal(got, []uint32{0}) || tr.Actions[0].U64 != 0xb || len(tr.Addresses) == 0 {
		t.Errorf("a question made its own answer known: %s", openflow.FormatDatapathActions(tr.Actions, nil))
	}
	check("a probe", arp("11", a, "1", "0.0.0.0", "10.0.0.2"), flooded)
	check("an announcement", arp("11", a, "1", "10.0.0.2", "10.0.0.2"), flooded)
	run(arp("41,tun_id=1,tun_src=192.0.2.1", b, "2", "10.0.0.2", "10.0.0.1"))
	check("a reply for all", arp("11", a, "2", "10.0.0.1", "10.0.0.2"), flooded)
	check("of another VNI", arp("21", a, "1", "10.0.0.1", "10.0.0.2"), []uint32{22, 31, 42})
	check("from a tunnel", arp("41,tun_id=1,tun_src=192.0.2.1", b, "1", "10.0.0.2", "10.0.0.1"), []uint32{11, 12, 31})
	run(arp("12", c, "1", "10.0.0.5", "10.0.0.6"))
	check("of a guest here", arp("11", a, "1", "10.0.0.1", "10.0.0.5"), flooded)
	run(fmt.Sprintf("in_port=41,tun_id=1,tun_src=192.0.2.1,dl_src=%s,%s,arp,arp_op=2,arp_spa=10.0.0.8,arp_sha=%s", d, all, b))
	check("said of another", arp("11", a, "1", "10.0.0.1", "10.0.0.8"), flooded)

	run(nd("41,tun_id=1,tun_src=192.0.2.1", b, "fd00::2", "fd00::3"))
	check("a solicitation", nd("11", a, "fd00::1", "fd00::2"), []uint32{0})
	check("duplicate address detection", nd("11", a, "::", "fd00::2"), flooded)
	run(fmt.Sprintf("in_port=41,tun_id=1,tun_src=192.0.2.1,dl_src=%s,dl_dst=%s,icmp6,icmp_type=136,nd_target=fe80::2,nd_tll=%s", b, a, b))
	check("link-local", nd("11", a, "fd00::1", "fe80::2"), flooded)
	run(fmt.Sprintf("in_port=41,tun_id=1,tun_src=192.0.2.1,dl_src=%s,dl_dst=%s,icmp6,icmp_type=136,nd_target=fd00::7,nd_tll=%s", b, a, b))
	check("the first question of a guest", nd("31", e, "fd00::1", "fd00::7"), []uint32{11, 12, 21, 22, 41, 42})
	check("of a port without a VNI", nd("31", e, "fd00::1", "fd00::7"), []uint32{0})
	check("known by an advertisement", nd("11", a, "fd00::1", "fd00::7"), []uint32{0})

	env.ports[5].NoAnswers = true
	check("where answers are off", arp("11", a, "1", "10.0.0.1", "10.0.0.2"), flooded)
	env.ports[5].NoAnswers = false
	env.macs.Flush(41)
	check("the host has gone", arp("11", a, "1", "10.0.0.1", "10.0.0.2"), flooded)
	env.ports[5].NoLearning = true
	if tr, _ := run(arp("41,tun_id=1,tun_src=192.0.2.1", b, "1", "10.0.0.2", "10.0.0.3")); learnOf(&tr).Valid {
		t.Error("a port with NoLearning learned")
	}
}
