// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weft/api"
	"weft/control/access"
	"weft/control/rest"
	"weft/control/workers/workertest"
	"weft/internal/buildinfo"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func overSocket(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) },
	}}
}

func TestAPIRefusals(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(1)
	f.add("in_port=p1,actions=drop")
	client := overSocket(f.config.Socket)
	for _, c := range []struct {
		method, path, body string
		status             int
		word               string
	}{
		{"GET", "/v2", "", 404, "/v2"},
		{"PATCH", "/v1/flows", "", 404, "PATCH"},
		{"GET", "/v1/ports?name=p2", "", 400, "p2"},
		{"DELETE", "/v1/ports/p2", "", 400, "p2"},
		{"POST", "/v1/ports", "{", 400, "body"},
		{"POST", "/v1/ports", `{"nam":"x"}`, 400, `body: unknown field "nam"; expected`},
		{"POST", "/v1/ports", `{"name":5}`, 400, "body: name: expected a string, not number"},
		{"POST", "/v1/ports", `{"name":"p9","options":"type=tap"}`, 400, "body: options: expected a list, not string"},
		{"POST", "/v1/ports", `[]`, 400, "body: expected an object, not array"},
		{"POST", "/v1/conntrack/settings", `{"max_connections":-1}`, 400, "body: max_connections: expected a whole number of at most 32 bits, not number -1"},
		{"POST", "/v1/ports", `{"name":"1","options":["type=tap"]}`, 400, "1"},
		{"POST", "/v1/ports", `{"name":"p1","options":["type=vxlan","vni=8","remote=flow"]}`, 400, "p1"},
		{"POST", "/v1/ports", `{"name":"p9","options":["type=vxlan","vni=1","remote=192.0.2.1"]}`, 400, "vni=1"},
		{"POST", "/v1/ports", `{"name":"p9","options":["type=vxlan","vni=8","remote=192.0.2.1","local=fd00::1"]}`, 400, "local=fd00::1"},
		{"POST", "/v1/ports", `{"name":"p9","options":["type=af_xdp","dev=nosuchdev"]}`, 500, "nosuchdev"},
		{"POST", "/v1/log", `{"level":"loud"}`, 400, "level: loud: expected debug"},
		{"POST", "/v1/log", `{"level":"debug","format":"xml"}`, 400, "format: xml: expected text"},
		{"POST", "/v1/flows", `{"op":"frob","text":"actions=drop"}`, 400, "frob"},
		{"POST", "/v1/flows", `{"op":"add","text":"in_port=p7,actions=drop"}`, 400, "p7"},
		{"POST", "/v1/flows?op=add", "actions=drop\n\n# x\nip,nw_sorc=1,actions=drop", 400, "line 4"},
		{"POST", "/v1/flows?op=frob", "actions=drop", 400, "frob"},
		{"GET", "/v1/flows?match=nw_sorc%3D1", "", 400, "nw_sorc"},
		{"DELETE", "/v1/flows?match=&strict=yes", "", 400, "strict=yes"},
	} {
		req, err := http.NewRequest(c.method, "http://weft"+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(c.path, "op=") {
			req.Header.Set("Content-Type", "text/plain")
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var refusal api.Error
		err = json.NewDecoder(resp.Body).Decode(&refusal)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.status || !strings.Contains(refusal.Error, c.word) || strings.Contains(refusal.Error, "\n") {
			t.Errorf("%s %s %s: %d %q %v, want %d and %q", c.method, c.path, c.body, resp.StatusCode, refusal.Error, err, c.status, c.word)
		}
	}
	if n := f.d.pipeline.Counts().Flows; n != 1 {
		t.Errorf("%d flows after refusals", n)
	}
	if ports, _ := f.d.ports.List(""); len(ports) != 1 {
		t.Errorf("%d ports after refusals", len(ports))
	}
}

func TestMetrics(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(1)
	f.add("udp,actions=drop")
	f.worker().Frame(workertest.UDPKey(1, 1, 2, 3), 100)
	f.settle()
	resp, err := overSocket(f.config.Socket).Get("http://weft/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"weft_engine_up 1", "go_goroutines ", "process_resident_memory_bytes ", "weft_flows 1", "weft_megaflows 1",
		`weft_port_packets_total{direction="rx",port="p1",type="vxlan"} 0`,
		`weft_table_flows{table="0"} 1`, "weft_flows_not_learned_total 0", "weft_captures 0", "weft_capture_lost_frames_total 0", "weft_monitors 0", "weft_connection_events_lost_total 0", `weft_build_info{commit="` + buildinfo.Own().Commit + `",engine_commit="abc",engine_version="fake",version="` + buildinfo.Own().Version + `"} 1`, "weft_connections 0", `weft_connections_ended_total{by="eviction"} 0`,
		`weft_port_info{mode="",number="1",port="p1",state="`, "weft_uptime_seconds ", `weft_worker_commands_total{core="`,
		`weft_worker_heartbeat_age_seconds{core="`, `weft_worker_batches_total{core="`, `weft_worker_installs_refused_total{core="`,
		`weft_worker_lookups_total{core="`, "weft_miss_answer_seconds_count 1", `weft_worker_busy_seconds_total{core="`,
	} {
		if !strings.Contains(string(text), "\n"+line) {
			t.Errorf("no line %q in\n%s", line, text)
		}
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint() // Lint does what promtool check metrics does
	if err != nil {
		t.Error(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// Every route of the API is in the table of roles, and the table has no other routes. (A route without a
// role would refuse every peer.)
func TestEveryRouteHasARole(t *testing.T) {
	routes := newFakes(t).d.handler().Routes()
	for _, pattern := range routes {
		if rest.Routes[pattern].Role == access.None {
			t.Errorf("%s has no role in rest.Routes", pattern)
		}
	}
	for pattern := range rest.Routes {
		if !slices.Contains(routes, pattern) {
			t.Errorf("rest.Routes has a row for %s, which has no handler", pattern)
		}
	}
	for _, pattern := range routes {
		if method, path, _ := strings.Cut(pattern, " "); method != http.MethodGet && path != "/v1/flows/diff" && rest.Routes[pattern].Role != access.Write {
			t.Errorf("%s may change something, but role Read may call it", pattern)
		}
	}
}

// The comments of package api list every route.
func TestEveryRouteIsDocumented(t *testing.T) {
	listed := map[string]bool{}
	for _, name := range []string{"../api/types.go", "../api/conntrack.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^//\t([A-Z]+) +(/[A-Za-z0-9/-]+)`).FindAllStringSubmatch(string(text), -1) {
			listed[m[1]+" "+m[2]] = true
		}
	}
	for pattern := range rest.Routes {
		if !listed[strings.ReplaceAll(pattern, "{name}", "NAME")] {
			t.Errorf("no comment of package api lists %s", pattern)
		}
	}
	if len(listed) != len(rest.Routes) {
		t.Errorf("the comments list %d routes, the API has %d", len(listed), len(rest.Routes))
	}
}

func TestSocketGroupIsNamed(t *testing.T) {
	f := newFakes(t)
	f.end()
	for _, c := range []func(*Config){
		func(c *Config) { c.SocketGroup = "nosuchgroup" }, func(c *Config) { c.SocketReadGroup = "nosuchgroup" },
	} {
		config := f.config
		c(&config)
		if _, err := newDaemon(config); err == nil || !strings.Contains(err.Error(), "nosuchgroup") {
			t.Errorf("a group that does not exist: %v", err)
		}
	}
}

func TestChooseCores(t *testing.T) {
	for _, c := range []struct {
		workers int
		cores   []int
		want    int // expected number of workers; 0: an error is expected
	}{
		{0, nil, 1}, {2, nil, 2}, {0, []int{3, 1}, 2}, {2, []int{3, 1}, 2},
		{5, nil, 0}, {1, []int{3, 1}, 0}, {0, []int{9}, 0}, {-1, nil, 0}, {1000, nil, 0},
	} {
		config := Config{Workers: c.workers, Cores: c.cores}
		err := config.chooseCores([]int{0, 1, 2, 3})
		if err != nil && !strings.HasPrefix(err.Error(), "cores: 9") && !strings.HasPrefix(err.Error(), fmt.Sprintf("workers: %d", c.workers)) {
			t.Errorf("%+v: %v does not name what is wrong", c, err)
		}
		if (err != nil) != (c.want == 0) || err == nil && (config.Workers != c.want || len(config.Cores) != c.want) {
			t.Errorf("%+v: %+v, %v", c, config, err)
		}
	}
}
