// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/openflow/openflowtest"
)

// randomVLANs returns random VLAN settings of a port, with VIDs 0 to 2; often nil.
func randomVLANs(r *rand.Rand) *PortVLANs {
	if r.IntN(6) == 0 {
		return nil
	}
	set := func() *VLANSet {
		if r.IntN(2) == 0 {
			return nil
		}
		s := new(VLANSet)
		for range 2 {
			s.Add(uint16(r.IntN(3)))
		}
		return s
	}
	p := &PortVLANs{Mode: VLANMode(r.IntN(int(VLANTunnel) + 1)), VID: uint16(1 + r.IntN(2)), TPID: 0x88a8}
	switch p.Mode {
	case VLANTunnel:
		p.CVLANs = set()
	case VLANTrunk:
		p.Trunks = set()
	case VLANNativeTagged, VLANNativeUntagged:
		p.Trunks = set()
		if p.Trunks != nil {
			p.Trunks.Add(p.VID)
		}
	}
	return p
}

// TestNormalWithinVLANs compares the action normal with the interpreter, on ports of
// all modes. It compares the translated frame and other frames that the megaflow
// matches.
func TestNormalWithinVLANs(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 1))
	pipelines := []*ofproto.Tables{
		pipelineOf(t, "in_port=LOCAL,actions=normal,LOCAL,IN_PORT", "in_port=2,actions=drop", "priority=1,actions=normal,output:2,LOCAL"),
		pipelineOf(t, "actions=mod_vlan_vid:1,normal,strip_vlan,normal,output:4"),
		pipelineOf(t, "ip,actions=push_vlan:0x88a8,normal,mod_dl_src:00:00:00:00:00:07,normal"),
	}
	outputs, frames := 0, 4000
	if testing.Short() {
		frames = 400
	}
	for round := range frames {
		env := newEnv()
		for i := range env.ports {
			env.ports[i].VLANs = randomVLANs(r)
		}
		if round%2 == 0 { // port 2 of the data path is LOCAL
			env.ports[1].No, env.ports[1].Datapath = openflow.PortLocal, 2
		}
		for range 4 {
			env.macs.Learn(fdb.Learn{Valid: true, VLAN: uint16(r.IntN(3)), Port: uint32(1 + r.IntN(6)), MAC: uint64(1 + r.IntN(3))}, 0)
		}
		p, k := pipelines[round%len(pipelines)], openflowtest.Key(r)
		tr := Translate(p, &k, env)
		for range 6 {
			if !realFrame(&k) {
				break
			}
			in := interpret(p, env, &k)
			want, got := strings.Join(in.sent, "\n"), strings.Join(runDatapath(&k, tr.Actions), "\n")
			if got != want {
				t.Fatalf("round %d, frame %x, ports %s\nmegaflow %s sends\n%s\nwant\n%s", round, k, showVLANs(env.ports),
					openflow.FormatDatapathActions(tr.Actions, nil), got, want)
			}
			outputs += len(in.sent)
			o := openflowtest.Key(r)
			for i := range o {
				o[i] = k[i]&tr.Mask[i] | o[i]&^tr.Mask[i]
			}
			k = o
		}
	}
	if outputs < frames {
		t.Errorf("%d outputs in %d rounds", outputs, frames)
	}
}

func showVLANs(ports []PortInfo) (text string) {
	for i := range ports {
		text += fmt.Sprintf("\n%d: %+v", ports[i].No, ports[i].VLANs)
	}
	return text
}

// TestVLANModes checks a frame of each kind on ports of each mode against
// ovs-vswitchd.conf.db(5).
func TestVLANModes(t *testing.T) {
	set := func(vids ...uint16) *VLANSet {
		s := new(VLANSet)
		for _, v := range vids {
			s.Add(v)
		}
		return s
	}
	env := &fakeEnv{macs: fdb.New(0, 0), ports: []PortInfo{
		{No: 1, VLANs: &PortVLANs{Mode: VLANAccess, VID: 5}},
		{No: 2, VLANs: &PortVLANs{Mode: VLANAccess, VID: 6}},
		{No: 3, VLANs: &PortVLANs{Trunks: set(5, 6)}},
		{No: 4, VLANs: &PortVLANs{Mode: VLANNativeTagged, VID: 5, Trunks: set(5, 7)}},
		{No: 5, VLANs: &PortVLANs{Mode: VLANNativeUntagged, VID: 5, Trunks: set(5, 6)}},
		{No: 6, VLANs: &PortVLANs{Mode: VLANTunnel, VID: 5, CVLANs: set(0, 9), TPID: 0x88a8}},
		{No: 7},
	}}
	p := pipelineOf(t, "actions=normal")
	for _, c := range []struct {
		port, tags, want string
		vid              uint16 // learned
	}{
		{"1", "", "3:5 4:5 5: 6: 7:5", 5},
		{"1", "dl_vlan=5", "wrong-vlan", 0},
		{"3", "", "wrong-vlan", 0},
		{"3", "dl_vlan=5", "1: 4:5 5: 6: 7:5", 5},
		{"3", "dl_vlan=6", "2: 5:6 7:6", 6},
		{"3", "dl_vlan=7", "wrong-vlan", 0},
		{"4", "", "1: 3:5 5: 6: 7:5", 5},
		{"4", "dl_vlan=7", "7:7", 7},
		{"5", "", "1: 3:5 4:5 6: 7:5", 5},
		{"5", "dl_vlan=6", "2: 3:6 7:6", 6},
		{"6", "", "1: 3:5 4:5 5: 7:5", 5},
		{"6", "dl_vlan=9", "3:5,9 4:5,9 5:9 7:5,9", 5},
		{"6", "dl_vlan=8", "wrong-vlan", 0},
		{"7", "", "", 0},
		{"7", "dl_vlan=6", "2: 3:6 5:6", 6},
	} {
		text := "in_port=" + c.port + ",dl_src=00:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff"
		if c.tags != "" {
			text += "," + c.tags
		}
		k := keyOfText(t, text)
		tr := Translate(p, &k, env)
		if got := taggedOutputs(&k, &tr); got != c.want || learnOf(&tr).VLAN != c.vid {
			t.Errorf("%q on port %s: %q in VLAN %d, want %q in VLAN %d", c.tags, c.port, got, learnOf(&tr).VLAN, c.want, c.vid)
		}
	}
}

// taggedOutputs shows outputs as PORT:VID[,VID], or a drop reason except flow-drop.
func taggedOutputs(k *flowtable.Key, tr *Translation) string {
	var words []string
	f := frameOf(k)
	for _, a := range tr.Actions {
		switch a.Op {
		case flowtable.OpOutput:
			var vids []string
			for _, tag := range f.tags {
				vids = append(vids, fmt.Sprint(tag.tci&flowtable.VLANID))
			}
			words = append(words, fmt.Sprintf("%d:%s", a.U32, strings.Join(vids, ",")))
		case flowtable.OpPushVLAN:
			f.tags = append([]slowTag{{uint16(a.U32), a.U16}}, f.tags...)
		case flowtable.OpPopVLAN:
			f.tags = f.tags[1:]
		case flowtable.OpSetVLAN:
			f.tags = slices.Clone(f.tags)
			f.tags[0].tci = uint16(a.U32)
		case flowtable.OpDrop:
			if tr.Drop.String() != "flow-drop" {
				words = append(words, tr.Drop.String())
			}
		}
	}
	return strings.Join(words, " ")
}

// An ARP request in a customer's VLAN is not answered with an address of another VLAN.
func TestCustomersQuestionsAreForwarded(t *testing.T) {
	env := segmentEnv()
	env.ports[0].VLANs = &PortVLANs{Mode: VLANTunnel, VID: 5, TPID: 0x88a8} // port 11
	p := pipelineOf(t, "actions=normal")
	run := func(frame string, inner uint16) (Translation, []uint32) {
		k := keyOfText(t, frame+",dl_dst=ff:ff:ff:ff:ff:ff,arp,arp_op=1")
		if inner != 0 {
			k[flowtable.WIP] |= uint64(inner|flowtable.VLANPresent) << flowtable.InnerTCIShift
		}
		tr := Translate(p, &k, env)
		env.macs.Learn(learnOf(&tr), 1)
		return tr, reached(&tr)
	}
	const host = "in_port=41,tun_id=1,tun_src=192.0.2.1,dl_vlan=5,dl_src=00:00:00:00:00:0b,arp_sha=00:00:00:00:00:0b,arp_tpa=10.0.0.9,arp_spa="
	const guest = "in_port=11,dl_src=00:00:00:00:00:0a,arp_sha=00:00:00:00:00:0a,arp_spa=10.0.0.1,arp_tpa="
	if tr, _ := run(host+"10.0.0.3", 7); !learnOf(&tr).Valid || learnOf(&tr).IP.IsValid() {
		t.Errorf("from a customer's VLAN, normal learns %+v; want the MAC address alone", learnOf(&tr))
	}
	run(host+"10.0.0.2", 0)
	run(guest+"10.0.0.9", 0) // the first broadcast is never answered
	if _, got := run(guest+"10.0.0.2", 0); !slices.Equal(got, []uint32{0}) {
		t.Errorf("a question without a customer's tag reaches %v, want an answer", got)
	}
	if _, got := run(guest+"10.0.0.2,dl_vlan=7", 0); !slices.Equal(got, []uint32{12, 31, 41}) {
		t.Errorf("a question with a customer's tag reaches %v", got)
	}
}
