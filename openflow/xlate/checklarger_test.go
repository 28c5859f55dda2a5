// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// longerTexts translates a frame, and then the two look-ups that follow check_pkt_larger. It returns
// the texts of the three translations.
func longerTexts(t *testing.T, p *ofproto.Tables, env Env, frame string) string {
	t.Helper()
	k := frameKey(t, frame)
	first := Translate(p, &k, env)
	texts := []string{openflow.FormatDatapathActions(first.Actions, nil)}
	for _, a := range first.Actions {
		if a.Op == flowtable.OpRecirc {
			again := k
			again.SetRecirc(a.U32)
			tr := Translate(p, &again, env)
			texts = append(texts, openflow.FormatDatapathActions(tr.Actions, nil))
		}
	}
	return recircID.ReplaceAllString(strings.Join(texts, " | "), "recirc")
}

// Two translations execute the actions behind check_pkt_larger, with the bit set and clear.
func TestCheckLarger(t *testing.T) {
	const check = "check_pkt_len(size=%s,gt(recirc),le(recirc))"
	p, env := pipelineOf(t,
		"in_port=1,actions=set_field:6->reg1,check_pkt_larger(1500)->reg0[3],resubmit(,1),3",
		"in_port=2,actions=mod_dl_src:00:00:00:00:00:05,check_pkt_larger(64)->vlan_tci[13],write_actions(4),goto_table:2",
		"in_port=3,actions=clone(check_pkt_larger(9)->reg0[0],output:reg0[0..2]),2",
		"in_port=4,actions=resubmit(,3),1,check_pkt_larger(100)->reg0[0]",
		"table=1,reg0=8,reg1=6,actions=2", "table=1,reg0=0,reg1=6,actions=4",
		"table=2,dl_vlan_pcp=1,actions=3", "table=2,priority=1,actions=1",
		"table=3,actions=check_pkt_larger(100)->reg0[0],output:reg0[0..2]"), newRecircEnv()
	for frame, want := range map[string]string{
		"in_port=1": fmt.Sprintf(check, "1500") + " | 2,3 | 4,3",
		"in_port=2,dl_src=00:00:00:00:00:01,dl_vlan=5": "set(eth(src=00:00:00:00:00:05))," + fmt.Sprintf(check, "64") +
			" | set(vlan(vid=5,pcp=1)),3,4 | set(vlan(vid=5,pcp=0)),1,4",
		"in_port=3": fmt.Sprintf(check, "9") + ",2 | 1 | drop(no-port)",
		"in_port=4": fmt.Sprintf(check, "100") + ",1 | 1 | drop(no-port)",
	} {
		if got := longerTexts(t, p, env, frame); got != want {
			t.Errorf("%s:\n got %s\nwant %s", frame, got, want)
		}
	}
}

// If there is no room for a recirculation state, the megaflow has no check_pkt_larger.
func TestCheckLargerWithoutRoom(t *testing.T) {
	p := pipelineOf(t, "actions=1,check_pkt_larger(1500)->reg0[3],2")
	k := frameKey(t, "in_port=3")
	if got := openflow.FormatDatapathActions(Translate(p, &k, newEnv()).Actions, nil); got != "1,drop(loop)" {
		t.Error(got)
	}
}
