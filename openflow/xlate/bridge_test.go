// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/packet"
)

// bridgeRig is a switch of three bridges, as connectBridges joins them.
type bridgeRig struct {
	t   *testing.T
	env *fakeEnv
	*RecircTable
}

// rigEnv is the Env of one bridge of a rig. It stores the states of translations.
type rigEnv struct {
	*fakeEnv
	*RecircTable
}

func (e rigEnv) Bridge(number uint8) (*ofproto.Tables, Env) {
	p, env := e.fakeEnv.Bridge(number)
	return p, rigEnv{env.(*fakeEnv), e.RecircTable}
}

func newBridgeRig(t *testing.T) *bridgeRig {
	env, first := newEnv(), ofproto.NewTables(ofproto.Limits{})
	env.bridges = []fakeBridge{{first, env}}
	for b := uint8(1); b < 3; b++ {
		env.bridges = append(env.bridges, fakeBridge{first.NewBridge(b), bridgeEnv(b, env.macs)})
	}
	connectBridges(env)
	return &bridgeRig{t, env, NewRecircTable()}
}

func (r *bridgeRig) add(bridge int, flows ...string) {
	r.t.Helper()
	mods, err := openflow.ParseFlowMods(strings.Join(flows, "\n"), openflow.Add, r.env)
	if err == nil {
		_, err = r.env.bridges[bridge].p.Apply(mods, 0)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// translate translates the key that text describes, with this recirc_id.
func (r *bridgeRig) translate(text string, recirc uint32) (Translation, string) {
	r.t.Helper()
	k, _, err := openflow.ParseFrame(text, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	k[flowtable.WPort] |= uint64(recirc)
	tr := Translate(r.env.bridges[0].p, &k, rigEnv{r.env, r.RecircTable})
	return tr, openflow.FormatDatapathActions(tr.Actions, nil)
}

const bridgedFrame = "in_port=6,dl_src=02:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff"

// The action normal learns an address in each bridge that the frame crosses: in the later bridges,
// behind the patch port.
func TestBridgesLearn(t *testing.T) {
	r := newBridgeRig(t)
	for b := range 3 {
		r.add(b, "actions=normal")
	}
	tr, _ := r.translate(strings.Replace(bridgedFrame, "=6", "=1", 1), 0)
	var got []fdb.Learn
	for _, l := range tr.Learns {
		got = append(got, fdb.Learn{Segment: l.Segment, Port: l.Port, MAC: l.MAC})
		r.env.macs.Learn(l, 1)
	}
	want := []fdb.Learn{{Segment: 0, Port: 1, MAC: 0x020000000001}, {Segment: fdb.TrunkOf(1), Port: 11, MAC: 0x020000000001}, {Segment: fdb.TrunkOf(2), Port: 21, MAC: 0x020000000001}}
	if len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("learns %+v, want %+v", got, want)
	}
	if len(tr.Patches) != 2 || tr.Patches[0] != (Crossing{2, 11}) || tr.Patches[1] != (Crossing{12, 21}) {
		t.Errorf("crossings %+v", tr.Patches)
	}
	// The reply from the third bridge returns through both patch ports, and goes nowhere else.
	tr, actions := r.translate("in_port=24,dl_src=02:00:00:00:00:02,dl_dst=02:00:00:00:00:01", 0)
	if actions != "1" || tr.Mask.InPort() != 0xffffffff {
		t.Errorf("the reply: %s, mask of in_port %x", actions, tr.Mask[flowtable.WPort])
	}
}

// A frame that the peer's bridge tracks continues there, with the patch port as in_port.
func TestTrackingBehindAPatchPort(t *testing.T) {
	r := newBridgeRig(t)
	r.add(0, "actions=set_field:7->reg0,2,4")
	r.add(1, "reg0=0,in_port=1,ip,actions=set_field:5->reg1,ct(table=3)", "table=3,in_port=1,reg0=0,reg1=5,ct_state=+trk,ip,actions=3")
	const frame = bridgedFrame + ",ip,nw_src=10.0.0.1"
	tr, actions := r.translate(frame, 0)
	id := uint32(0)
	for _, a := range tr.Actions {
		if a.Op == flowtable.OpRecirc {
			id = a.U32
		}
	}
	if id == 0 || !strings.HasSuffix(actions, ",4") {
		t.Fatalf("the first look-up: %s", actions)
	}
	if _, actions = r.translate(frame+",ct_state=+new+trk", id); actions != "13" {
		t.Errorf("the second look-up: %s", actions)
	}
}

// A push in the peer's bridge happens after a second look-up, so that the frame stays unchanged for
// the first bridge. A frame with headers that a pop has revealed is looked up again in the peer's
// bridge.
func TestHeadersBehindAPatchPort(t *testing.T) {
	r := newBridgeRig(t)
	r.add(0, "ip,actions=2,4", "mpls,actions=pop_mpls:0x0800,2")
	r.add(1, "in_port=1,ip,nw_src=10.0.0.1,actions=push_mpls:0x8847,3")
	const ip = "ip,nw_src=10.0.0.1"
	again := func(first, frame string) string {
		t.Helper()
		tr, _ := r.translate(bridgedFrame+","+first, 0)
		for _, a := range tr.Actions {
			if a.Op == flowtable.OpRecirc {
				_, actions := r.translate(bridgedFrame+","+frame, a.U32)
				return actions
			}
		}
		return ""
	}
	if _, actions := r.translate(bridgedFrame+","+ip, 0); !strings.HasSuffix(actions, ",4") || strings.Contains(actions, "push_mpls") {
		t.Errorf("the first look-up: %s", actions)
	}
	if got := again(ip, ip); !strings.Contains(got, "push_mpls") || !strings.HasSuffix(got, ",13") {
		t.Errorf("a push behind the patch port: %q", got)
	}
	if got := again("mpls,mpls_bos=1", ip); !strings.Contains(got, "push_mpls") || !strings.HasSuffix(got, ",13") {
		t.Errorf("the popped frame in the peer's bridge: %q", got)
	}
}

// A loop of patch ports ends at a limit, and a patch port without a peer drops the frame.
func TestLoopsOfPatchPorts(t *testing.T) {
	r := newBridgeRig(t)
	r.add(0, "in_port=6,actions=2", "priority=1,actions=in_port")
	r.add(1, "actions=in_port")
	if tr, actions := r.translate(bridgedFrame, 0); tr.Drop != packet.DropLoop {
		t.Errorf("a loop: %s", actions)
	}
	r.env.bridges[1].env.ports[0].Peer = 0
	if tr, actions := r.translate(bridgedFrame, 0); tr.Drop != packet.DropNoPort {
		t.Errorf("without a peer: %s", actions)
	}
}

// All bridges share the limits of rules and of meters' bands.
func TestBridgesShareLimits(t *testing.T) {
	first := ofproto.NewTables(ofproto.Limits{Rules: 1})
	second := first.NewBridge(1)
	mod, err := openflow.ParseFlowMod("actions=drop", openflow.Add, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Apply([]openflow.FlowMod{mod}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Apply([]openflow.FlowMod{mod}, 0); err == nil {
		t.Error("a second rule beyond the limit of one")
	}
	slots := map[uint32]bool{}
	for _, p := range []*ofproto.Tables{first, second} {
		meter, err := openflow.ParseMeterMod("meter=1,kbps,bands=type=drop,rate=1", openflow.MeterAdd)
		if err == nil {
			_, _, err = p.ApplyMeters([]openflow.MeterMod{meter}, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		slots[p.Meters(1)[0].Bands[0].Slot] = true
	}
	if len(slots) != 2 {
		t.Errorf("meters of two bridges share the token bucket %v", slots)
	}
}
