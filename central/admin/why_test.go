// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"fmt"
	"slices"
	"testing"
)

// The reply quotes the error texts (trouble) of the hosts with ports in the network, unless there is only
// one such host.
func TestWhyNamesTroubleOfHosts(t *testing.T) {
	w := &investigation{hosts: map[string]hostState{"h1": {trouble: "no uplink"}, "h2": {central: "a"}, "other": {trouble: "far away"}}}
	w.explainTrouble(map[string]string{"h1": "alpha"})
	if list := w.reply.Missing; len(list) != 0 {
		t.Errorf("a host alone in its network: %q", list)
	}
	w.explainTrouble(map[string]string{"h1": "alpha", "h2": "beta"})
	if list := w.reply.Missing; !slices.Equal(list, []string{"host alpha: no uplink"}) {
		t.Errorf("missing: %q", list)
	}
	many := &investigation{hosts: map[string]hostState{}}
	need := map[string]string{}
	for n := range troubledMost + 3 {
		id := fmt.Sprint("h", n)
		need[id], many.hosts[id] = id, hostState{trouble: "no uplink"}
	}
	many.explainTrouble(need)
	if list := many.reply.Missing; len(list) != troubledMost+1 || list[troubledMost] != "3 more hosts have trouble: weft host list" {
		t.Errorf("missing: %q", list)
	}
}
