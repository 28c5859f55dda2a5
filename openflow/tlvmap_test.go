// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow/openflowtest"
)

// tlvMap returns the TLV map with the mappings of the text, which has the syntax of add-tlv-map.
func tlvMap(t testing.TB, text string) *TLVMap {
	t.Helper()
	list, err := ParseTLVMappings(text)
	if err != nil {
		t.Fatal(err)
	}
	var m *TLVMap
	if m, err = m.Changed(&TLVMod{Mappings: list}); err != nil {
		t.Fatal(err)
	}
	return m
}

// testTLVs is the TLV map of newEnv and of the tests with the flows of testdata/flows.txt.
var testTLVs = func() *TLVMap {
	list, err := ParseTLVMappings(openflowtest.TLVMappings)
	if err != nil {
		panic(err)
	}
	var m *TLVMap
	if m, err = m.Changed(&TLVMod{Mappings: list}); err != nil {
		panic(err)
	}
	return m
}()

// A change of the TLV map is refused with Open vSwitch's error, and then changes nothing.
func TestTLVMap(t *testing.T) {
	m := tlvMap(t, "{class=0xffff,type=0,len=4}->tun_metadata0,{class=0x102,type=0x80,len=124}->tun_metadata63,{class=1,type=1,len=0}->tun_metadata5")
	for _, l := range []struct {
		text string
		code ErrorCode
	}{
		{"{class=1,type=2,len=3}->tun_metadata1", ErrTLVBadOptLen}, {"{class=1,type=2,len=128}->tun_metadata1", ErrTLVBadOptLen},
		{"{class=1,type=2,len=4}->tun_metadata64", ErrTLVBadField}, {"{class=1,type=2,len=4}->tun_metadata0", ErrTLVAlreadyMapped},
		{"{class=0x102,type=128,len=4}->tun_metadata1", ErrTLVDupEntry},
		{"{class=9,type=2,len=124}->tun_metadata1,{class=9,type=3,len=8}->tun_metadata2", ErrTLVTableFull},
	} {
		list, err := ParseTLVMappings(l.text)
		if err != nil {
			t.Fatal(l.text, err)
		}
		var coded *CodedError
		if _, err = m.Changed(&TLVMod{Mappings: list}); !errors.As(err, &coded) || coded.Code != l.code {
			t.Errorf("%s: %v", l.text, err)
		}
	}
	if n := len(m.Mappings()); n != 3 || m.Space() != 128 || m.OptionBytes() != 128+3*4 {
		t.Errorf("%d mappings of %d bytes, with headers of %d", n, m.Space(), m.OptionBytes())
	}
	// A field may take cells that are not next to each other.
	list, _ := ParseTLVMappings("{class=9,type=2,len=124}->tun_metadata1,{class=9,type=3,len=4}->tun_metadata2")
	m, err := m.Changed(&TLVMod{Mappings: list})
	if err != nil || m.Space() != TLVSpace || m.OptionBytes() != flowtable.MaxTunOptions {
		t.Fatal(err, m.Space(), m.OptionBytes())
	}
	m, _ = m.Changed(&TLVMod{Command: TLVDelete, Mappings: []TLVMapping{{Field: 0}, {Field: 2}, {Field: 50}}})
	if m, err = m.Changed(&TLVMod{Mappings: []TLVMapping{{Class: 8, Len: 8, Field: 3}}}); err != nil || m.Space() != TLVSpace {
		t.Error(err, m.Space())
	}
	seen := map[uint8]bool{}
	for _, f := range m.fields {
		if f != nil {
			for _, c := range f.cells {
				if seen[c] {
					t.Errorf("%v shares cell %d", f.TLVMapping, c)
				}
				seen[c] = true
			}
		}
	}
	var texts []string
	for _, f := range m.Mappings() {
		texts = append(texts, f.String())
	}
	again := tlvMap(t, strings.Join(texts, ","))
	if fmt.Sprint(again.Mappings()) != fmt.Sprint(m.Mappings()) {
		t.Errorf("%v became %v", m.Mappings(), again.Mappings())
	}
	if m, err = m.Changed(&TLVMod{Command: TLVClear}); err != nil || m.Space() != 0 || len(m.Mappings()) != 0 {
		t.Error(err, m.Mappings())
	}
}

func TestTLVMapErrorsNameTheWord(t *testing.T) {
	for _, text := range []string{"x", "{class=1,type=2,len=4}", "{class=1,type=2}->tun_metadata0", "{class=65536,type=2,len=4}->tun_metadata0",
		"{class=1,type=256,len=4}->tun_metadata0", "{class=1,type=2,len=4}->tun_metadata", "{class=1,type=2,len=4}->tun_metadata0,",
		"{type=1,class=2,len=4}->tun_metadata0", "{class=1,type=2,len=4}->tun_id", "{class=1,type=2,len=4}->tun_metadata0 x"} {
		var wrong *ParseError
		if _, err := ParseTLVMappings(text); !errors.As(err, &wrong) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
