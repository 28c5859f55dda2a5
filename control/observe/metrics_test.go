// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"net/http/httptest"
	"strings"
	"testing"

	"weft/api"
	"weft/conntrack"
)

func scrape(n *Numbers) string {
	w := httptest.NewRecorder()
	MetricsHandler(func() *Numbers { return n }).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	var lines []string
	for line := range strings.Lines(w.Body.String()) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

func TestMetricsShowNumbers(t *testing.T) {
	n := &Numbers{
		Show: api.Show{Flows: 3, EnginePID: 7, Ports: []api.Port{{Number: 2, Name: "p2", Type: "tap", State: "up"}},
			Workers: []api.Worker{{Core: 3, ParkedQueues: 5}}},
		TableFlows: map[uint8]int{5: 3}, Refused: 11, WorkerHung: 2, Captures: 1, CapturesLost: 9,
		Hangs: map[uint32]uint64{2: 4},
	}
	text := scrape(n)
	for _, line := range []string{
		"weft_engine_up 1", `weft_worker_parked_queues{core="3",worker="0"} 5`, "weft_flows 3", `weft_table_flows{table="5"} 3`, "weft_megaflows_refused_total 11",
		`weft_engines_replaced_total{reason="worker_hung"} 2`, "weft_captures 1", "weft_capture_lost_frames_total 9",
		`weft_port_up{port="p2",type="tap"} 1`, `weft_port_hangs_total{port="p2",type="tap"} 4`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s in\n%s", line, text)
		}
	}
	if strings.Contains(text, "weft_connections") {
		t.Error("connections are counted without a table")
	}
	n.Connections = &ConnectionNumbers{Now: 6, EventsLost: 1, Counters: conntrack.Counters{Created: 8}}
	text = scrape(n)
	for _, line := range []string{"weft_connections 6", "weft_connections_created_total 8", "weft_connection_events_lost_total 1"} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}
