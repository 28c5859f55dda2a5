// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft/api"
	"weft/cmd/exit"
)

// As in ovs-ofctl, the exit code of diff-flows says whether the flows differ: 2 if they do, 1 on an error.
func TestDiffFlows(t *testing.T) {
	lines, status := []string{"-ip actions=drop"}, http.StatusOK
	var asked api.DiffFlows
	socket := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = api.DiffFlows{}
		_ = json.NewDecoder(r.Body).Decode(&asked)
		w.WriteHeader(status)
		if status != http.StatusOK {
			_ = json.NewEncoder(w).Encode(api.Error{Error: "line 1: x"})
			return
		}
		_ = json.NewEncoder(w).Encode(api.FlowsDiffer{Lines: lines})
	})
	t.Setenv("WEFT_SOCKET", socket)
	file := filepath.Join(t.TempDir(), "flows")
	if err := os.WriteFile(file, []byte("arp,actions=drop"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs, code := weft("", "diff-flows", file)
	if out != lines[0]+"\n" || errs != "" || code != exitDiffer || asked.First != "arp,actions=drop" || asked.Second != nil {
		t.Errorf("%d %q %q %+v", code, out, errs, asked)
	}
	lines = nil
	out, errs, code = weft("x", "diff-flows", file, "-")
	if out != "" || errs != "" || code != 0 || asked.Second == nil || *asked.Second != "x" {
		t.Errorf("%d %q %q %+v", code, out, errs, asked)
	}
	if _, errs, code = weft("", "diff-flows", "/nosuchfile"); code != exit.Failed || !strings.Contains(errs, "/nosuchfile") {
		t.Errorf("no file: %d %q", code, errs)
	}
	status = http.StatusBadRequest
	if _, errs, code = weft("", "diff-flows", file); code != exit.Failed || !strings.Contains(errs, "line 1") {
		t.Errorf("refused: %d %q", code, errs)
	}
}

// Verbs that read a file of flows accept --bundle, and "-" for standard input.
func TestFlowFiles(t *testing.T) {
	var method, body string
	socket := serve(t, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		method, body = r.Method+" "+r.URL.RawQuery, string(text)
		if r.Method == http.MethodGet {
			_, _ = w.Write([]byte(`[{"packets":3,"bytes":100},{"packets":4,"bytes":200}]`))
			return
		}
		_, _ = w.Write([]byte("{}"))
	})
	t.Setenv("WEFT_SOCKET", socket)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"add-flow", "--bundle", "-"}, "POST op=add ip"},
		{[]string{"--bundle", "add-flows", "-"}, "POST op=add ip"},
		{[]string{"replace-flows", "-", "--bundle"}, "POST op=replace ip"},
		{[]string{"--strict", "mod-flows", "--bundle", "-"}, "POST op=modify-strict ip"},
		{[]string{"del-flows", "--bundle", "-"}, "POST op=delete ip"},
		{[]string{"del-flows", "--strict", "-"}, "POST op=delete-strict ip"},
	} {
		_, errs, code := weft("ip", c.args...)
		if got := method + " " + body; code != 0 || got != c.want {
			t.Errorf("weft %v: %q, want %q; %d %s", c.args, got, c.want, code, errs)
		}
	}
	if _, errs, code := weft("", "--strict", "show"); code != exit.Input || !strings.Contains(errs, "--strict") {
		t.Errorf("a verb without the option: %d %q", code, errs)
	}
	if out, _, _ := weft("", "dump-aggregate"); out != "packet_count=7 byte_count=300 flow_count=2\n" {
		t.Errorf("aggregate %q", out)
	}
}
