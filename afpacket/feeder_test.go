// SPDX-License-Identifier: Apache-2.0

package afpacket

import "testing"

// A device gets large tunnelled frames whole only if its driver segments TCP over IPv4
// in tunnels. The 82599's driver announces the segmentation and then refuses it.
func TestRefusesTunnels(t *testing.T) {
	all := map[string]bool{cutsTunnels: true, cutsTunnelsSumed: true}
	mangling := map[string]bool{cutsTunnels: true, cutsTunnelsSumed: true, manglesID: true}
	for _, c := range []struct {
		driver   string
		features map[string]bool
		whole    bool
	}{
		{"veth", all, true},
		{"i40e", all, true},
		{"ixgbe", all, false},
		{"igb", all, false},
		{"ixgbe", mangling, true},
		{"veth", map[string]bool{cutsTunnels: true, manglesID: true}, false},
		{"veth", map[string]bool{cutsTunnelsSumed: true}, false},
	} {
		if err := refusesTunnels(c.driver, c.features); (err == nil) != c.whole {
			t.Errorf("%s with %v: %v, want whole frames: %v", c.driver, c.features, err, c.whole)
		}
	}
}
