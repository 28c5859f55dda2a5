// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"errors"
	"strings"
	"testing"
)

// The parser refuses a field without a mapping, a value that is longer than its option, and an action that
// cannot have a field tun_metadata. The error names the wrong word.
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
