// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"testing"

	"weft/api"
)

func TestDumpFlowsOptions(t *testing.T) {
	var query string
	t.Setenv("WEFT_SOCKET", serve(t, func(w http.ResponseWriter, r *http.Request) {
		query = r.URL.RawQuery
		_ = json.NewEncoder(w).Encode([]api.Flow{
			{Line: " cookie=0x0, duration=1.5s, table=0, n_packets=4, n_bytes=9, idle_timeout=5, idle_age=0, hard_age=3, priority=3,ip,metadata=0x0 actions=drop"},
			{Line: " cookie=0x5, duration=1s, table=3, n_packets=4, n_bytes=9, idle_age=0, actions=drop"},
		})
	}))
	out, errs, code := weft("", "--no-stats", "dump-flows", "--sort", "--rsort=nw_src", "--names", "ip")
	if want := " idle_timeout=5, priority=3,ip,metadata=0x0 actions=drop\n cookie=0x5, table=3, actions=drop\n"; code != 0 || out != want {
		t.Errorf("%d %s\n%s\nwant\n%s", code, errs, out, want)
	}
	if query != "match=ip&sort=priority&sort=-nw_src" {
		t.Errorf("asked for %s", query)
	}
}
