// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"testing"

	"weft/openflow"
)

func TestTruncatedOutput(t *testing.T) {
	env := newEnv()
	env.ports = append(env.ports, PortInfo{No: 8, Name: "patch", Kind: PortPatch, Peer: 9}, PortInfo{No: 9, Name: "peer", Kind: PortPatch, Peer: 8})
	for actions, want := range map[string]string{
		"output(port=2,max_len=100),output(port=2,max_len=9999),2":        "trunc(100),2,trunc(9999),2,2",
		"output(port=1,max_len=100),output(port=in_port,max_len=60)":      "trunc(60),1",
		"output(port=5,max_len=100),5":                                    "trunc(100),tunnel(template=199659349,vni=55),tunnel(template=199659349,vni=55)",
		"clone(mod_dl_src:00:00:00:00:00:05,output(port=2,max_len=64)),3": "set(eth(src=00:00:00:00:00:05)),trunc(64),2,set(eth(src=00:00:00:00:00:01)),3",
		"output(port=8,max_len=100)":                                      "drop(no-port)",
		"output(port=99,max_len=100)":                                     "drop(no-port)",
	} {
		p := pipelineOf(t, "actions="+actions)
		k := frameKey(t, "in_port=1,dl_src=00:00:00:00:00:01,ip")
		if got := openflow.FormatDatapathActions(Translate(p, &k, env).Actions, nil); got != want {
			t.Errorf("%s: %s, want %s", actions, got, want)
		}
	}
}
