// SPDX-License-Identifier: Apache-2.0

package control

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"weft/api"
)

// A request for more megaflows than the limit is refused. In an interval without frames, no megaflow is
// listed.
func TestHottestRequests(t *testing.T) {
	f := newFakes(t)
	client, err := api.NewClient(f.config.Socket)
	if err != nil {
		t.Fatal(err)
	}
	if hot, err := client.Hottest(5, time.Millisecond); err != nil || len(hot) != 0 {
		t.Errorf("of a quiet interval: %+v, %v", hot, err)
	}
	for _, q := range []string{"n=5", "n=5000&interval_ms=1", "n=x&interval_ms=1", "n=1&interval_ms=600000"} {
		resp, err := overSocket(f.config.Socket).Get("http://weft/v1/hottest?" + q)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "expected") {
			t.Errorf("%s: %d %s", q, resp.StatusCode, text)
		}
	}
}
