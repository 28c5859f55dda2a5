// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"strings"
	"testing"

	"weft/openflow/xlate"
)

// Each case has the text of the options, the mode, the tag, and whether the port
// carries VLAN 0 and VLAN 7.
func TestVLANOptions(t *testing.T) {
	for _, c := range []struct {
		words       string
		mode        xlate.VLANMode
		vid         uint16
		zero, seven bool
	}{
		{"vlan_mode=trunk", xlate.VLANTrunk, 0, true, true},
		{"trunks=0,6-8", xlate.VLANTrunk, 0, true, true},
		{"trunks=5", xlate.VLANTrunk, 0, false, false},
		{"tag=7", xlate.VLANAccess, 7, true, true},
		{"vlan_mode=native-tagged tag=7 trunks=0,5", xlate.VLANNativeTagged, 7, false, true},
		{"vlan_mode=native-untagged tag=5", xlate.VLANNativeUntagged, 5, false, true},
		{"vlan_mode=dot1q-tunnel tag=5 cvlans=7 qinq-ethtype=802.1q", xlate.VLANTunnel, 5, true, true},
	} {
		_, values, _, err := parseOptions(strings.Fields("type=tap " + c.words))
		if err != nil {
			t.Fatal(err)
		}
		var info xlate.PortInfo
		if err := fillVLANs(&info, values); err != nil {
			t.Errorf("%s: %v", c.words, err)
			continue
		}
		p := info.VLANs
		if p.Mode != c.mode || p.VID != c.vid || p.Trunks.Has(0) != c.zero || p.Trunks.Has(7) != c.seven {
			t.Errorf("%s: %+v", c.words, p)
		}
		if c.mode == xlate.VLANTunnel && (p.TPID != 0x8100 || p.CVLANs.Has(0) || !p.CVLANs.Has(7)) {
			t.Errorf("%s: %+v", c.words, p)
		}
	}
	for words, wrong := range map[string]string{
		"vlan_mode=access": "tag= is missing", "vlan_mode=native-tagged trunks=1": "tag= is missing",
		"tag=5 trunks=1": "trunks=1", "vlan_mode=trunk tag=1": "tag=1", "tag=5 cvlans=1": "cvlans=1",
		"vlan_mode=dot1q-tunnel tag=1 trunks=1": "trunks=1", "tag=1 qinq-ethtype=802.1ad": "qinq-ethtype=802.1ad",
	} {
		_, values, _, err := parseOptions(strings.Fields("type=tap " + words))
		if err != nil {
			t.Fatal(err)
		}
		if err := fillVLANs(new(xlate.PortInfo), values); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %v, want an error with %q", words, err, wrong)
		}
	}
}
