// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"fmt"
	"testing"

	"weft/internal/share"
	"weft/openflow"
)

// Learn actions add flows for a port's frames only up to the number of learned flows that the
// port leaves free, of half of the tables. So one port cannot fill the tables. Flows that are
// removed, replaced or written by an operator do not count.
func TestLearnedFlowsOfAPort(t *testing.T) {
	const limit = 40
	p := NewTables(Limits{Rules: limit})
	other := p.NewBridge(1)
	teach := func(p *Tables, port uint32, first, n int) (refused int) {
		t.Helper()
		for i := range n {
			mod := mustMod(t, openflow.Add, fmt.Sprintf("in_port=%d,actions=drop", first+i))
			mod.Learner = port
			_, no := p.ApplyLearned([]openflow.FlowMod{mod}, 1)
			refused += no
		}
		return refused
	}
	expect := func(name string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
	expect("refused flows of port 1", teach(p, 1, 1, 15), 5) // 10 of the 20
	expect("refused flows of port 2", teach(other, 2, 1, 8), 3)
	expect("the same flows again", teach(p, 1, 1, 10), 0)
	for i := range limit - 15 {
		apply(t, p, 1, openflow.Add, fmt.Sprintf("table=1,in_port=%d,actions=drop", i+1))
	}
	apply(t, p, 1, openflow.Delete, "table=0") // the learned ones
	expect("refused flows of port 1 after its own have gone", teach(p, 1, 1, 9), 1)
	var uses []string
	used, most, refused := p.LearnedShares(func(port uint32, u share.Use) { uses = append(uses, fmt.Sprint(port, " ", u.Used, " ", u.Refused)) })
	if used != 13 || most != limit/2 || refused != 9 || len(uses) != 2 {
		t.Errorf("%d of %d flows, %d refused, by port %q", used, most, refused, uses)
	}
}
