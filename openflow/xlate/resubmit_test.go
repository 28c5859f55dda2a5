// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"weft/flowtable"
	"weft/openflow"
)

// resubmit(,TABLE,ct) finds the flow of the original tuple of the connection. The megaflow
// matches the tuple instead of the frame's own fields, and the actions see the frame.
func TestResubmitWithTuple(t *testing.T) {
	flows := []string{"ip,ct_state=+est,actions=resubmit(,1,ct)", "ipv6,ct_state=+est,actions=resubmit(1,1,ct)", "arp,ct_state=+est,actions=resubmit(,1,ct),4",
		"table=1,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_src=1000,tp_dst=21,actions=2",
		"table=1,tcp,nw_src=10.9.9.9,actions=4",
		"table=1,in_port=1,tcp6,ipv6_src=fc00::1,tp_dst=21,actions=2", "table=1,in_port=7,actions=drop"}
	track := func(k *flowtable.Key, src, dst string, srcPort, dstPort uint64) {
		k[flowtable.WCT] = 3<<24 | 6<<16 // ct_state, ct_nw_proto
		k[flowtable.WCTPorts] = srcPort<<48 | dstPort<<32
		for i, text := range []string{src, dst} {
			a := netip.MustParseAddr(text)
			b := a.As16()
			word := flowtable.WCTSrc + 2*i
			k[word], k[word+1] = binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])
			if a.Is4() {
				k[word], k[word+1] = 0, k[word+1]&0xffffffff
			}
		}
	}
	for _, c := range []struct {
		name, frame, src, dst, mask, actions string
	}{
		{"data of a reply", "in_port=3,tcp,nw_src=10.9.9.9,nw_dst=10.8.8.8,tp_src=20,tp_dst=5000", "10.0.0.1", "10.0.0.2",
			"ct_state=+est,ct_nw_src=10.0.0.1,ct_nw_dst=10.0.0.2,ct_nw_proto=6,ct_tp_src=1000,ct_tp_dst=21,ip,in_port=3,nw_frag=no", "2"},
		{"UDP frame of a TCP connection", "in_port=3,udp,nw_src=10.9.9.9,nw_dst=10.8.8.8", "10.0.0.1", "10.0.0.2",
			"ct_state=+est,ct_nw_src=10.0.0.1,ct_nw_dst=10.0.0.2,ct_nw_proto=6,ct_tp_src=1000,ct_tp_dst=21,ip,in_port=3,nw_frag=no", "2"},
		{"IPv6", "in_port=3,udp6,ipv6_src=fc00::9", "fc00::1", "fc00::2",
			"ct_state=+est,ct_ipv6_src=fc00::1,ct_nw_proto=6,ct_tp_dst=21,ipv6,in_port=3,nw_frag=no", "2"},
		{"without a tuple", "in_port=3,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_src=1000,tp_dst=21", "", "", "ct_state=+est,ct_nw_proto=0,ip", "drop(flow-drop)"},
		{"ARP", "in_port=3,arp", "", "", "ct_state=+est,arp,in_port=3", "4"},
	} {
		p := pipelineOf(t, flows...)
		k := keyOfText(t, c.frame)
		k[flowtable.WCT] = 2 << 24 // est
		if c.src != "" {
			track(&k, c.src, c.dst, 1000, 21)
		}
		tr := Translate(p, &k, newEnv())
		if got := openflow.FormatDatapathActions(tr.Actions, nil); got != c.actions {
			t.Errorf("%s: actions %s, want %s", c.name, got, c.actions)
		}
		m := openflow.MatchOf(&k, &tr.Mask)
		if got := openflow.FormatMatch(&m, nil); got != c.mask {
			t.Errorf("%s: mask %s, want %s", c.name, got, c.mask)
		}
	}
}

// resubmit with a tuple has the text of ovs-ofctl, also after encoding and decoding.
func TestResubmitWithTupleText(t *testing.T) {
	for text, want := range map[string]string{
		"resubmit(,3,ct)": "resubmit(,3,ct)", "resubmit(1,3,CT)": "resubmit(1,3,ct)", "resubmit(1,,ct)": "resubmit(1,,ct)",
	} {
		actions, err := openflow.ParseActions(text, nil)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got := openflow.FormatActions(actions, nil); got != want {
			t.Errorf("%s: text %s, want %s", text, got, want)
		}
		wire := openflow.AppendActions(nil, actions, &openflow.Match{}, openflow.Version13, nil)
		back, err := openflow.DecodeActions(wire, openflow.ActionContext{Version: openflow.Version13, Table: openflow.TableAll})
		if err != nil || openflow.FormatActions(back, nil) != want {
			t.Errorf("%s: from the wire %s (%v)", text, openflow.FormatActions(back, nil), err)
		}
	}
}
