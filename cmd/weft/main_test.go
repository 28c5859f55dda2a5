// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft/api"
	"weft/cmd/exit"
	"weft/internal/buildinfo"
)

func serve(t *testing.T, answer http.HandlerFunc) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: answer}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return socket
}

func weft(stdin string, args ...string) (stdout, errs string, code int) {
	var o, e strings.Builder
	code = run(args, strings.NewReader(stdin), &o, &e)
	return o.String(), e.String(), code
}

// weft refuses wrong arguments before it sends a request. It prints one line, and the exit code is 2.
func TestWrongWords(t *testing.T) {
	for _, c := range []struct {
		args []string
		word string
	}{
		{[]string{"frob"}, "frob"},
		{[]string{"add-flow"}, "FLOW"},
		{[]string{"add-flow", "a", "b"}, "b is one word too many"},
		{[]string{"add-flow", "--frob", "a"}, "--frob"},
		{[]string{"add-flows", "/nosuchfile"}, "/nosuchfile"},
		{[]string{"add-port"}, "NAME"},
		{[]string{"add-port", "p", "tap"}, "tap"},
		{[]string{"del-port"}, "NAME"},
		{[]string{"mod-port", "p"}, "KEY=VALUE"},
		{[]string{"mod-port", "p", "upp"}, "upp: expected KEY=VALUE"},
		{[]string{"mod-port", "a/b", "mtu=1"}, `"a/b": no such port`},
		{[]string{"del-port", ""}, `"": no such port`},
		{[]string{"del-port", ".."}, `"..": no such port`},
		{[]string{"del-port", "a/b"}, `"a/b": no such port`},
		{[]string{"del-flows", "--strict"}, "MATCH"},
		{[]string{"show", "x"}, "x"},
		{[]string{"monitor", "udp", "--connections"}, "udp selects flows"},
		{[]string{"monitor", "--zone", "5"}, "expected --connections"},
		{[]string{"monitor", "--flows", "--events", "new"}, "expected --connections"},
		{[]string{"--socket", "vsock:x", "show"}, "vsock:x"},
	} {
		out, errs, code := weft("", c.args...)
		if code != exit.Input || !strings.Contains(errs, c.word) || strings.Count(errs, "\n") != 1 || !strings.HasPrefix(errs, "weft: ") || out != "" {
			t.Errorf("weft %v: %d %q %q", c.args, code, errs, out)
		}
	}
}

// If no daemon answers, the error names the socket and says what to do.
func TestNobodyAnswers(t *testing.T) {
	dead := filepath.Join(t.TempDir(), "dead")
	l, err := net.Listen("unix", dead)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	for _, socket := range []string{dead, filepath.Join(t.TempDir(), "none")} {
		_, errs, code := weft("", "--socket", socket, "show")
		if code != exit.Failed || !strings.Contains(errs, socket) || !strings.Contains(errs, "weftd") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: %d %q", socket, code, errs)
		}
	}
}

// weft prints an error response of the daemon on one line, and sets the exit code.
func TestRefusals(t *testing.T) {
	for _, c := range []struct{ status, code int }{{400, exit.Input}, {404, exit.Failed}, {500, exit.Failed}} {
		socket := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			_ = json.NewEncoder(w).Encode(api.Error{Error: "foo=1:\nexpected bar"})
		})
		_, errs, code := weft("", "--socket", socket, "add-flow", "foo=1")
		if code != c.code || errs != "weft: foo=1: expected bar\n" {
			t.Errorf("status %d: %d %q", c.status, code, errs)
		}
	}
}

// Each verb sends the request of the API that it stands for.
func TestRequests(t *testing.T) {
	var method, path, query, body string
	socket := serve(t, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		method, path, query, body = r.Method, r.URL.Path, r.URL.RawQuery, string(text)
		_, _ = w.Write([]byte("{}"))
	})
	file := filepath.Join(t.TempDir(), "flows")
	if err := os.WriteFile(file, []byte("actions=drop\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WEFT_SOCKET", socket)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"add-flow", "actions=drop"}, `POST /v1/flows  {"op":"add","text":"actions=drop"}`},
		{[]string{"mod-flows", "actions=drop"}, `POST /v1/flows  {"op":"modify","text":"actions=drop"}`},
		{[]string{"mod-flows", "--strict", "actions=drop"}, `POST /v1/flows  {"op":"modify-strict","text":"actions=drop"}`},
		{[]string{"add-flows", file}, "POST /v1/flows op=add actions=drop\n"},
		{[]string{"add-flows", "-"}, "POST /v1/flows op=add ip,actions=drop"},
		{[]string{"del-flows"}, `DELETE /v1/flows  `},
		{[]string{"del-flows", "ip", "--strict"}, `DELETE /v1/flows match=ip&strict=true `},
		{[]string{"add-port", "p", "type=tap", "mtu=9000"}, `POST /v1/ports  {"name":"p","options":["type=tap","mtu=9000"]}`},
		{[]string{"add-port", "p", "type=tap", "--may-exist"}, `POST /v1/ports  {"name":"p","options":["type=tap"],"may_exist":true}`},
		{[]string{"mod-port", "p", "down"}, `PATCH /v1/ports/p  {"options":["admin=down"]}`},
		{[]string{"mod-port", "p", "mtu=9000", "vni="}, `PATCH /v1/ports/p  {"options":["mtu=9000","vni="]}`},
		{[]string{"del-port", "p"}, `DELETE /v1/ports/p  `},
		{[]string{"del-port", "--if-exists", "p"}, `DELETE /v1/ports/p if_exists=true `},
	} {
		_, errs, code := weft("ip,actions=drop", c.args...)
		if got := strings.Join([]string{method, path, query, body}, " "); code != 0 || got != c.want {
			t.Errorf("weft %v: %q, want %q; %d %s", c.args, got, c.want, code, errs)
		}
	}
}

// The verb show prints tables, or JSON with --json.
func TestShow(t *testing.T) {
	socket := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(api.Show{
			Version: "1.2", Commit: "abc", EngineVersion: "1.1", EngineCommit: "def", PID: 10, EnginePID: 11, StateDir: "/state", Workers: []api.Worker{{Core: 3, Frames: 77, Drops: map[string]uint64{"flow-drop": 5}}},
			Ports: []api.Port{{Number: 2, Name: "up", Type: "af_xdp", State: "up", Options: map[string]string{"type": "af_xdp", "dev": "eth0"},
				Mode: "copy", Reason: "zerocopy refused: no driver"}},
		})
	})
	out, errs, code := weft("", "--socket", socket, "show")
	for _, words := range []string{"weftd 1.2 (commit abc): pid 10", "engine 1.1 (commit def): pid 11", "/state", "77", "up", "dev=eth0", "mode copy; zerocopy refused: no driver"} {
		if !strings.Contains(out, words) {
			t.Errorf("%q is not in\n%s", words, out)
		}
	}
	if code != 0 || errs != "" {
		t.Errorf("%d %s", code, errs)
	}
	out, _, _ = weft("", "--socket", socket, "--json", "show")
	var s api.Show
	if err := json.Unmarshal([]byte(out), &s); err != nil || s.Ports[0].Mode != "copy" {
		t.Errorf("%v: %s", err, out)
	}
}

// weft prints the daemon's notes about a change to standard error. With --json they are part of the JSON.
func TestNotes(t *testing.T) {
	t.Setenv("WEFT_SOCKET", serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"flows":1,"notes":["ip_dst is ignored: it needs ip"]}`)
	}))
	for _, verb := range []string{"add-flow", "mod-flows", "del-flows"} {
		out, errs, code := weft("", verb, "nw_dst=10.0.0.1,actions=drop")
		if code != 0 || out != "" || errs != "weft: note: ip_dst is ignored: it needs ip\n" {
			t.Errorf("%s: %d %q %q", verb, code, out, errs)
		}
		out, errs, code = weft("", "--json", verb, "nw_dst=10.0.0.1,actions=drop")
		if code != 0 || !strings.Contains(out, `"ip_dst is ignored`) || errs != "" {
			t.Errorf("--json %s: %d %q %q", verb, code, out, errs)
		}
	}
}

// The option --version and the verb version print the version and the commit of weft.
func TestVersion(t *testing.T) {
	own := buildinfo.Own()
	for _, c := range []struct{ line, want string }{
		{"--version", "weft version " + own.Version + " (commit " + own.Commit + ")\n"},
		{"version", "weft " + own.Version + " (commit " + own.Commit + ")\n"},
	} {
		if out, errs, code := weft("", c.line); out != c.want || code != 0 {
			t.Errorf("weft %s: %d %q %q, want %q", c.line, code, out, errs, c.want)
		}
	}
	out, _, _ := weft("", "version", "--json")
	var got buildinfo.Build
	if err := json.Unmarshal([]byte(out), &got); err != nil || got != own {
		t.Errorf("version --json: %s", out)
	}
	if text := buildText("", ""); text != "of an unknown version" {
		t.Errorf("an engine that does not tell its version: %q", text)
	}
}
