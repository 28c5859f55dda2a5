// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"testing"

	"weft/openflow"
	"weft/openflow/ofproto"
)

// After the first FIN or RST, a flow has at most the timeouts of its action
// fin_timeout. Other flows keep their timeouts (ovs-actions(7), "The fin_timeout
// action").
func TestFinTimeout(t *testing.T) {
	const second = 1_000_000_000
	p := pipelineOf(t, "hard_timeout=100,actions=resubmit(,1)", "table=1,idle_timeout=60,tcp,actions=fin_timeout(idle_timeout=10,hard_timeout=20),2")
	translate := func(frame string) Translation {
		k := keyOfText(t, frame)
		return Translate(p, &k, newEnv())
	}
	for _, frame := range []string{"in_port=1,tcp,tcp_flags=syn|ack", "in_port=1,udp", "in_port=1,arp"} {
		if tr := translate(frame); len(tr.Finished) != 0 {
			t.Errorf("%s: unexpected Finished %+v", frame, tr.Finished)
		}
	}
	var rule *ofproto.Rule
	for _, frame := range []string{"in_port=1,tcp,tcp_flags=fin|ack", "in_port=1,tcp,tcp_flags=rst"} {
		tr := translate(frame)
		if len(tr.Finished) != 1 || tr.Finished[0].Rule.Table != 1 {
			t.Fatalf("%s: unexpected Finished %+v", frame, tr.Finished)
		}
		if rule = tr.Finished[0].Rule; tr.Finished[0].ReduceTimeouts() != (frame[len(frame)-1] == 'k') {
			t.Errorf("%s: unexpected timeouts %d and %d", frame, rule.IdleTimeout, rule.HardTimeout)
		}
	}
	if rule.IdleTimeout != 10 || rule.HardTimeout != 20 {
		t.Errorf("left idle_timeout=%d and hard_timeout=%d, want 10 and 20", rule.IdleTimeout, rule.HardTimeout)
	}
	rule.Credit(1, 60, 9*second)
	if gone := p.Expire(18 * second); len(gone) != 0 {
		t.Errorf("%d flows expired early", len(gone))
	}
	if gone := p.Expire(20 * second); len(gone) != 1 || gone[0].Why != ofproto.WhyHard || gone[0] != rule {
		t.Errorf("unexpected expired flows %v", gone)
	}
}

// A learned flow has its learn action's fin_idle_timeout and fin_hard_timeout.
func TestLearnedFinTimeout(t *testing.T) {
	p := pipelineOf(t, "actions=learn(table=1,idle_timeout=60,fin_idle_timeout=5,fin_hard_timeout=7,eth_dst=eth_src,output:in_port)")
	tr := learnAll(t, p, "in_port=1,dl_src=00:00:00:00:00:01", 1)
	if !p.Learned(&tr.Learned[0]) {
		t.Fatal("no flow was learned")
	}
	if got, want := openflow.FormatActions(tr.Learned[0].Actions, nil), "fin_timeout(idle_timeout=5,hard_timeout=7),output:1"; got != want {
		t.Errorf("learned %s, want %s", got, want)
	}
}
