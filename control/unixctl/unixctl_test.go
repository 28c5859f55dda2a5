// SPDX-License-Identifier: Apache-2.0

package unixctl

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"weft/control/access"
)

// Requests are answered in order, with text or an error. The pid file has the process id, and
// files of dead processes are removed.
func TestServer(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "ovs-vswitchd.999999999.ctl")
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	policy := &access.Policy{UID: os.Geteuid(), WriteGroup: access.NoGroup, ReadGroup: access.NoGroup}
	echo := Command{Name: "echo", Usage: "word", Least: 1, Most: 2, Changes: true, Run: func(words []string) (string, error) { return strings.Join(words, "+"), nil }}
	s, err := Open(dir, policy, []Command{echo}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	pid := strconv.Itoa(os.Getpid())
	if text, err := os.ReadFile(filepath.Join(dir, "ovs-vswitchd.pid")); err != nil || strings.TrimSpace(string(text)) != pid {
		t.Errorf("pid file: %s %v", text, err)
	}
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Errorf("the socket of a dead process: %v", err)
	}
	c, err := net.Dial("unix", filepath.Join(dir, "ovs-vswitchd."+pid+".ctl"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d := json.NewDecoder(c)
	for i, step := range []struct{ method, params, result, problem string }{
		{"echo", `["a","b"]`, "a+b", ""},
		{"echo", `[]`, "", `"echo" command requires at least 1 arguments`},
		{"echo", `["a","b","c"]`, "", `"echo" command takes at most 2 arguments`},
		{"nosuch", `[]`, "", `"nosuch" is not a valid command`},
		{"list-commands", `[]`, "  echo                    word\n", ""},
	} {
		if _, err := c.Write([]byte(`{"method":"` + step.method + `","params":` + step.params + `,"id":` + strconv.Itoa(i) + `}`)); err != nil {
			t.Fatal(err)
		}
		var reply struct {
			ID            int
			Result, Error *string
		}
		if err := d.Decode(&reply); err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, part := range []*string{reply.Result, reply.Error} {
			if part != nil {
				text = *part
			}
		}
		if reply.ID != i || (reply.Error != nil) != (step.problem != "") || !strings.Contains(text, step.result+step.problem) {
			t.Errorf("%s %s: %d %q", step.method, step.params, reply.ID, text)
		}
	}
	if text, err := s.run("echo", []string{"a"}, false); err == nil {
		t.Errorf("a peer that may only read changes: %s", text)
	}
	stop()
	<-done
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 0 {
		t.Errorf("files are left: %v", left)
	}
}
