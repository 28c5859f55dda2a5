// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"testing"

	"weft/openflow"
)

// An output goes through the queue that set_queue or enqueue has chosen. If the port does not
// have this queue, the output goes through queue 0.
func TestQueues(t *testing.T) {
	queue := func(id, slot uint32) Queue {
		return Queue{ID: id, TokenBucket: TokenBucket{Rate: 1, Depth: 1, Slot: slot}}
	}
	env := newRecircEnv()
	env.ports[1].Queues = []Queue{queue(0, 5000), queue(3, 5001)}
	env.ports[4].Queues = []Queue{queue(3, 5002)}
	for actions, want := range map[string]string{
		"2,4":                                   "queue(5000),2,4",
		"set_queue:3,2,4,pop_queue,2":           "queue(5001),2,4,queue(5000),2",
		"set_queue:9,2":                         "queue(5000),2",
		"enqueue:2:3,2":                         "queue(5001),2,queue(5000),2",
		"set_queue:3,enqueue:2:0,2":             "queue(5000),2,queue(5001),2",
		"clone(set_queue:3,2),2":                "queue(5001),2,queue(5000),2",
		"group:1,2":                             "queue(5001),2,queue(5000),2",
		"5,enqueue:5:3":                         "tunnel(template=199659349,vni=55),queue(5002),tunnel(template=199659349,vni=55)",
		"enqueue:1:3,enqueue:in_port:3":         "1",
		"write_actions(2,set_queue:3)":          "queue(5001),2",
		"set_queue:3,output(port=2,max_len=60)": "queue(5001),trunc(60),2",
	} {
		p := pipelineOf(t)
		mod, err := openflow.ParseGroupMod("group_id=1,type=all,bucket=set_queue:3,2", openflow.GroupAdd, nil)
		if err == nil {
			_, err = p.ApplyGroups([]openflow.GroupMod{mod}, 0)
		}
		list, parseErr := openflow.ParseActions(actions, nil)
		if parseErr == nil {
			_, parseErr = p.Apply([]openflow.FlowMod{{Command: openflow.Add, Actions: list}}, 0)
		}
		if err != nil || parseErr != nil {
			t.Fatal(err, parseErr)
		}
		k := frameKey(t, "in_port=1,ip")
		if got := openflow.FormatDatapathActions(Translate(p, &k, env).Actions, nil); got != want {
			t.Errorf("%s: %s, want %s", actions, got, want)
		}
	}
}

// A second look-up keeps the queue, and does not police the frame again.
func TestQueueBehindCT(t *testing.T) {
	env := newRecircEnv()
	env.ports[1].Queues = []Queue{{ID: 3, TokenBucket: TokenBucket{Slot: 5001}}}
	env.ports[0].Policing = []TokenBucket{{Slot: 5003}, {Slot: 5004}}
	p := pipelineOf(t, "ip,actions=set_queue:3,ct(table=1)", "arp,actions=drop", "table=1,actions=2")
	k := frameKey(t, "in_port=1,ip")
	first := Translate(p, &k, env)
	if got := recircID.ReplaceAllString(openflow.FormatDatapathActions(first.Actions, nil), "recirc"); got != "meter(5003),meter(5004),ct(),recirc" {
		t.Error(got)
	}
	again := k
	again.SetRecirc(first.Actions[len(first.Actions)-1].U32)
	if got := openflow.FormatDatapathActions(Translate(p, &again, env).Actions, nil); got != "queue(5001),2" {
		t.Error(got)
	}
	for _, frame := range []string{"in_port=1,ip", "in_port=2,ip"} {
		key := frameKey(t, frame)
		if tr := Translate(p, &key, env); tr.Mask.InPort() != 0xffffffff {
			t.Errorf("the megaflow of %s matches other ports", frame)
		}
	}
}
