// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/internal/share"
	"weft/openflow"
	"weft/openflow/ofproto"
	"weft/openflow/openflowtest"
	"weft/packet"
)

// recircEnv is a fakeEnv with a RecircTable.
type recircEnv struct {
	*fakeEnv
	*RecircTable
}

func newRecircEnv() *recircEnv { return &recircEnv{newEnv(), NewRecircTable()} }

func frameKey(t *testing.T, text string) flowtable.Key {
	t.Helper()
	k, _, err := openflow.ParseFrame(text, nil)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

const trackFlows = `
table=0,ip,ct_state=-trk,actions=set_field:7->reg3,set_field:9->tun_id,mod_nw_tos:4,ct(table=1,zone=5)
table=1,in_port=1,ip,ct_state=+trk+new,actions=ct(commit,zone=5,exec(set_field:1->ct_mark,load:3->NXM_NX_CT_LABEL[4..7])),2
table=1,in_port=1,ip,ct_state=+trk+est,reg3=7,tun_id=9,actions=output:2
table=1,in_port=2,ip,ct_state=+trk+est,actions=ct_clear,resubmit(,3)
table=3,ct_state=-trk,actions=1
table=5,ip,actions=clone(ct(commit,nat(src=192.0.2.1-192.0.2.9:80-90,random)),3),mod_nw_src:10.9.9.9,4
table=6,ip,actions=mod_nw_src:10.9.9.9,ct(commit,nat),3,mod_nw_dst:10.8.8.8,4
`

// A translation ends at ct. If the frame's second look-up misses, another translation continues with
// the same registers and tunnel fields, and with the ct_* fields of the connection.
func TestTranslationGoesOnBehindCT(t *testing.T) {
	p, env := pipelineOf(t, strings.Split(strings.TrimSpace(trackFlows), "\n")...), newRecircEnv()
	k := frameKey(t, "in_port=1,tcp,nw_src=10.0.0.1,tp_dst=80")
	first := Translate(p, &k, env)
	if n := len(first.Actions); n != 3 || first.Actions[0].Op != flowtable.OpSetTOS || first.Actions[1].Op != flowtable.OpCT ||
		first.Actions[1].U16 != 5 || first.Actions[2].Op != flowtable.OpRecirc {
		t.Fatal(openflow.FormatDatapathActions(first.Actions, nil))
	}
	if first.Mask[flowtable.WPort]&0xffffffff != 0xffffffff {
		t.Fatal("the megaflow does not match recirc_id 0")
	}
	id := first.Actions[2].U32
	again := Translate(p, &k, env)
	if !reflect.DeepEqual(first, again) || env.Len() != 1 {
		t.Fatal("the same frame gets another recirc_id")
	}
	for _, v := range []struct{ key, actions string }{
		{"in_port=1,tcp,nw_src=10.0.0.1,ct_state=new|trk", "ct(commit,zone=5,mark=0x1/0xffffffff,label=0x30/0xf0),2"},
		{"in_port=1,tcp,nw_src=10.0.0.1,ct_state=est|trk", "2"},
		{"in_port=2,tcp,nw_src=10.0.0.1,ct_state=est|trk|rpl", "ct_clear,1"},
		{"in_port=2,tcp,nw_src=10.0.0.1,ct_state=new|trk", "drop(table-miss)"},
	} {
		k := frameKey(t, v.key)
		k.SetRecirc(id)
		if got := Translate(p, &k, env); openflow.FormatDatapathActions(got.Actions, nil) != v.actions {
			t.Errorf("%s: %s, expected %s", v.key, openflow.FormatDatapathActions(got.Actions, nil), v.actions)
		}
	}
	k.SetRecirc(id + 1)
	if got := Translate(p, &k, env); openflow.FormatDatapathActions(got.Actions, nil) != "drop(table-miss)" {
		t.Error("translation continues for an unknown recirc_id")
	}
	// A restarted control process (a new RecircTable) gives the same states the same
	// ids.
	k.SetRecirc(0)
	if other := Translate(p, &k, newRecircEnv()); !reflect.DeepEqual(other, first) {
		t.Error("a new table gives another recirc_id")
	}
}

// After ct with NAT, translation neither sets nor knows addresses and ports.
func TestActionsBehindNAT(t *testing.T) {
	p, env := pipelineOf(t, strings.Split(strings.TrimSpace(strings.NewReplacer("table=0,", "table=8,", "table=5,", "table=0,in_port=5,", "table=6,", "table=0,in_port=6,").Replace(trackFlows)), "\n")...), newRecircEnv()
	for _, v := range []struct{ key, actions string }{
		{"in_port=5,tcp,nw_src=10.0.0.1", "ct(commit,nat(src=192.0.2.1-192.0.2.9:80-90,random)),3,set(ipv4(src=10.9.9.9)),4"},
		{"in_port=6,tcp,nw_src=10.0.0.1", "set(ipv4(src=10.9.9.9)),ct(commit,nat),3,set(ipv4(dst=10.8.8.8)),4"},
	} {
		k := frameKey(t, v.key)
		if got := Translate(p, &k, env); openflow.FormatDatapathActions(got.Actions, nil) != v.actions {
			t.Errorf("%s: %s, expected %s", v.key, openflow.FormatDatapathActions(got.Actions, nil), v.actions)
		}
	}
}

// All frames of a megaflow with ct have the same translation, also after the second
// look-up.
func TestTrackedMegaflowsAreSound(t *testing.T) {
	matches := []string{"ct_state=+trk", "ct_state=+new", "ct_state=-trk", "ct_mark=1", "ct_mark=2/2", "ct_label=4/4", "ct_zone=1", "",
		"ip,ct_state=+est,ct_nw_src=10.0.0.0/8", "ip,ct_state=+trk-inv,ct_tp_dst=80", "reg0=1", "tcp", "tcp,nw_src=10.0.0.0/8", "ip,nw_proto=6,nw_dst=10.0.0.1"}
	acts := []string{"ct(table=%d)", "ct(commit,table=%d,nat(src=10.0.0.1))", "ct(table=%d,zone=NXM_OF_IN_PORT[])", "ct_clear,resubmit(,%d)", "resubmit(,%d,ct),2",
		"set_field:1->reg0,ct(table=%d),mod_nw_dst:10.0.0.9,3", "clone(ct(commit),resubmit(,%d)),4", "move:NXM_NX_CT_MARK[]->NXM_NX_REG0[],resubmit(,%d),2", "1"}
	seeds := uint64(150)
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 7))
		p, env := ofproto.NewTables(ofproto.Limits{}), newRecircEnv()
		var texts []string
		for len(texts) < 15 {
			text := "table=" + string('0'+rune(r.IntN(4))) + "," + matches[r.IntN(len(matches))]
			if !strings.Contains(text, "ip") && !strings.Contains(text, "tcp") {
				text += ",ip"
			}
			text += ",actions=" + strings.Replace(acts[r.IntN(len(acts))], "%d", string('0'+rune(r.IntN(4))), 1)
			if strings.Contains(text, ",ct)") {
				text = strings.Replace(text, ",actions", ",ct_state=+est,actions", 1)
			}
			mod, err := openflow.ParseFlowMod(text, openflow.Add, nil)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if _, err := p.Apply([]openflow.FlowMod{mod}, 0); err == nil {
				texts = append(texts, text)
			}
		}
		ids := []uint32{0}
		for range 60 {
			k := openflowtest.Key(r)
			k[flowtable.WEthDst] = k[flowtable.WEthDst]&^0xffff | packet.EtherTypeIPv4
			k.SetRecirc(ids[r.IntN(len(ids))])
			ct := k.CT()
			*ct = [flowtable.CTWords]uint64{}
			if k.Recirc() != 0 {
				ct[0] = uint64(r.IntN(4))<<32 | uint64(0x20|1<<r.IntN(5))<<24 | 6<<16 | uint64(r.IntN(2))
				ct[1], ct[3], ct[5] = 80<<32, uint64(r.IntN(8)), 0x0a000001
			}
			got := Translate(p, &k, env)
			for _, a := range got.Actions {
				if a.Op == flowtable.OpRecirc {
					ids = append(ids, a.U32)
				}
			}
			for range 20 {
				o := agreeing(r, &k, &got.Mask)
				other := Translate(p, &o, env)
				other.Mask = got.Mask
				if !reflect.DeepEqual(got, other) {
					t.Fatalf("seed %d: %x\n%x: %s\n%x: %s\n%s", seed, got.Mask, k, openflow.FormatDatapathActions(got.Actions, nil),
						o, openflow.FormatDatapathActions(other.Actions, nil), strings.Join(texts, "\n"))
				}
			}
		}
	}
}

// Collect removes unused recirculation ids and keeps the ids in use.
func TestRecircTableForgets(t *testing.T) {
	r := NewRecircTable()
	a, _ := r.Freeze(1, &Frozen{Table: 1})
	b, _ := r.Freeze(1, &Frozen{Table: 2})
	r.Collect(func(uint32) bool { return false })
	if r.Len() != 2 {
		t.Fatal("Collect removed an id that was just used")
	}
	r.Collect(func(id uint32) bool { return id == b })
	if _, ok := r.Frozen(a); ok || r.Len() != 1 {
		t.Fatal("Collect kept an unused id")
	}
}

// A port that creates an id with every frame gets at most half of the ids. Other
// ports get at least their guaranteed number.
func TestRecircIDsAreShared(t *testing.T) {
	r := NewRecircTable()
	frozen := func(i int) *Frozen {
		return &Frozen{State: [openflow.StateWords]uint64{0, uint64(i)}}
	}
	made := func(port uint32, from int) (n int) {
		for i := range MaxFrozen {
			if _, ok := r.Freeze(port, frozen(from+i)); ok {
				n++
			}
		}
		return n
	}
	if n := made(1, 0); n < MaxFrozen/3 || n > MaxFrozen/2 {
		t.Errorf("one port has %d of %d ids", n, MaxFrozen)
	}
	for port := uint32(2); port < 40; port++ {
		if n := made(port, int(port)*MaxFrozen); n < 8 {
			t.Errorf("port %d has %d ids", port, n)
		}
	}
	if _, ok := r.Freeze(50, frozen(0)); !ok {
		t.Error("an id that another port has made is refused")
	}
	used, refused := r.Shares(func(port uint32, u share.Use) {
		if u.Guarantee != 8 || u.Used != u.Limit || u.Refused == 0 {
			t.Errorf("port %d: unexpected use %+v", port, u)
		}
	})
	if used > MaxFrozen || refused == 0 {
		t.Errorf("unexpected totals: %d used, %d refused", used, refused)
	}
	for range 2 {
		r.Collect(func(uint32) bool { return false })
	}
	if n := made(7, 0); r.Len() != n || n < MaxFrozen/3 {
		t.Errorf("after the others' ids are collected, the port has %d of %d ids", n, r.Len())
	}
}

// Parsing the text of a ct action gives the same action.
func TestCTText(t *testing.T) {
	for _, text := range []string{
		"ct(commit,zone=5,nat(src=10.0.0.1-10.0.0.9:100-200,persistent,random),exec(set_field:0x5->ct_mark))",
		"ct(table=1,zone=NXM_NX_REG0[0..15],nat)", "ct(commit,force,nat(dst=[fd00::1]-[fd00::9]:80))", "ct(commit,nat(src))",
		"ct(commit,alg=ftp)", "ct_clear", "ct()",
	} {
		list, err := openflow.ParseActions(text, nil)
		if err != nil || openflow.FormatActions(list, nil) != text {
			t.Errorf("%s: parsed and formatted as %s, error %v", text, openflow.FormatActions(list, nil), err)
		}
	}
}
