// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"weft/openflow"
	"weft/openflow/ofproto"
	"weft/packet"
)

// shares runs 4096 connections through actions, and counts the connections of each result.
func shares(t *testing.T, actions string) map[string]int {
	t.Helper()
	p := pipelineOf(t, "actions="+actions)
	r := rand.New(rand.NewPCG(1, 2))
	counts := map[string]int{}
	for range 4096 {
		counts[actionsOf(p, newEnv(), t, fmt.Sprintf("in_port=7,tcp,dl_src=02:00:00:00:%02x:%02x,nw_src=10.0.%d.%d,nw_dst=10.1.0.1,tp_src=%d,tp_dst=80",
			r.IntN(256), r.IntN(256), r.IntN(256), r.IntN(256), 1024+r.IntN(60000)))]++
	}
	return counts
}

// Each algorithm spreads connections over all links evenly, with each set of fields.
func TestMultipath(t *testing.T) {
	for _, fields := range []string{"eth_src", "symmetric_l4", "symmetric_l3l4", "symmetric_l3l4+udp", "nw_src", "symmetric_l3"} {
		for _, algorithm := range []string{"modulo_n", "hash_threshold", "hrw", "iter_hash"} {
			// The number of the link becomes the output port. Links are 0 to 3, of which the ports 1
			// to 3 exist.
			counts := shares(t, fmt.Sprintf("multipath(%s,7,%s,4,0,reg0[0..15]),output:reg0[0..15]", fields, algorithm))
			if len(counts) != 4 {
				t.Errorf("%s %s: results %v", fields, algorithm, counts)
			}
			for result, n := range counts {
				if n < 1024-200 || n > 1024+200 {
					t.Errorf("%s %s: result %s has %d of 4096 connections", fields, algorithm, result, n)
				}
			}
		}
	}
}

// If only the address is hashed, all connections of one address have the same link. Both directions
// of a connection have the same link if the fields are symmetric. Another basis gives other links.
func TestMultipathFields(t *testing.T) {
	link := func(spec, frame string) string {
		p := pipelineOf(t, "actions=multipath("+spec+",modulo_n,64,0,reg0[0..5]),load:1->reg0[7],output:reg0[0..15]")
		env := newEnv()
		for n := range uint32(64) {
			env.ports = append(env.ports, PortInfo{No: 128 + n})
		}
		return actionsOf(p, env, t, frame)
	}
	const there, back = "in_port=7,tcp,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,dl_vlan=5,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_src=1111,tp_dst=80",
		"in_port=7,tcp,dl_src=02:00:00:00:00:02,dl_dst=02:00:00:00:00:01,dl_vlan=5,nw_src=10.0.0.2,nw_dst=10.0.0.1,tp_src=80,tp_dst=1111"
	const other = "in_port=7,tcp,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,dl_vlan=5,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_src=1112,tp_dst=80"
	for _, fields := range []string{"symmetric_l4", "symmetric_l3l4", "symmetric_l3l4+udp", "symmetric_l3"} {
		if a, b := link(fields+",3", there), link(fields+",3", back); a != b {
			t.Errorf("%s: the directions of a connection take %s and %s", fields, a, b)
		}
		if a, b := link(fields+",3", there), link(fields+",4", there); a == b {
			t.Errorf("%s: basis 3 and 4 both give %s", fields, a)
		}
	}
	for fields, differ := range map[string]bool{"symmetric_l4": true, "symmetric_l3l4": true, "symmetric_l3": false, "nw_src": false, "nw_dst": false, "eth_src": false} {
		if a, b := link(fields+",3", there), link(fields+",3", other); (a != b) != differ {
			t.Errorf("%s: connections of one pair of hosts take %s and %s", fields, a, b)
		}
	}
	udp := strings.NewReplacer("tcp", "udp").Replace
	for fields, differ := range map[string]bool{"symmetric_l4": false, "symmetric_l3l4": false, "symmetric_l3l4+udp": true} {
		if a, b := link(fields+",3", udp(there)), link(fields+",3", udp(other)); (a != b) != differ {
			t.Errorf("%s: connections of UDP take %s and %s", fields, a, b)
		}
	}
}

// If a link comes or goes, hrw moves only connections of this link. iter_hash does the same while the
// number of links stays below the modulus.
func TestLinksMoveFewConnections(t *testing.T) {
	for _, algorithm := range []string{"hrw", "iter_hash"} {
		spec := func(links int) *openflow.LinkSpec {
			a, err := openflow.ParseActions(fmt.Sprintf("multipath(nw_src,0,%s,%d,16,reg0[])", algorithm, links), nil)
			if err != nil {
				t.Fatal(err)
			}
			return a[0].Links
		}
		for links := 9; links < 16; links++ {
			few, many := spec(links), spec(links+1)
			for i := range uint64(2000) {
				var f openflow.Flow
				openflow.WholeField(openflow.FEthType).Put(&f, openflow.Value64(packet.EtherTypeIPv4), openflow.Ones(16))
				openflow.WholeField(openflow.FIPSrc).Put(&f, openflow.Value64(i), openflow.Ones(32))
				if a, b := linkOf(few, &f), linkOf(many, &f); a != b && b != uint16(links) {
					t.Fatalf("%s: with link %d, a connection moves from %d to %d", algorithm, links, a, b)
				}
			}
		}
	}
}

// The megaflow of a multipath matches the hashed fields and no others.
func TestMultipathMask(t *testing.T) {
	for fields, want := range map[string]string{
		"eth_src":      "dl_src",
		"nw_src":       "nw_src",
		"symmetric_l3": "nw_src,nw_dst",
	} {
		p := pipelineOf(t, "actions=multipath("+fields+",0,modulo_n,4,0,reg0[])")
		k := keyOfText(t, "in_port=1,tcp,dl_src=02:00:00:00:00:01,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_src=5,tp_dst=6")
		tr := Translate(p, &k, newEnv())
		for _, id := range []openflow.FieldID{openflow.FEthSrc, openflow.FEthDst, openflow.FIPSrc, openflow.FIPDst, openflow.FTCPSrc, openflow.FIPProto} {
			word, mask, _ := openflow.WholeField(id).Mask()
			if matched, want := tr.Mask[word]&mask == mask, strings.Contains(want, id.Alias()); matched != want {
				t.Errorf("%s: matches %s: %v, want %v", fields, id, matched, want)
			}
		}
	}
}

// A bundle sends to live members only. active_backup sends to the first live one. With hrw a
// connection keeps its member while the member lives.
func TestBundle(t *testing.T) {
	env := newEnv()
	env.ports = append(env.ports, PortInfo{No: 8, Down: true})
	for text, want := range map[string]string{
		"bundle(eth_src,0,active_backup,ofport,members:2,1)":                                       "2",
		"bundle(eth_src,0,active_backup,ofport,members:8,99,4,1)":                                  "4",
		"bundle(eth_src,0,active_backup,ofport,members:8,99)":                                      "drop(flow-drop)",
		"bundle(eth_src,0,hrw,ofport,members:8,99)":                                                "drop(flow-drop)",
		"bundle(eth_src,0,hrw,ofport,members:)":                                                    "drop(flow-drop)",
		"bundle(eth_src,0,hrw,ofport,members:8,99,4)":                                              "4",
		"bundle_load(eth_src,0,active_backup,ofport,reg0[16..31],members:8,4),output:reg0[16..31]": "4",
		"load:1->reg0[],bundle_load(eth_src,0,hrw,ofport,reg0[0..15],members:8),output:reg0[]":     "drop(flow-drop)",
	} {
		if got := actionsOf(pipelineOf(t, "actions="+text), env, t, "in_port=7,tcp"); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	p := pipelineOf(t, "actions=bundle(nw_src,0,hrw,ofport,members:1,2,4)")
	before := map[string]string{}
	for i := range 200 {
		frame := fmt.Sprintf("in_port=7,tcp,nw_src=10.0.0.%d", i)
		before[frame] = actionsOf(p, env, t, frame)
	}
	env.ports[1].Down = true // port 2
	moved := 0
	for frame, was := range before {
		now := actionsOf(p, env, t, frame)
		if was == "2" {
			moved++
		}
		if now == "2" || was != "2" && now != was {
			t.Errorf("%s: goes to %s, then to %s without port 2", frame, was, now)
		}
	}
	if moved < 30 || moved > 110 {
		t.Errorf("port 2 had %d of 200 connections", moved)
	}
}

// A pipeline watches ports while a flow or a group has a bundle.
func TestBundlesWatchPorts(t *testing.T) {
	p := ofproto.NewTables(ofproto.Limits{})
	expect := func(state string, want bool) {
		t.Helper()
		if p.WatchesPorts() != want {
			t.Errorf("%s: watches ports: %v", state, !want)
		}
	}
	apply := func(mods ...openflow.FlowMod) {
		t.Helper()
		if _, err := p.Apply(mods, 1); err != nil {
			t.Fatal(err)
		}
	}
	const bundle = "bundle(eth_src,0,hrw,ofport,members:1)"
	expect("empty", false)
	apply(mustMod(t, openflow.Add, "in_port=1,actions=clone("+bundle+")"), mustMod(t, openflow.Add, "in_port=2,actions="+bundle))
	expect("two flows", true)
	apply(mustMod(t, openflow.Delete, "in_port=2"))
	expect("one flow", true)
	apply(mustMod(t, openflow.Modify, "in_port=1,actions=2"))
	expect("changed flow", false)
	if _, err := p.Apply([]openflow.FlowMod{mustMod(t, openflow.Add, "actions="+bundle), mustMod(t, openflow.Add, "actions=group:9")}, 1); err == nil {
		t.Fatal("a flow with an unknown group is accepted")
	}
	expect("undone change", false)
}
