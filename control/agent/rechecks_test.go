// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// askingAgent returns an agent in a new session. Its network "n" has the setting Asked and learned
// places.
func askingAgent(t *testing.T, places int) *Agent {
	t.Helper()
	a := New(Config{Log: slog.New(slog.DiscardHandler)}, onePort{})
	n := &wire.NetReset{View: &wire.NetView{Net: &wire.Net{Id: "n", Vni: 7}, Asked: true}}
	a.state.reset(netResetOf(n), a.pending)
	for i := range places {
		a.state.setPlace(a.state.nets["n"], &portPlace{fmt.Sprint("p", i), place{mac: uint64(i + 1), generation: 7}}, a.pending)
	}
	a.pending = newBatch()
	a.begin("")
	takeMessage(t, a, &wire.ToHost{Message: &wire.ToHost_Reset_{Reset_: n}})
	return a
}

func takeMessage(t *testing.T, a *Agent, m *wire.ToHost) {
	t.Helper()
	data, err := proto.Marshal(m)
	if err == nil {
		_, err = a.receive(data, false)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// sentQuestions returns the questions that the agent has sent, without its Hello.
func sentQuestions(a *Agent) (list []*wire.Question) {
	for len(a.outbox) > 0 {
		if q := (<-a.outbox).GetQuestion(); q != nil {
			list = append(list, q)
		}
	}
	return list
}

func answerAll(t *testing.T, a *Agent, absence wire.Absence) (answered int) {
	t.Helper()
	for list := sentQuestions(a); len(list) > 0; list = sentQuestions(a) {
		if len(list) > recheckWindow {
			t.Fatalf("%d questions at once", len(list))
		}
		for _, q := range list {
			answered++
			takeMessage(t, a, &wire.ToHost{Message: &wire.ToHost_Answer{Answer: &wire.Answer{Number: q.GetNumber(), Absence: absence}}})
		}
	}
	return answered
}

// A host may know more places than the queue to the hub can hold questions. It asks about all of
// them, and the session goes on.
func TestManyPlacesAreRechecked(t *testing.T) {
	const places = outbox + 1000
	a := askingAgent(t, places)
	if a.outbox == nil {
		t.Fatal("the session ends")
	}
	if n := answerAll(t, a, wire.Absence_ABSENCE_NOBODY); n != places {
		t.Errorf("%d questions for %d places", n, places)
	}
	if s := a.Stats(); s.Places != 0 || s.Stale != places {
		t.Errorf("%d places stay, %d are counted as stale", s.Places, s.Stale)
	}
}

// The agent removes a place only if the hub answers that nobody has the address. If the hub could not
// decide this, the agent asks again later.
func TestUndecidedPlacesStay(t *testing.T) {
	for absence, repeated := range map[wire.Absence]int{
		wire.Absence_ABSENCE_UNSPECIFIED: 0, wire.Absence_ABSENCE_REFUSED: 3, wire.Absence_ABSENCE_LATE: 3,
	} {
		a := askingAgent(t, 3)
		answerAll(t, a, absence)
		empty := &wire.ToHost{Message: &wire.ToHost_Batch{Batch: &wire.Batch{}}}
		takeMessage(t, a, empty)
		if n := len(sentQuestions(a)); n != 0 {
			t.Errorf("%s: %d questions at once", absence, n)
		}
		a.rechecks.repeatAt = time.Now()
		takeMessage(t, a, empty)
		if n := len(sentQuestions(a)); n != repeated {
			t.Errorf("%s: %d questions later, expected %d", absence, n, repeated)
		}
		if s := a.Stats(); s.Places != 3 || s.Stale != 0 {
			t.Errorf("%s: %d places stay, %d are counted as stale", absence, s.Places, s.Stale)
		}
	}
}

// The answer of a hub that is behind does not replace a newer place of the address.
func TestOlderPortOfAddressIsIgnored(t *testing.T) {
	a := askingAgent(t, 1)
	q := sentQuestions(a)[0]
	old := &wire.Place{Port: "old", Net: "n", Mac: q.GetMac(), Generation: 6}
	takeMessage(t, a, &wire.ToHost{Message: &wire.ToHost_Answer{Answer: &wire.Answer{Number: q.GetNumber(), Place: old}}})
	if _, known := a.state.nets["n"].places["p0"]; !known || a.Stats().Places != 1 || len(a.rechecks.undecided) != 1 {
		t.Errorf("places %v, %d to be asked for again", a.state.nets["n"].places, len(a.rechecks.undecided))
	}
}
