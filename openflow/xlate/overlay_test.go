// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/openflow/openflowtest"
)

// overlayEnv returns a switch with guests and vxlan port 8 with three remotes.
func overlayEnv() *fakeEnv {
	env := newEnv()
	var remotes []netip.Addr
	for _, a := range []string{"192.0.2.1", "192.0.2.2", "2001:db8::3"} {
		remotes = append(remotes, netip.MustParseAddr(a))
	}
	env.ports = append(env.ports, PortInfo{No: 8, Name: "many", Kind: PortTunnel, VNI: 88, Remotes: remotes})
	return env
}

// tunnelsOf returns the templates in a translation's tunnel actions for a vxlan port.
func tunnelsOf(t *Translation, number uint32) (templates []uint32) {
	for _, a := range t.Actions {
		if a.Op == flowtable.OpTunnel && uint32(a.U16) == number && a.U64 == 88 {
			templates = append(templates, a.U32)
		}
	}
	return templates
}

func TestReplication(t *testing.T) {
	p, env := pipelineOf(t, "actions=normal"), overlayEnv()
	run := func(frame string) Translation {
		k := keyOfText(t, frame)
		tr := Translate(p, &k, env)
		env.macs.Learn(learnOf(&tr), 1)
		return tr
	}
	all := run("in_port=1,dl_src=00:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff")
	sent := tunnelsOf(&all, 8)
	if len(sent) != 3 || sent[0] == sent[1] || sent[1] == sent[2] {
		t.Fatalf("a broadcast uses templates %v, want three", sent)
	}
	// The action normal learns the tunnel endpoint of the sender from the reply, although
	// the reply's megaflow matches few fields.
	answer := run("in_port=8,tun_id=88,tun_src=192.0.2.2,tun_dst=192.0.2.9,dl_src=00:00:00:00:00:02,dl_dst=00:00:00:00:00:01")
	if got := learnOf(&answer).Remote.String(); got != "192.0.2.2" || learnOf(&answer).Port != 8 {
		t.Errorf("unexpected Learn %+v", learnOf(&answer))
	}
	if got := openflow.FormatDatapathActions(answer.Actions, nil); got != "1" {
		t.Errorf("the answer goes to %s, want 1", got)
	}
	known := run("in_port=1,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02")
	if got := tunnelsOf(&known, 8); len(known.Actions) != 1 || len(got) != 1 || got[0] != sent[1] {
		t.Errorf("a frame to a known address uses templates %v, want only %d", got, sent[1])
	}
	// The address moves to another remote.
	before := env.macs.Generation()
	run("in_port=8,tun_id=88,tun_ipv6_src=2001:db8::3,tun_ipv6_dst=2001:db8::9,dl_src=00:00:00:00:00:02,dl_dst=00:00:00:00:00:01")
	if env.macs.Generation() == before {
		t.Error("a move between remotes does not change the generation")
	}
	moved := run("in_port=1,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02")
	if got := tunnelsOf(&moved, 8); len(got) != 1 || got[0] != sent[2] {
		t.Errorf("after the move a frame to the address uses templates %v, want %d", got, sent[2])
	}
	// A frame from a tunnel is not flooded to tunnels.
	flood := run("in_port=8,tun_id=88,tun_src=192.0.2.2,tun_dst=192.0.2.9,dl_src=00:00:00:00:00:02,dl_dst=ff:ff:ff:ff:ff:ff")
	for _, a := range flood.Actions {
		if a.Op == flowtable.OpTunnel {
			t.Errorf("a frame from a tunnel goes to a tunnel: %s", openflow.FormatDatapathActions(flood.Actions, nil))
		}
	}
	// A flow's output to a vxlan port goes to all remotes.
	direct, k := pipelineOf(t, "actions=output:8"), keyOfText(t, "in_port=1")
	if tr := Translate(direct, &k, env); !reflect.DeepEqual(tunnelsOf(&tr, 8), sent) {
		t.Errorf("output uses templates %v, want %v", tunnelsOf(&tr, 8), sent)
	}
}

// A remote whose BFD session has failed gets no frames. Frames to addresses behind it go to the
// other remotes.
func TestLostRemote(t *testing.T) {
	env := overlayEnv()
	normal, direct := pipelineOf(t, "actions=normal"), pipelineOf(t, "actions=output:8")
	translate := func(p *ofproto.Tables, dst string) []uint32 {
		k := keyOfText(t, "in_port=1,dl_src=00:00:00:00:00:01,dl_dst="+dst)
		tr := Translate(p, &k, env)
		if !tr.UsedPorts {
			t.Errorf("the translation for %s stays when a remote returns", dst)
		}
		return tunnelsOf(&tr, 8)
	}
	const broadcast, behind = "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:02"
	port := &env.ports[len(env.ports)-1]
	env.macs.Learn(fdb.Learn{Valid: true, Port: 8, MAC: 2, Remote: port.Remotes[1]}, 0)
	all := translate(normal, broadcast)
	if got := translate(normal, behind); len(all) != 3 || !slices.Equal(got, all[1:2]) {
		t.Fatalf("a broadcast uses templates %v, a frame to a known address %v", all, got)
	}
	port.Lost = port.Remotes[1:2]
	others := []uint32{all[0], all[2]}
	for _, p := range []*ofproto.Tables{normal, direct} {
		for _, dst := range []string{broadcast, behind} {
			if got := translate(p, dst); !slices.Equal(got, others) {
				t.Errorf("a frame to %s uses templates %v, want %v", dst, got, others)
			}
		}
	}
}

// All frames of a megaflow have the same translation, even with several remotes.
func TestReplicationIsSound(t *testing.T) {
	p, env := pipelineOf(t, "actions=normal"), overlayEnv()
	for mac := range uint64(6) {
		env.macs.Learn(fdb.Learn{Valid: true, Port: 8, MAC: mac, Remote: netip.MustParseAddr("192.0.2.1")}, 0)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		k := openflowtest.Key(r)
		if r.IntN(2) == 0 {
			k[flowtable.WPort] = k[flowtable.WPort]&^(0xffff<<32) | 8<<32
		}
		got := Translate(p, &k, env)
		for range 10 {
			o := agreeing(r, &k, &got.Mask)
			other := Translate(p, &o, env)
			other.Mask = got.Mask
			if !reflect.DeepEqual(got, other) {
				t.Fatalf("%x and %x agree on the mask %x, but their translations are\n%+v\n%+v", k, o, got.Mask, got, other)
			}
		}
	}
}

// No frame to the address of BFD packets leaves through a tunnel with BFD. The megaflow of
// another destination matches only the highest bit that differs from this address.
func TestBFDAddressStaysInside(t *testing.T) {
	env := overlayEnv()
	p := pipelineOf(t, "actions=output:8")
	translate := func(dst string) Translation {
		k := keyOfText(t, "in_port=1,dl_src=02:00:00:00:00:01,dl_dst="+dst)
		return Translate(p, &k, env)
	}
	const forged = "00:23:20:00:00:01"
	forgery := translate(forged)
	if len(tunnelsOf(&forgery, 8)) != 3 || forgery.Mask[flowtable.WEthDst]>>16 != 0 {
		t.Errorf("without BFD: %v", openflow.FormatDatapathActions(forgery.Actions, nil))
	}
	env.ports[len(env.ports)-1].BFD = true
	forgery = translate(forged)
	if got := openflow.FormatDatapathActions(forgery.Actions, nil); got != "drop(reserved-address)" || forgery.Mask[flowtable.WEthDst]>>16 != 0xffffffffffff {
		t.Errorf("%s, mask %x", got, forgery.Mask[flowtable.WEthDst])
	}
	for dst, mask := range map[string]uint64{"ff:ff:ff:ff:ff:ff": 1 << 47, "52:54:00:12:34:56": 1 << 46, "00:23:20:00:00:03": 1 << 1, "00:23:20:00:00:00": 1} {
		tr := translate(dst)
		if len(tunnelsOf(&tr, 8)) != 3 || tr.Mask[flowtable.WEthDst]>>16 != mask {
			t.Errorf("%s: %s, mask %x, want %x", dst, openflow.FormatDatapathActions(tr.Actions, nil), tr.Mask[flowtable.WEthDst]>>16, mask)
		}
	}
}
