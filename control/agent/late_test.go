// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"weft/central/wire"
)

// recorder is a switch that keeps the addresses which the agent programs.
type recorder struct {
	onePort
	addresses []Address
}

func (r *recorder) Apply(c *Changes) error {
	r.addresses = append(r.addresses, c.Addresses...)
	return nil
}

// The switch gets an address whose answer arrives after questionTimeout. The hub sends
// this place again only after a change or another question.
func TestLateAnswerBringsTheAddress(t *testing.T) {
	sw := &recorder{}
	a := New(Config{Log: slog.New(slog.DiscardHandler)}, sw)
	a.begin("")
	takeMessage(t, a, &wire.ToHost{Message: &wire.ToHost_Reset_{Reset_: &wire.NetReset{
		View: &wire.NetView{Net: &wire.Net{Id: "n", Vni: 7}, Asked: true}}}})
	if !a.Ask("web", 7, 9, netip.Addr{}) {
		t.Fatal("no answer to come")
	}
	asked := sentQuestions(a)
	if len(asked) != 1 {
		t.Fatalf("%d questions", len(asked))
	}
	a.questions.expire(time.Now().Add(2 * questionTimeout))
	takeMessage(t, a, &wire.ToHost{Message: &wire.ToHost_Answer{Answer: &wire.Answer{Number: asked[0].GetNumber(),
		Place: &wire.Place{Port: "p9", Net: "n", Mac: wire.MACBytes(9), Host: "h2", Endpoint: []byte{192, 0, 2, 2}, Generation: 5}}}})
	if len(sw.addresses) != 1 || sw.addresses[0].MAC != 9 || sw.addresses[0].Generation != 5 {
		t.Errorf("the switch has got %+v, expected MAC address 9 of generation 5", sw.addresses)
	}
}

// In a new session the agent asks again for the addresses that nobody had a moment ago. The new hub
// then informs it as soon as somebody has such an address. Without these questions, the switch would
// ask again only after some seconds.
func TestNewSessionAsksAgainForAbsentAddresses(t *testing.T) {
	a := New(Config{Log: slog.New(slog.DiscardHandler)}, &recorder{})
	reset := &wire.ToHost{Message: &wire.ToHost_Reset_{Reset_: &wire.NetReset{
		View: &wire.NetView{Net: &wire.Net{Id: "n", Vni: 7}, Asked: true}}}}
	a.begin("")
	takeMessage(t, a, reset)
	a.Ask("web", 7, 9, netip.Addr{})
	asked := sentQuestions(a)
	takeMessage(t, a, &wire.ToHost{Message: &wire.ToHost_Answer{Answer: &wire.Answer{Number: asked[0].GetNumber(),
		Absence: wire.Absence_ABSENCE_NOBODY}}})
	a.Ask("web", 7, 10, netip.Addr{}) // the session ends before the answer
	for range 2 {                     // the first new session fails
		sentQuestions(a)
		a.begin("")
	}
	takeMessage(t, a, reset)
	again := map[uint64]bool{}
	for _, q := range sentQuestions(a) {
		again[wire.MACNumber(q.GetMac())] = true
	}
	if len(again) != 2 || !again[9] || !again[10] {
		t.Errorf("the agent asks again for %v, expected 9 and 10", again)
	}
	sentQuestions(a)
	takeMessage(t, a, reset)
	if list := sentQuestions(a); len(list) != 0 {
		t.Errorf("the agent asks twice: %v", list)
	}
}
