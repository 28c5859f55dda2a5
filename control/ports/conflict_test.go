// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"testing"

	"weft/control/store"
)

// XDP does not see that the checksum of a frame is unfinished, so an AF_XDP uplink would
// deliver frames of a tap with offloads with wrong checksums.
func TestXDPNeedsATapWithoutOffloads(t *testing.T) {
	xdp := &switchPort{saved: store.Port{Number: 1, Name: "up"}, kind: kindXDP, values: map[string]string{"dev": "brp"}}
	for _, c := range []struct {
		name    string
		port    *switchPort
		refused string
	}{
		{"a tap with offloads", &switchPort{kind: kindTap, values: map[string]string{"dev": "brp", "offloads": "on"}},
			"port brp: its tap brp passes unfinished checksums, which type=af_xdp of port up cannot see; expected offloads=off of port brp, or type=af_packet of port up"},
		{"LOCAL with offloads", &switchPort{kind: kindLocal, values: map[string]string{"offloads": "on"}},
			"port brp: its tap brp passes unfinished checksums, which type=af_xdp of port up cannot see; expected offloads=off of port brp, or type=af_packet of port up"},
		{"a tap with the port's name", &switchPort{kind: kindTap, values: map[string]string{"offloads": "on"}},
			"port brp: its tap brp passes unfinished checksums, which type=af_xdp of port up cannot see; expected offloads=off of port brp, or type=af_packet of port up"},
		{"without offloads", &switchPort{kind: kindLocal, values: map[string]string{"offloads": "off"}}, ""},
		{"another device", &switchPort{kind: kindTap, values: map[string]string{"dev": "t0", "offloads": "on"}}, ""},
		{"another namespace", &switchPort{kind: kindTap, values: map[string]string{"dev": "brp", "netns": "n0", "offloads": "on"}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tap := c.port
			tap.saved = store.Port{Number: 2, Name: "brp"}
			for _, order := range [][2]*switchPort{{xdp, tap}, {tap, xdp}} {
				ps := &Ports{byNumber: map[uint32]*switchPort{order[0].saved.Number: order[0]}}
				err := ps.conflict(order[1])
				if got := errorText(err); got != c.refused {
					t.Errorf("%s after %s: %q, want %q", order[1].kind, order[0].kind, got, c.refused)
				}
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
