// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"os/exec"
	"strings"
	"testing"
)

// ovs-ofctl can change and print the TLV map, and prints the names of the errors.
func TestOfctlChangesTLVMap(t *testing.T) {
	tool, err := exec.LookPath("ovs-ofctl")
	if err != nil {
		t.Skip("ovs-ofctl is missing: install openvswitch-common for the comparison with it")
	}
	r := newRig(t)
	for _, l := range []struct{ words, expected string }{
		{"add-tlv-map {class=0xffff,type=0,len=4}->tun_metadata0,{class=0,type=0x80,len=124}->tun_metadata3", ""},
		{"add-tlv-map {class=1,type=2,len=4}->tun_metadata0", "NXTTMFC_ALREADY_MAPPED"},
		{"add-tlv-map {class=0xffff,type=0,len=4}->tun_metadata1", "NXTTMFC_DUP_ENTRY"},
		{"add-tlv-map {class=1,type=2,len=5}->tun_metadata1", "NXTTMFC_BAD_OPT_LEN"},
		{"add-tlv-map {class=1,type=2,len=4}->tun_metadata64", "NXTTMFC_BAD_FIELD_IDX"},
		{"add-tlv-map {class=1,type=2,len=124}->tun_metadata1,{class=1,type=3,len=8}->tun_metadata2", "NXTTMFC_TABLE_FULL"},
		{"dump-tlv-map", " max option space=256 max fields=64\n allocated option space=128\n\n mapping table:\n  class  type  length  match field\n" +
			" ------  ----  ------  --------------\n 0xffff     0       4  tun_metadata0\n      0  0x80     124  tun_metadata3"},
		{"del-tlv-map {class=0xffff,type=0,len=4}->tun_metadata0", ""},
		{"dump-tlv-map", "allocated option space=124"},
		{"del-tlv-map", ""},
		{"dump-tlv-map", "allocated option space=0"},
	} {
		for _, version := range []string{"OpenFlow10", "OpenFlow15"} {
			if !strings.Contains(l.expected, " ") && !strings.Contains(l.expected, "_") && version == "OpenFlow15" {
				continue // a change is made once
			}
			verb, arg, _ := strings.Cut(l.words, " ")
			words := []string{"-O", version, verb, "unix:" + r.path}
			if arg != "" {
				words = append(words, arg)
			}
			out, _ := exec.Command(tool, words...).CombinedOutput()
			if !strings.Contains(string(out), l.expected) || l.expected == "" && len(out) > 0 {
				t.Errorf("%s %s:\n%s", version, l.words, out)
			}
		}
	}
}
