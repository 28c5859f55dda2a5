// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"
	"testing"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// countingSwitch counts the calls of Apply and the addresses in them.
type countingSwitch struct {
	onePort
	calls, addresses int
}

func (c *countingSwitch) Apply(changes *Changes) error {
	c.calls++
	c.addresses += len(changes.Addresses)
	return nil
}

// behindAgent returns an agent in a session. The function take takes one message with a new
// address and a revision.
func behindAgent(t *testing.T) (a *Agent, sw *countingSwitch, take func(revision int64, behind bool)) {
	sw = &countingSwitch{}
	a = New(Config{Log: slog.New(slog.DiscardHandler)}, sw)
	a.begin("")
	takeMessage(t, a, &wire.ToHost{Message: &wire.ToHost_Reset_{Reset_: &wire.NetReset{
		View: &wire.NetView{Net: &wire.Net{Id: "n", Vni: 7}}}}})
	return a, sw, func(revision int64, behind bool) {
		t.Helper()
		data, err := proto.Marshal(&wire.ToHost{Message: &wire.ToHost_Batch{Batch: &wire.Batch{Messages: []*wire.ToHost{
			{Message: &wire.ToHost_Update{Update: &wire.NetUpdate{Net: "n", Places: []*wire.Place{
				{Port: fmt.Sprint("p", revision), Net: "n", Mac: wire.MACBytes(uint64(revision)), Host: "h2", Endpoint: []byte{192, 0, 2, 2}, Generation: revision}}}}},
			{Message: &wire.ToHost_Revision{Revision: &wire.Revision{Revision: revision, Report: revision == 1}}}}}}})
		if err == nil {
			_, err = a.receive(data, behind)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// An agent that is behind applies the changes of all waiting messages at once, and then
// reports the newest revision.
func TestWaitingMessagesAreAppliedAtOnce(t *testing.T) {
	a, sw, take := behindAgent(t)
	take(1, true)
	take(2, true)
	if sw.calls != 0 || a.Stats().Revision != 0 {
		t.Errorf("%d calls, revision %d, although messages wait", sw.calls, a.Stats().Revision)
	}
	take(3, false)
	if sw.calls != 1 || sw.addresses != 3 || a.Stats().Revision != 3 {
		t.Errorf("%d calls with %d addresses, revision %d; expected 1, 3 and 3", sw.calls, sw.addresses, a.Stats().Revision)
	}
	var reports []int64
	for len(a.outbox) > 0 {
		if m := (<-a.outbox).GetApplied(); m != nil {
			reports = append(reports, m.GetRevision())
		}
	}
	if len(reports) != 1 || reports[0] != 3 {
		t.Errorf("reports of revisions %v, expected 3", reports)
	}
}

// The agent applies changes even if the hub always has another message.
func TestEndlessMessagesAreApplied(t *testing.T) {
	_, sw, take := behindAgent(t)
	for n := range int64(2 * mostPostponed) {
		take(n+1, true)
	}
	if sw.calls != 2 || sw.addresses != 2*mostPostponed {
		t.Errorf("%d calls with %d addresses, expected 2 with %d", sw.calls, sw.addresses, 2*mostPostponed)
	}
}

type troubledSwitch struct{ onePort }

func (troubledSwitch) Trouble() string { return "no uplink" }

// Each report to the hub has the switch's trouble (Switch.Trouble).
func TestReportHasTrouble(t *testing.T) {
	a := New(Config{Log: slog.New(slog.DiscardHandler)}, troubledSwitch{})
	a.begin("")
	takeMessage(t, a, &wire.ToHost{Message: &wire.ToHost_Revision{Revision: &wire.Revision{Revision: 1, Report: true}}})
	for len(a.outbox) > 0 {
		if m := (<-a.outbox).GetApplied(); m != nil {
			if m.GetTrouble() != "no uplink" {
				t.Errorf("reported %v", m)
			}
			return
		}
	}
	t.Error("no report")
}
