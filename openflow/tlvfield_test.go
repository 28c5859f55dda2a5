// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"errors"
	"strings"
	"testing"

	"weft/flowtable"
)

// A field without a mapping, a value that is longer than its option and an action that takes
// no field tun_metadata are refused by name.
func TestTLVFieldErrorsNameTheWord(t *testing.T) {
	names := WithTLVs(nil, testTLVs)
	for _, l := range []struct{ text, word, expected string }{
		{"tun_metadata9=1,actions=drop", "tun_metadata9", "add-tlv-map"},
		{"tun_metadata0=0x100000000,actions=drop", "0x100000000", "at most 32 bits"},
		{"tun_metadata0=1/x,actions=drop", "1/x", "tun_metadata0"},
		{"tun_metadata2=99999999999999999999999,actions=drop", "99999999999999999999999", "tun_metadata2"},
		{"actions=set_field:1->tun_metadata9", "tun_metadata9", "add-tlv-map"},
		{"actions=load:1->tun_metadata0[32]", "tun_metadata0[32]", "bits within it"},
		{"actions=move:tun_metadata9[0]->reg0[0]", "tun_metadata9", "add-tlv-map"},
		{"actions=delete_field:reg0", "delete_field:reg0", "tun_metadata"},
		{"actions=delete_field:tun_metadata9", "tun_metadata9", "add-tlv-map"},
		{"actions=learn(tun_metadata0)", "tun_metadata0", "a field to match"},
		{"actions=push:tun_metadata2", "push:tun_metadata2", "128 bits"},
	} {
		var wrong *ParseError
		if _, err := ParseFlowMod(l.text, Add, names); !errors.As(err, &wrong) || wrong.Word != l.word || !strings.Contains(wrong.Expected, l.expected) {
			t.Errorf("%s: %v", l.text, err)
		}
	}
}

// A mapping that a flow or a group uses stays. A flow whose fields were parsed with another
// map is refused.
func TestTLVMapInUse(t *testing.T) {
	code := func(err error) ErrorCode {
		var coded *CodedError
		if errors.As(err, &coded) {
			return coded.Code
		}
		return ErrNone
	}
	for _, text := range []string{"tun_metadata0,actions=drop", "actions=set_field:1->tun_metadata0,1", "actions=clone(move:tun_metadata0[0..3]->reg0[0..3])",
		"actions=write_actions(load:1->tun_metadata0[0])", "ip,actions=ct(commit,exec(move:tun_metadata0[0..31]->ct_mark))"} {
		p := NewPipeline(Limits{})
		mapTLVs(p)
		mod, err := ParseFlowMod(text, Add, WithTLVs(nil, testTLVs))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Apply([]FlowMod{mod}, 0); err != nil {
			t.Fatal(text, err)
		}
		for _, change := range []TLVMod{{Command: TLVClear}, {Command: TLVDelete, Mappings: []TLVMapping{{Field: 0}}}} {
			if err := p.ChangeTLVs(&change); code(err) != ErrTLVInUse {
				t.Errorf("%s: %v", text, err)
			}
		}
		if err := p.ChangeTLVs(&TLVMod{Command: TLVDelete, Mappings: []TLVMapping{{Field: 1}}}); err != nil {
			t.Errorf("another field: %v", err)
		}
		if _, err := p.Apply([]FlowMod{{Command: Delete, Table: TableAll}}, 0); err != nil {
			t.Fatal(err)
		}
		if err := p.ChangeTLVs(&TLVMod{Command: TLVClear}); err != nil {
			t.Errorf("%s is deleted: %v", text, err)
		}
		if _, err := p.Apply([]FlowMod{mod}, 0); code(err) != ErrFlowInvalidTLV {
			t.Errorf("%s after a change of the map: %v", text, err)
		}
	}
}

// A group of an open bundle may name a field whose mapping is deleted before the commit. Saved
// with such a group, the flows that name it would be lost at the next start.
func TestGroupWithOldMapping(t *testing.T) {
	p := NewPipeline(Limits{})
	mapTLVs(p)
	mod, err := ParseGroupMod("group_id=1,type=all,bucket=set_field:1->tun_metadata0,1", GroupAdd, WithTLVs(nil, testTLVs))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.ApplyBundle([]BundleItem{{Group: &mod}}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ApplyGroups([]GroupMod{{Command: GroupDelete, Group: Group{ID: 1}}}, 0); err != nil {
		t.Fatal(err)
	}
	if err := p.ChangeTLVs(&TLVMod{Command: TLVClear}); err != nil {
		t.Fatal(err)
	}
	var coded *CodedError
	if _, err := p.ApplyBundle([]BundleItem{{Group: &mod}}, 0); !errors.As(err, &coded) || coded.Code != ErrFlowInvalidTLV {
		t.Errorf("the group after a change of the map: %v", err)
	}
}

// The mapped options of a received frame are sent to the next Geneve tunnel, with the changes
// of actions. The megaflow then matches all options of the frame.
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
		p := NewPipeline(Limits{})
		mapTLVs(p)
		mod, err := ParseFlowMod("actions="+l.actions, Add, WithTLVs(env, testTLVs))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Apply([]FlowMod{mod}, 0); err != nil {
			t.Fatal(err)
		}
		k := keyOfText(t, "in_port=1,tun_dst=192.0.2.9")
		k[flowtable.WTunOpts] = 1 // of randomOptions
		tr := Translate(p, &k, env)
		if got := FormatDatapathActions(tr.Actions, nil); !strings.HasPrefix(got, l.want) {
			t.Errorf("%s: %s, want %s", l.actions, got, l.want)
		}
	}
}
