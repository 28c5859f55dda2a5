// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// notingEnv is a fakeEnv that stores notes and frozen states.
type notingEnv struct {
	*fakeEnv
	*NoteTable
	*RecircTable
}

// pauses translates a frame, and resumes it until it is no longer paused. It returns the
// actions of each translation, and the notes in between.
func pauses(t *testing.T, p *ofproto.Tables, frame string) (steps []string, notes []ControllerNote) {
	t.Helper()
	env := notingEnv{newEnv(), NewNoteTable(), NewRecircTable()}
	env.ports[3].Queues = []Queue{{ID: 5, TokenBucket: TokenBucket{Slot: 5001}}}
	k := keyOfText(t, frame)
	tr := Translate(p, &k, env)
	for range 5 {
		steps = append(steps, openflow.FormatDatapathActions(tr.Actions, nil))
		at := slices.IndexFunc(tr.Actions, func(a flowtable.Action) bool { return a.Op == flowtable.OpController })
		if at < 0 {
			return steps, notes
		}
		note, ok := env.Note(uint32(tr.Actions[at].U64))
		if !ok {
			t.Fatal("a frame to the controller has no note")
		}
		notes = append(notes, note)
		if note.Continuation == "" {
			return steps, notes
		}
		m := note.Metadata(k.InPort(), nil)
		flow := m.Value
		for w := range flowtable.WTunID {
			flow[w] |= k[w]
		}
		var err error
		if tr, err = Resume(p, note.Continuation, &flow, 3, env); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the frame pauses without end")
	return nil, nil
}

// NXT_RESUME executes everything that controller(pause) has cut off: the rest of its list, the rests
// of the lists around it, and the action set. Registers and stack are as before.
func TestPause(t *testing.T) {
	const controller = "controller(max_len=65535)"
	for _, tt := range []struct {
		name, flows string
		want        []string
	}{
		{"list", "actions=1,controller(pause),2", []string{"1," + controller, "2"}},
		{"queue", "actions=set_queue:5,controller(pause),4", []string{controller, "queue(5001),4"}},
		{"nothing left", "actions=1,controller(pause)", []string{"1," + controller, "drop(flow-drop)"}},
		{"lists around", "actions=resubmit(,1),1\ntable=1 actions=resubmit(,2),2\ntable=2 actions=controller(pause),4,goto_table:3\ntable=3 actions=3",
			[]string{controller, "4,2,1"}},
		{"goto_table behind", "actions=controller(pause),goto_table:3\ntable=3 actions=2", []string{controller, "2"}},
		{"current table", "table=0 actions=resubmit(,3)\ntable=3,priority=9,reg0=0 actions=set_field:1->reg0,controller(pause),resubmit(1)\ntable=3,in_port=1,priority=10 actions=2",
			[]string{controller, "2"}},
		{"registers and stack", "actions=load:2->reg0,push:reg0,load:4->reg0,controller(pause),output:reg0[0..15],pop:reg0,output:reg0[0..15]",
			[]string{controller, "4,2"}},
		{"action set", "actions=controller(pause),write_actions(2),goto_table:1\ntable=1 actions=4", []string{controller, "4,2"}},
		{"earlier action set", "actions=write_actions(2),goto_table:1\ntable=1 actions=controller(pause),4", []string{controller, "4,2"}},
		{"twice", "actions=controller(pause),1,controller(pause),2", []string{controller, "1," + controller, "2"}},
		{"clone", "actions=clone(controller(pause),2),1", []string{controller + ",1", "2"}},
		{"bucket", "actions=group:1,4\ntable=1 actions=controller(pause),1\ntable=2 actions=2", []string{controller + ",2,4", "1"}},
		{"exit behind", "actions=resubmit(,1),1\ntable=1 actions=controller(pause),2,exit,4", []string{controller, "2"}},
		{"changed frame", "actions=mod_dl_src:02:00:00:00:00:09,controller(pause),2", []string{"set(eth(src=02:00:00:00:00:09))," + controller, "2"}},
	} {
		p := ofproto.NewTables(ofproto.Limits{})
		groups(t, p, openflow.GroupAdd, "group_id=1,type=all,bucket=resubmit(,1),bucket=resubmit(,2)")
		for _, flow := range strings.Split(tt.flows, "\n") {
			if _, err := p.Apply([]openflow.FlowMod{mustMod(t, openflow.Add, flow)}, 1); err != nil {
				t.Fatal(err)
			}
		}
		if steps, _ := pauses(t, p, "in_port=3"); !slices.Equal(steps, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, steps, tt.want)
		}
	}
}

// The message of a paused frame carries the whole frame and names the flow that has paused it. It
// does so even if NXT_RESUME has executed the action.
func TestPauseNamesItsFlow(t *testing.T) {
	p := pipelineOf(t, "cookie=1,actions=resubmit(,1),controller(userdata=02)", "table=1,cookie=9,actions=controller(pause,userdata=01,id=7,max_len=60),2")
	steps, notes := pauses(t, p, "in_port=3")
	if len(notes) != 2 || notes[0].Table != 1 || notes[0].Cookie != 9 || notes[0].Userdata != "\x01" || notes[0].ID != 7 ||
		notes[1].Table != 0 || notes[1].Cookie != 1 || notes[1].Userdata != "\x02" || notes[1].ReasonCode() != 1 {
		t.Errorf("notes %+v", notes)
	}
	if steps[0] != "controller(max_len=65535)" {
		t.Errorf("paused by %s", steps[0])
	}
}

// A continuation that does not fit the pipeline is refused as stale. A continuation with a loop ends
// at a limit.
func TestResumeRefusals(t *testing.T) {
	p := pipelineOf(t, "actions=drop")
	var flow openflow.Flow
	for _, text := range []string{"", "{", `{"bridge":1}`, `{"stack":"AQ=="}`, `{"rest":[{"actions":"fly"}]}`, `{"rest":[{"actions":"group:1"}]}`, `{"action_set":"fly"}`} {
		_, err := Resume(p, text, &flow, 1, newEnv())
		var coded *openflow.CodedError
		if !errors.As(err, &coded) || coded.Code != openflow.ErrResumeStale || strings.Contains(err.Error(), "nil") {
			t.Errorf("%s: %v, want the reason of a stale continuation", text, err)
		}
	}
	p = pipelineOf(t, "actions=resubmit(,0)")
	if tr, err := Resume(p, `{"rest":[{"actions":"resubmit(,0)"}]}`, &flow, 1, newEnv()); err != nil || openflow.FormatDatapathActions(tr.Actions, nil) != "drop(loop)" {
		t.Errorf("a loop: %s, %v", openflow.FormatDatapathActions(tr.Actions, nil), err)
	}
}

// A continuation beyond maxContinuation ends the translation.
func TestLargeContinuation(t *testing.T) {
	for n, want := range map[int]string{300: "controller(max_len=65535)", 600: "drop(loop)"} {
		p := pipelineOf(t, "actions=controller(pause)"+strings.Repeat(",output:1", n))
		env := notingEnv{newEnv(), NewNoteTable(), NewRecircTable()}
		k := keyOfText(t, "in_port=3")
		tr := Translate(p, &k, env)
		if got := openflow.FormatDatapathActions(tr.Actions, nil); got != want {
			t.Errorf("%d actions behind the pause: %s, want %s", n, got, want)
		}
	}
}

// A controller action has its own meter, or the meter of all frames to controllers.
func TestMeterOfControllerAction(t *testing.T) {
	p := ofproto.NewTables(ofproto.Limits{})
	meter := func(text string) {
		t.Helper()
		mod, err := openflow.ParseMeterMod(text, openflow.MeterAdd)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := p.ApplyMeters([]openflow.MeterMod{mod}, 1); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want ...string) {
		t.Helper()
		for i, port := range []string{"1", "2"} {
			if got := actionsOf(p, newEnv(), t, "in_port="+port); got != want[i] {
				t.Errorf("port %s: %s, want %s", port, got, want[i])
			}
		}
	}
	meter("meter=5,pktps,bands=type=drop,rate=9")
	apply(t, p, 1, openflow.Add, "in_port=1,actions=controller(meter_id=5)", "in_port=2,actions=controller")
	expect("meter(0),controller(max_len=65535)", "controller(max_len=65535)")
	meter("meter=controller,pktps,bands=type=drop,rate=9")
	expect("meter(0),controller(max_len=65535)", "meter(1),controller(max_len=65535)")
	if _, err := p.Apply([]openflow.FlowMod{mustMod(t, openflow.Add, "actions=controller(meter_id=6)")}, 1); err == nil {
		t.Error("an unknown meter is accepted")
	}
	mod, err := openflow.ParseMeterMod("meter=5", openflow.MeterDelete)
	if err != nil {
		t.Fatal(err)
	}
	if c, _, err := p.ApplyMeters([]openflow.MeterMod{mod}, 1); err != nil || len(c.Removed) != 1 {
		t.Errorf("with its meter, %d flows go: %v", len(c.Removed), err)
	}
}
