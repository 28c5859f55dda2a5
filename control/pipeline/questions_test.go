// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"testing"

	"weft/control/limits"
	"weft/openflow/fdb"
)

// answeringAgent is an answerer without ports, so it sends no question to weft-central.
type answeringAgent struct {
	known            map[fdb.Question]bool
	present, missing int // number of resumed frames
}

func (a *answeringAgent) Knows(q fdb.Question) bool      { return a.known[q] }
func (a *answeringAgent) PortName(uint32) (string, bool) { return "", false }
func (a *answeringAgent) Ask(string, fdb.Question) bool  { return true }
func (a *answeringAgent) Resume(_ *questionFrame, absent bool) {
	if absent {
		a.missing++
	} else {
		a.present++
	}
}

func question(mac uint64) fdb.Question {
	return fdb.Question{Segment: fdb.SegmentOf(1), MAC: mac}
}

func questionRows(qs *questions) map[limits.Holder]limits.Row {
	all := map[limits.Holder]limits.Row{}
	qs.LimitRows(func(r limits.Row) { all[r.Holder] = r })
	return all
}

// A port at its limit cannot hold another frame, but another port can. A refused frame
// counts as dropped only if it needs an answer.
func TestLimitOfAPort(t *testing.T) {
	qs := makeQuestions(&answeringAgent{})
	for i := range maxPortQuestions {
		if !qs.Hold(question(uint64(i)), &questionFrame{Port: 1}) {
			t.Fatalf("frame %d is refused", i)
		}
	}
	if qs.Hold(question(1), &questionFrame{Port: 1}) || qs.Hold(question(1), &questionFrame{Port: 1, Must: true}) {
		t.Error("a port holds frames beyond its limit")
	}
	if !qs.Hold(question(1), &questionFrame{Port: 2}) {
		t.Error("another port's frame is refused")
	}
	if r := questionRows(qs)[limits.Port(1)]; r.Used != maxPortQuestions || r.Refused != 1 {
		t.Errorf("%+v", r)
	}
	if r := questionRows(qs)[limits.All()]; r.Used != maxPortQuestions+1 || r.Refused != 1 {
		t.Errorf("%+v", r)
	}
}

// However many frames wait for one address, frames to other addresses can still wait.
func TestOneAddressLeavesPlacesForOthers(t *testing.T) {
	qs := makeQuestions(&answeringAgent{})
	held := 0
	for range 2 * maxPortQuestions {
		if qs.Hold(question(1), &questionFrame{Port: 1, Must: true}) {
			held++
		}
	}
	if held != maxPortQuestions-newQuestions {
		t.Errorf("%d frames to one address wait, expected %d", held, maxPortQuestions-newQuestions)
	}
	for i := range newQuestions {
		if !qs.Hold(question(uint64(i+2)), &questionFrame{Port: 1}) {
			t.Errorf("the first frame to address %d is refused", i+2)
		}
	}
	if qs.Hold(question(99), &questionFrame{Port: 1}) {
		t.Error("a port holds frames beyond its limit")
	}
}

// An answer resumes exactly the frames that wait for it. Each question is asked once.
func TestAnswersResumeTheirFrames(t *testing.T) {
	a := &answeringAgent{known: map[fdb.Question]bool{}}
	qs := makeQuestions(a)
	for _, mac := range []uint64{1, 1, 2, 3} {
		qs.Hold(question(mac), &questionFrame{Port: 1})
	}
	a.known[question(1)] = true
	qs.Answer([]fdb.Question{question(2)})
	if a.present != 2 || a.missing != 1 {
		t.Errorf("%d frames to known addresses resumed, %d to absent ones; want 2 and 1", a.present, a.missing)
	}
	if list, ports := qs.next(); len(list) != 1 || list[0] != question(3) || ports[0] != 1 {
		t.Errorf("left to ask: %v for ports %v", list, ports)
	}
	if list, _ := qs.next(); len(list) != 0 {
		t.Errorf("asked again: %v", list)
	}
}

// If a question cannot be asked, its frames are treated like frames to unknown
// addresses.
func TestUnaskedQuestions(t *testing.T) {
	a := &answeringAgent{}
	qs := makeQuestions(a)
	qs.Hold(question(1), &questionFrame{Port: 1})
	qs.askNext()
	if a.missing != 1 || !qs.none() {
		t.Errorf("%d frames resumed, none waits: %v", a.missing, qs.none())
	}
}
