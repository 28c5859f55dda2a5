// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"slices"
	"testing"

	"weft/control/change"
	"weft/control/store"
	"weft/openflow/xlate"
	"weft/tunnel"
)

// XDP does not see that a frame's checksum is unfinished. So an AF_XDP uplink on a tap with offloads
// would deliver wrong checksums, and is refused.
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

// A device has at most one uplink of any kind.
func TestOneUplinkADevice(t *testing.T) {
	ports, configuration := newTestPorts(t)
	kinds := []string{kindXDP, kindPacket, kindUplink}
	for _, first := range kinds {
		configuration.Do(func(tx *change.Tx) {
			ports.Load(tx, []store.Port{{Number: 1, Name: "up1", Options: []string{"type=" + first, "dev=none0"}}}, map[uint32]string{}, nil)
		})
		for _, second := range kinds {
			want := "dev=none0: port up1 has it already, with type=" + first + "; expected another"
			if got := errorText(ports.CheckAdd("up2", []string{"type=" + second, "dev=none0"})); got != want {
				t.Errorf("type=%s: %q, want %q", second, got, want)
			}
			if err := ports.CheckAdd("up2", []string{"type=" + second, "dev=none1"}); err != nil {
				t.Errorf("type=%s on another device: %v", second, err)
			}
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Tunnels with different headers cannot share a UDP port. VXLAN with and without group policies can,
// because the header shows which it is.
func TestTunnelsOfTwoKindsNeedTwoUDPPorts(t *testing.T) {
	for _, c := range []struct {
		first, second []string
		refused       string
	}{
		{[]string{"type=vxlan"}, []string{"type=vxlan", "gbp=on"}, ""},
		{[]string{"type=vxlan"}, []string{"type=geneve"}, ""},
		{[]string{"type=vxlan"}, []string{"type=vxlan-gpe"}, ""},
		{[]string{"type=vxlan", "dst_port=6081"}, []string{"type=geneve"},
			"dst_port=6081: port one, of type=vxlan, uses it; expected another UDP port for type=geneve"},
		{[]string{"type=vxlan", "gbp=on"}, []string{"type=vxlan-gpe", "dst_port=4789"},
			"dst_port=4789: port one, of type=vxlan, uses it; expected another UDP port for type=vxlan-gpe"},
		{[]string{"type=gre"}, []string{"type=erspan"}, ""},
		{[]string{"type=gre"}, []string{"type=gre", "key=1"}, ""},
		{[]string{"type=gre"}, []string{"type=gre", "key=0"}, "remote=192.0.2.1: port one has the same key, remote and local; expected one of them to differ"},
		{[]string{"type=gre", "key=flow"}, []string{"type=gre", "key=flow"}, "remote=192.0.2.1: port one has the same key, remote and local; expected one of them to differ"},
		{[]string{"type=erspan"}, []string{"type=erspan", "erspan_ver=2"}, "remote=192.0.2.1: port one has the same key, remote and local; expected one of them to differ"},
	} {
		ports, _ := newTestPorts(t)
		vni := func(options []string, word string) []string {
			if slices.ContainsFunc(options, func(o string) bool { return o == "type=gre" || o == "type=erspan" }) {
				return append(options, "remote=192.0.2.1")
			}
			return append(options, word, "remote=192.0.2.1")
		}
		if _, err := ports.Add("one", vni(c.first, "vni=1")); err != nil {
			t.Fatal(err)
		}
		_, err := ports.Add("two", vni(c.second, "vni=2"))
		if got := errorText(err); got != c.refused {
			t.Errorf("%v after %v: %q, want %q", c.second, c.first, got, c.refused)
		}
	}
}

// The options of a tunnel port decide which kind of tunnel workers and translations use.
func TestKindsOfTunnels(t *testing.T) {
	for _, c := range []struct {
		options    []string
		udpPort    uint16
		kind       tunnel.Kind
		encap      xlate.Encap
		extensions uint8
	}{
		{[]string{"type=vxlan"}, 4789, tunnel.KindVXLAN, xlate.EncapVXLAN, tunnel.ExtIgnore},
		{[]string{"type=vxlan", "gbp=off"}, 4789, tunnel.KindVXLAN, xlate.EncapVXLAN, tunnel.ExtIgnore},
		{[]string{"type=vxlan", "gbp=on"}, 4789, tunnel.KindGBP, xlate.EncapGBP, tunnel.ExtIgnore},
		{[]string{"type=vxlan", "gbp=on", "reserved=refuse"}, 4789, tunnel.KindGBP, xlate.EncapGBP, tunnel.ExtGBP},
		{[]string{"type=vxlan-gpe"}, 4790, tunnel.KindGPE, xlate.EncapGPE, tunnel.ExtIgnore},
		{[]string{"type=geneve"}, 6081, tunnel.KindGeneve, xlate.EncapGeneve, tunnel.ExtIgnore},
		{[]string{"type=geneve", "dst_port=7000"}, 7000, tunnel.KindGeneve, xlate.EncapGeneve, tunnel.ExtIgnore},
		{[]string{"type=gre"}, 0, tunnel.KindGRE, xlate.EncapGRE, tunnel.ExtIgnore},
		{[]string{"type=gre", "csum=on", "seq=on"}, 0, tunnel.KindGRE, xlate.EncapGRE, tunnel.ExtIgnore},
		{[]string{"type=erspan"}, 0, tunnel.KindERSPAN1, xlate.EncapGRE, tunnel.ExtIgnore},
		{[]string{"type=erspan", "erspan_ver=2", "erspan_hwid=0x3f"}, 0, tunnel.KindERSPAN2, xlate.EncapGRE, tunnel.ExtIgnore},
	} {
		ports, _ := newTestPorts(t)
		network := "vni=1"
		if !c.kind.HasPort() {
			network = "key=1"
		}
		added, err := ports.Add("one", append(c.options, network, "remote=192.0.2.1"))
		if err != nil {
			t.Fatal(err)
		}
		p := ports.byNumber[added.Number]
		row, encap := p.termination(), ports.encaps(nil)[added.Number]
		if row.Kind != c.kind || row.UDPPort != c.udpPort || row.Extensions != c.extensions || encap.Kind != c.kind || p.info.Encap != c.encap {
			t.Errorf("%v: row %+v, encap %+v, translation %v", c.options, row, encap, p.info.Encap)
		}
	}
}
