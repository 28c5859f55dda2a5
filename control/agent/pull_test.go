// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"time"

	"weft/central/wire"
)

// pullingAgent returns an agent with a network "n", whose addresses the hub pushes. Its
// only MAC address is 0x020000000001.
func pullingAgent() *Agent {
	a := New(Config{}, nil)
	a.outbox = make(chan *wire.FromHost, outbox)
	a.state.reset(netResetOf(&wire.NetReset{View: &wire.NetView{Net: &wire.Net{Id: "n", Vni: 7}}, Places: somePlaces()}), a.pending)
	a.pending = newBatch()
	return a
}

func sentPulls(a *Agent) (numbers []uint64) {
	for len(a.outbox) > 0 {
		numbers = append(numbers, (<-a.outbox).GetPull().GetNumber())
	}
	return numbers
}

// All questions that arrive during a Pull share the next Pull. The answer to a Pull settles which of
// these addresses nobody has.
func TestQuestionsShareAPull(t *testing.T) {
	a := pullingAgent()
	for mac := uint64(10); mac < 20; mac++ {
		for range 2 {
			if !a.ask("port", question{net: "n", mac: mac}) {
				t.Fatalf("no answer to come for %d", mac)
			}
		}
	}
	first := sentPulls(a)
	if len(first) != 1 {
		t.Fatalf("%d pulls, expected 1", len(first))
	}
	a.answer(&wire.Answer{Number: first[0]}, a.pending)
	second := sentPulls(a)
	if len(second) != 1 || len(a.pending.unknown) != 1 || a.pending.unknown[0].MAC != 10 {
		t.Fatalf("pulls %v, unknown %v: expected one of each", second, a.pending.unknown)
	}
	a.answer(&wire.Answer{Number: second[0]}, a.pending)
	if len(sentPulls(a)) != 0 || len(a.pending.unknown) != 10 {
		t.Errorf("unknown %v, expected 10", a.pending.unknown)
	}
	if a.ask("port", question{net: "n", mac: 12}) {
		t.Error("asked again for an address that nobody has")
	}
}

// An address that arrived during the Pull is known afterwards.
func TestPullBringsTheAddress(t *testing.T) {
	a := pullingAgent()
	a.ask("port", question{net: "n", mac: 10})
	a.state.update(&netUpdate{net: "n", places: []portPlace{{"p9", place{mac: 10, generation: 9}}}}, a.pending)
	a.answer(&wire.Answer{Number: sentPulls(a)[0]}, a.pending)
	if len(a.pending.unknown) != 0 {
		t.Errorf("unknown %v", a.pending.unknown)
	}
}

// The number of pulls is limited.
func TestPullsAreLimited(t *testing.T) {
	a := pullingAgent()
	sent, now := 0, time.Now()
	for mac := uint64(10); mac < 10+3*pullBurst; mac++ {
		a.pull(question{net: "n", mac: mac}, now)
		for _, number := range sentPulls(a) {
			sent++
			a.answer(&wire.Answer{Number: number}, a.pending)
		}
	}
	if sent != pullBurst || a.stats.Refused != 2*pullBurst {
		t.Errorf("%d pulls and %d refused, expected %d and %d", sent, a.stats.Refused, pullBurst, 2*pullBurst)
	}
	if s := a.stats; s.Pulls != pullBurst || s.PullsAnswered != pullBurst || s.PullsRefused != 2*pullBurst {
		t.Errorf("counted %+v", s)
	}
}
