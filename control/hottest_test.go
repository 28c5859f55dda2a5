package control

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"weft/api"
)

// The hottest are those that counted most in the interval, whatever they had
// counted before.
func TestHottest(t *testing.T) {
	f := newFakes(t)
	f.add("udp,tp_dst=1,actions=drop", "udp,tp_dst=2,actions=drop", "udp,tp_dst=3,actions=drop")
	frames := func(port uint16, n int) {
		for range n {
			f.worker().frame(udpKey(1, 1, 2, port), 100)
		}
		f.settle()
	}
	frames(1, 1) // and then they are hits, which no worker holds
	frames(1, 499)
	frames(2, 1)
	before := f.d.pipeline.hotCounts()
	frames(1, 10)
	frames(2, 20)
	frames(3, 5)
	hot := f.d.pipeline.hotList(before, f.d.pipeline.hotCounts(), 2, 10)
	if len(hot) != 2 || !strings.Contains(hot[0].Match, "tp_dst=2") || hot[0].PacketsPerS != 2 || hot[0].BytesPerS != 200 ||
		!strings.Contains(hot[1].Match, "tp_dst=1") || hot[1].PacketsPerS != 1 || hot[1].Packets != 510 {
		t.Errorf("%+v", hot)
	}
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
