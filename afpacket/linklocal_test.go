// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"net/netip"
	"testing"
)

// A link-local address can be an endpoint. Two devices may have the same one.
func TestLinkLocalEndpoint(t *testing.T) {
	r := newRig(t)
	e := netip.MustParseAddrPort("[fe80::99]:4789")
	for _, dev := range []string{"u0", "other"} {
		if dev == "other" {
			r.ns[0].Exec("ip", "link", "add", dev, "up", "type", "veth", "peer", "name", "another")
		}
		r.ns[0].Exec("ip", "addr", "add", e.Addr().String()+"/64", "dev", dev, "nodad")
	}
	r.ns[0].Do(func() {
		if err := r.up[0].SetEndpoints([]netip.AddrPort{e}); err != nil {
			t.Fatal(err)
		}
		other, err := Setup(Config{Dev: "other"})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if err := other.SetEndpoints([]netip.AddrPort{e}); err != nil {
			t.Error(err)
		}
	})
}
