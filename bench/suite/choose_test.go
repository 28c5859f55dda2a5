// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
)

func names(list []*experiment) (names []string) {
	for _, e := range list {
		names = append(names, e.name)
	}
	return names
}

func TestChoose(t *testing.T) {
	all := experiments()
	for _, name := range headline {
		if !slices.Contains(names(all), name) {
			t.Errorf("the headline names %q, which is no experiment", name)
		}
	}
	if sorted := slices.Sorted(slices.Values(names(all))); len(slices.Compact(sorted)) != len(all) {
		t.Error("two experiments have one name")
	}
	for only, want := range map[string][]string{
		"all":                       names(all),
		"":                          nil, // below
		"flows-exact/1":             {"flows-exact/1"},
		"uplink-send,vhost-pair/64": {"vhost-pair/64", "uplink-send/64", "uplink-send/1500"},
		"replica/system calls, guest to tunnel,flows-exact/1": {"flows-exact/1", "replica/system calls, guest to tunnel"},
		"hops/first frame, flow unknown":                      {"hops/first frame, flow unknown"},
		"pauses/frames circulating, flows changing":           {"pauses/frames circulating, flows changing"},
		"pauses/frames circulating":                           {"pauses/frames circulating"},
	} {
		got, err := choose(experiments(), only, "")
		if err != nil {
			t.Fatal(err)
		}
		if only == "" && len(got) != len(headline) || only != "" && !slices.Equal(names(got), want) {
			t.Errorf("-scenario %q chooses %q", only, names(got))
		}
	}
	got, err := choose(experiments(), "vhost-pair", "weft,ovs-dpdk")
	if err != nil || !slices.Equal(got[0].peers, []string{weftPeer, ovsPeer}) {
		t.Errorf("-peers: %v, %v", got, err)
	}
	got, err = choose(experiments(), "conntrack-,hops/", "linux,weft-tap")
	for _, e := range got {
		if !slices.Equal(e.peers, []string{linuxPeer}) {
			t.Errorf("-peers linux,weft-tap: %s has %q", e.name, e.peers)
		}
	}
	if err != nil || len(got) != 8 {
		t.Errorf("-peers linux: %q, %v", names(got), err)
	}
	for _, bad := range [][2]string{{"nothing-such", ""}, {"vhost", "nobody"}, {"idle", "linux"}} {
		if _, err := choose(experiments(), bad[0], bad[1]); err == nil || !strings.Contains(err.Error(), "-list") {
			t.Errorf("-scenario %q -peers %q: %v", bad[0], bad[1], err)
		}
	}
}
