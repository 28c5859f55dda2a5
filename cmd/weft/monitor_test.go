// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"weft/api"
	"weft/cmd/exit"
)

func TestMonitorText(t *testing.T) {
	var asked string
	now := time.Now()
	t.Setenv("WEFT_SOCKET", streaming(t, &asked, []api.Event{
		{Time: now, Kind: "flow", Event: "expired", Reason: "idle", Flow: &api.Flow{Line: " table=0, udp actions=drop"}},
		{Time: now, Kind: "flow", Event: "added", Flow: &api.Flow{Line: " table=0, ip actions=drop"}},
		{Time: now, Kind: "port", Event: "added", Port: &api.PortState{Number: 3, Name: "vm1", Type: "tap", State: "up"}},
		{Time: now, Kind: "port", Event: "failed", Port: &api.PortState{Number: 3, Name: "vm1", Type: "tap", State: "failed", Detail: "gone"}},
		{Time: now, Kind: "lost", Lost: 5},
	}))
	out, errs, code := weft("", "monitor", "udp", "--initial", "--flows")
	if code != 0 || asked != "/v1/monitor?flows=true&initial=true&match=udp" || !strings.Contains(errs, "monitoring") {
		t.Errorf("%d %s %s", code, asked, errs)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, want := range []string{
		"flow expired (idle):  table=0, udp actions=drop", "flow added:  table=0, ip actions=drop",
		"port vm1 added, number 3, type tap, up", "port vm1 failed: gone", "5 events were lost",
	} {
		if i >= len(lines) || lines[i] != now.Format(clock)+" "+want {
			t.Errorf("no line %q in\n%s", want, out)
		}
	}
	out, _, _ = weft("", "monitor", "--json")
	var e api.Event
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&e); err != nil || e.Reason != "idle" || strings.Count(out, "\n") != 5 {
		t.Errorf("%v\n%s", err, out)
	}
	if _, errs, code := weft("", "monitor", "udp", "--ports"); code != exit.Input || !strings.Contains(errs, "udp") {
		t.Errorf("%d %s", code, errs)
	}
}
