// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"net/netip"
	"strings"
	"testing"

	"weft/control/underlay"
	"weft/openflow/xlate"
)

// A vxlan port is down while all its remotes are down, and names the reason.
func TestTunnelState(t *testing.T) {
	first := netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		summary underlay.Summary
		state   string
		detail  string
	}{
		{underlay.Summary{}, StateUp, ""},
		{underlay.Summary{Up: 2}, StateUp, ""},
		{underlay.Summary{Down: 1, First: first, Reason: "no route"}, stateDown, "no route"},
		{underlay.Summary{Down: 3, First: first, Reason: "no route"}, stateDown, "all 3 remotes are down: no route"},
		{underlay.Summary{Up: 1, Down: 2, First: first, Reason: "no route"}, StateUp, "2 of 3 remotes down: no route"},
		{underlay.Summary{Waiting: 1, Down: 1, Reason: "no route"}, StateUp, "1 of 2 remotes down: no route"},
		{underlay.Summary{Waiting: 1, Reason: "waiting for x"}, StateUp, "waiting for x"},
		{underlay.Summary{Up: 1, Waiting: 1, Reason: "waiting for x"}, StateUp, "1 of 2 remotes waiting: waiting for x"},
	} {
		p := &tunnelPort{portContext: portContext{remotes: func(uint32) underlay.Summary { return c.summary }}}
		if s := p.status(); s.state != c.state || s.detail != c.detail {
			t.Errorf("%+v: %+v", c.summary, s)
		}
	}
}

// The warning names the guests whose MTU is too large for a tunnel, and both remedies.
func TestMTUWarning(t *testing.T) {
	port := func(name string, inVNI bool, vni uint32) *switchPort {
		p := &switchPort{info: xlate.PortInfo{Kind: xlate.PortNormal, InVNI: inVNI, VNI: vni}}
		p.saved.Name = name
		return p
	}
	overlay := &switchPort{info: xlate.PortInfo{VNI: 7}}
	overlay.saved.Name = "overlay"
	path := func(remote string, mtu int) underlay.RemoteState {
		return underlay.RemoteState{Remote: netip.MustParseAddr(remote), Device: "eth0", MTU: mtu}
	}
	for _, c := range []struct {
		options string
		remote  string
		want    int
	}{{"type=geneve vni=1", "192.0.2.1", 50}, {"type=gre", "192.0.2.1", 38}, {"type=gre key=1 csum=on seq=on", "2001:db8::1", 70},
		{"type=erspan", "192.0.2.1", 50}, {"type=erspan erspan_ver=2", "192.0.2.1", 54}} {
		_, values, _, err := parseOptions(append(strings.Fields(c.options), "remote="+c.remote))
		if got := parseEncap(values).Overhead(netip.MustParseAddr(c.remote)); err != nil || got != c.want {
			t.Errorf("%s to %s: %d bytes, want %d: %v", c.options, c.remote, got, c.want, err)
		}
	}
	vm1, vm2, other := port("vm1", true, 7), port("vm2", false, 0), port("vm3", true, 8)
	for _, c := range []struct {
		path    underlay.RemoteState
		options int
		guests  []guestMTU
		want    string
	}{
		{path("192.0.2.1", 1500), 0, []guestMTU{{vm1, 1450}}, ""},
		{path("192.0.2.1", 1500), 0, []guestMTU{{vm1, 1451}}, "MTU 1451 of port vm1 exceeds 1450, the most that overlay carries to 192.0.2.1; expected mtu=1450 at the guests, or an MTU of 1501 at eth0"},
		{path("2001:db8::1", 1500), 0, []guestMTU{{vm2, 1500}, {vm1, 1431}}, "MTU 1500 of port vm2 and 1 more exceeds 1430"},
		{path("192.0.2.1", 1500), 0, []guestMTU{{other, 9000}}, ""},
		{path("192.0.2.1", 0), 0, []guestMTU{{vm1, 9000}}, ""},
		{path("192.0.2.1", 1500), 12, []guestMTU{{vm1, 1438}}, ""},
		{path("192.0.2.1", 1500), 12, []guestMTU{{vm1, 1439}}, "MTU 1439 of port vm1 exceeds 1438, the most that overlay carries to 192.0.2.1 behind the 12 bytes of Geneve options of the TLV map; expected mtu=1438 at the guests, or an MTU of 1501 at eth0"},
	} {
		if got := mtuWarning(overlay, c.path, c.path.MTU-underlay.Encap{}.Overhead(c.path.Remote), c.options, c.guests); got != c.want && (c.want == "" || !strings.HasPrefix(got, c.want)) {
			t.Errorf("%+v: %q, want %q", c.path, got, c.want)
		}
	}
}
