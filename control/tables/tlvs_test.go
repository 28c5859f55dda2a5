// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"errors"
	"fmt"
	"testing"

	"weft/api"
	"weft/control/usererr"
)

// A TLV map is in force at once, and also after a restart of control. A wrong change
// changes nothing.
func TestTLVMapIsSaved(t *testing.T) {
	f := newRig(t)
	const text = "{class=0xffff,type=0,len=4}->tun_metadata0,{class=0x102,type=0x80,len=124}->tun_metadata63"
	if err := f.tables().ChangeTLVs(api.ChangeTLVs{Op: "add", Text: text}); err != nil {
		t.Fatal(err)
	}
	before := f.tables().TLVMap()
	if len(before.Mappings) != 2 || before.Space != 128 || before.Mappings[1] != (api.TLVMapping{Class: 0x102, Type: 0x80, Len: 124,
		Field: "tun_metadata63", Line: "{class=0x102,type=0x80,len=124}->tun_metadata63"}) {
		t.Errorf("%+v", before)
	}
	var input *usererr.Error
	for _, bad := range []api.ChangeTLVs{{Op: "add", Text: "{class=5,type=0,len=4}->tun_metadata1,{class=6,type=0,len=4}->tun_metadata63"}, {Op: "add", Text: "x"}, {Op: "fly"}} {
		if err := f.tables().ChangeTLVs(bad); !errors.As(err, &input) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	f.End()
	f.Begin()
	if after := f.tables().TLVMap(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("after a restart: %+v, before: %+v", after, before)
	}
	if err := f.tables().ChangeTLVs(api.ChangeTLVs{Op: "delete"}); err != nil || f.tables().TLVMap().Space != 0 {
		t.Error(err)
	}
	f.End()
	f.Begin()
	if after := f.tables().TLVMap(); len(after.Mappings) != 0 {
		t.Errorf("deleted mappings are back: %+v", after)
	}
}
