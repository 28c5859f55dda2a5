// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"errors"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// A mapping that a flow or a group uses cannot be deleted. A flow whose fields were parsed with
// another map is refused.
func TestTLVMapInUse(t *testing.T) {
	code := func(err error) openflow.ErrorCode {
		var coded *openflow.CodedError
		if errors.As(err, &coded) {
			return coded.Code
		}
		return openflow.ErrNone
	}
	for _, text := range []string{"tun_metadata0,actions=drop", "actions=set_field:1->tun_metadata0,1", "actions=clone(move:tun_metadata0[0..3]->reg0[0..3])",
		"actions=write_actions(load:1->tun_metadata0[0])", "ip,actions=ct(commit,exec(move:tun_metadata0[0..31]->ct_mark))"} {
		p := ofproto.NewTables(ofproto.Limits{})
		mapTLVs(p)
		mod, err := openflow.ParseFlowMod(text, openflow.Add, openflow.WithTLVs(nil, testTLVs))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Apply([]openflow.FlowMod{mod}, 0); err != nil {
			t.Fatal(text, err)
		}
		for _, change := range []openflow.TLVMod{{Command: openflow.TLVClear}, {Command: openflow.TLVDelete, Mappings: []openflow.TLVMapping{{Field: 0}}}} {
			if err := p.ChangeTLVs(&change); code(err) != openflow.ErrTLVInUse {
				t.Errorf("%s: %v", text, err)
			}
		}
		if err := p.ChangeTLVs(&openflow.TLVMod{Command: openflow.TLVDelete, Mappings: []openflow.TLVMapping{{Field: 1}}}); err != nil {
			t.Errorf("another field: %v", err)
		}
		if _, err := p.Apply([]openflow.FlowMod{{Command: openflow.Delete, Table: openflow.TableAll}}, 0); err != nil {
			t.Fatal(err)
		}
		if err := p.ChangeTLVs(&openflow.TLVMod{Command: openflow.TLVClear}); err != nil {
			t.Errorf("%s is deleted: %v", text, err)
		}
		if _, err := p.Apply([]openflow.FlowMod{mod}, 0); code(err) != openflow.ErrFlowInvalidTLV {
			t.Errorf("%s after a change of the map: %v", text, err)
		}
	}
}

// While a bundle is open, the mapping of a field in one of its groups may be deleted. The bundle must
// then be refused: at the next start of control, a saved group of this kind and the flows that name
// it could not be loaded.
func TestGroupWithOldMapping(t *testing.T) {
	p := ofproto.NewTables(ofproto.Limits{})
	mapTLVs(p)
	mod, err := openflow.ParseGroupMod("group_id=1,type=all,bucket=set_field:1->tun_metadata0,1", openflow.GroupAdd, openflow.WithTLVs(nil, testTLVs))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.ApplyBundle([]ofproto.BundleItem{{Group: &mod}}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ApplyGroups([]openflow.GroupMod{{Command: openflow.GroupDelete, Group: openflow.Group{ID: 1}}}, 0); err != nil {
		t.Fatal(err)
	}
	if err := p.ChangeTLVs(&openflow.TLVMod{Command: openflow.TLVClear}); err != nil {
		t.Fatal(err)
	}
	var coded *openflow.CodedError
	if _, err := p.ApplyBundle([]ofproto.BundleItem{{Group: &mod}}, 0); !errors.As(err, &coded) || coded.Code != openflow.ErrFlowInvalidTLV {
		t.Errorf("the group after a change of the map: %v", err)
	}
}

// The mapped options of a received frame are sent to the next Geneve tunnel, as actions have changed
// them. The megaflow then matches all options of the frame.
func TestOptionsGoAlong(t *testing.T) {
	env := newEnv()
	env.setEncaps()
	for _, l := range []struct{ actions, want string }{
		{"6", "set(tunnel(options=0102000100000001)),tunnel"},
		{"set_field:9->tun_metadata0,6", "set(tunnel(options=0102000100000009)),tunnel"},
		{"delete_field:tun_metadata0,6", "tunnel"},
		{"set_field:0->tun_metadata3,6", "set(tunnel(options=0102000100000001ffff8000)),tunnel"},
		{"clone(set_field:9->tun_metadata0,6),6", "set(tunnel(options=0102000100000009)),tunnel(template"},
		{"5", "tunnel"},
		{"set_field:3->tun_gbp_id,5,6", "set(tunnel(gbp_id=3,gbp_flags=0x0,flags=0x0)),tunnel"},
	} {
		p := ofproto.NewTables(ofproto.Limits{})
		mapTLVs(p)
		mod, err := openflow.ParseFlowMod("actions="+l.actions, openflow.Add, openflow.WithTLVs(env, testTLVs))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Apply([]openflow.FlowMod{mod}, 0); err != nil {
			t.Fatal(err)
		}
		k := keyOfText(t, "in_port=1,tun_dst=192.0.2.9")
		k[flowtable.WTunOpts] = 1 // hash of the first of the environment's options
		tr := Translate(p, &k, env)
		if got := openflow.FormatDatapathActions(tr.Actions, nil); !strings.HasPrefix(got, l.want) {
			t.Errorf("%s: %s, want %s", l.actions, got, l.want)
		}
	}
}
