// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"testing"

	"weft/control/workers/workertest"
	"weft/flowtable"
	"weft/openflow"
)

// A FIN shortens the timeouts of the flow that it matches, also across a restart of
// control.
func TestFinTimeout(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(2)
	f.Add("idle_timeout=600,tcp,actions=fin_timeout(idle_timeout=300),p2")
	tcp := func(flags uint64) flowtable.Key {
		k := workertest.UDPKey(1, 1, 2, 80)
		k[flowtable.WIP] = 6<<56 | 64<<40 | flags
		return k
	}
	timeouts := func() (idle, hard uint16) {
		flows := f.Rules("")
		if len(flows) != 1 {
			t.Fatalf("%d flows", len(flows))
		}
		return flows[0].IdleTimeout, flows[0].HardTimeout
	}
	const ack, finAck = 0x10, 0x11
	w := f.Worker()
	for range 3 {
		w.Frame(tcp(ack), 100)
	}
	f.Settle()
	if idle, _ := timeouts(); idle != 600 {
		t.Fatalf("idle_timeout=%d before a FIN", idle)
	}
	w.Frame(tcp(finAck), 100)
	f.Settle()
	if idle, hard := timeouts(); idle != 300 || hard != 0 {
		t.Errorf("idle_timeout=%d,hard_timeout=%d after a FIN, want 300 and 0", idle, hard)
	}
	f.Want("tcp", "4/400")
	if n := f.P.Counts().Megaflows; n != 2 {
		t.Errorf("%d megaflows, want one with FIN and one without", n)
	}
	rule := f.P.Tables().Select(&openflow.FlowMod{Command: openflow.Delete, Table: openflow.TableAll})[0]
	if got := f.P.Region().Rules[f.P.Row(rule)].IdleTimeout; got != 300 {
		t.Errorf("the counter region has idle_timeout=%d", got)
	}
	f.Die()
	f.Begin()
	if idle, _ := timeouts(); idle != 300 {
		t.Errorf("idle_timeout=%d after a restart of control, want 300", idle)
	}
}
