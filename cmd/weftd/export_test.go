// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// shell runs the built command weft against a daemon.
type shell struct {
	t      *testing.T
	binary string
	socket string
}

func (s *shell) try(in string, args ...string) (string, error) {
	cmd := exec.Command(s.binary, append([]string{"--socket", s.socket}, args...)...)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *shell) run(in string, args ...string) string {
	s.t.Helper()
	out, err := s.try(in, args...)
	if err != nil {
		s.t.Fatalf("weft %v: %v\n%s", args, err, out)
	}
	return out
}

// hostState is a state file that needs every kind of change. It has comments, and its
// form and order differ from the output of export.
const hostState = `# a comment
flows = [
  "actions=normal", # the default
  "priority=9,tcp,tp_dst=80,in_port=vx,actions=meter:1,group:7",
  "table=3,cookie=0x5,idle_timeout=600,ip,nw_dst=10.0.0.0/8,actions=vx",
]
groups = ["group_id=7,type=select,bucket=actions=t1,bucket=weight=3,actions=vx"]
meters = ["meter=1,pktps,bands=type=drop,rate=1000"]
controllers = ["tcp:127.0.0.1:1"]
tlv-map = ["{class=0x102,type=128,len=4}->tun_metadata7", "{class=0xffff,type=0,len=124}->tun_metadata0"]

[[bridge]]
name = "sw1"
tlv-map = ["{class=1,type=1,len=8}->tun_metadata0"]
fail-mode = "standalone"

[[local-port]]
name = "t1"
options = {type = "tap", dev = "weftexp1", mtu = "1400", vni = "7"}

[[local-port]]
name = "vx"
options = {remote = "192.0.2.1", type = "vxlan", vni = "7"}

[[table]]
table = 3
limit = 50

[conntrack]
max-connections = 1000
default-limit = 0
sequence-checks = false
timeouts = {}
zone = [{zone = 5, limit = 9, timeouts = {udp_single = 11}}]
`

// The test applies a file to an empty switch. A second apply finds no difference. The
// export, applied to another empty switch, gives an equal export. A file with a wrong
// part changes nothing.
func TestExportAndApply(t *testing.T) {
	r := startDaemon(t)
	s := &shell{t: t, binary: filepath.Join(r.dir, "weft"), socket: r.socket}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", s.binary, "../weft")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	empty := s.run("", "export")
	if out := s.run(hostState, "apply", "--dry-run", "-"); !strings.Contains(out, "differences, nothing applied") || s.run("", "export") != empty {
		t.Errorf("a dry run: %s", out)
	}
	s.run(hostState, "apply", "-")
	if out := s.run(hostState, "apply", "--prune", "-"); out != "no differences\n" {
		t.Errorf("applied twice: %s", out)
	}
	full := s.run("", "export")
	for _, want := range []string{"meter:1,group:7", "group_id=7", "meter=1 pktps", "weftexp1", "limit = 50", "max-connections = 1000", "idle_timeout=600", "'tcp:127.0.0.1:1'", "'{class=0x102,type=0x80,len=4}->tun_metadata7'", "len=8}->tun_metadata0", "fail-mode = 'standalone'"} {
		if !strings.Contains(full, want) {
			t.Errorf("no %q in\n%s", want, full)
		}
	}
	if strings.Contains(full, "comment") {
		t.Errorf("a comment is kept:\n%s", full)
	}

	for _, c := range []struct{ old, new, word string }{
		{"actions=normal", "actions=nosuch", "nosuch"},
		{`vni = "7"}`, `vni = "7", frob = "1"}`, "frob"},
		{`name = "vx"`, "name = \"vy\"\noptions = {type = \"tap\", dev = \"lo\"}\n[[local-port]]\nname = \"vx\"", "not a tap"},
		{"limit = 50", "limits = 50", "limits: unknown key"},
		{"[[table]]", "[[net]]\nname='x'\n[[table]]", "expected a file for each"},
		{`vni = "7"}`, `vni = "8", queues = "2"}`, "queues=: cannot change"},
		{"group:7", "group:8", "flows: "},
		{"tcp:127.0.0.1:1", "udp:127.0.0.1:1", "controller: udp:127.0.0.1:1"},
		{"len=4}", "len=5}", "tlv-map: "},
		{"limit = 50", "limit = 0\n[[table]]\ntable = 255", "table 255"},
		{"max-connections = 1000", "max-connections = 4000000000", "maxconns 4000000000"},
	} {
		text := strings.Replace(strings.Replace(hostState, c.old, c.new, 1), "rate=1000", "rate=2000", 1)
		out, err := s.try(text, "apply", "-")
		if early := c.word != "not a tap"; early && strings.Contains(out, "is in force") {
			t.Errorf("with %s: refused after the first change:\n%s", c.new, out)
		}
		if now := s.run("", "export"); err == nil || !strings.Contains(out, c.word) || now != full {
			t.Errorf("with %s: %v, want %q:\n%s\nnow:\n%s", c.new, err, c.word, out, now)
		}
	}

	out := s.run(empty, "apply", "--prune", "-")
	if now := s.run("", "export"); now != empty || !strings.Contains(out, "- local-port t1") {
		t.Errorf("back to the empty switch: %s\n%s\nwant\n%s", out, now, empty)
	}
	s.run(full, "apply", "-")
	if now := s.run("", "export"); now != full {
		t.Errorf("restored:\n%s\nwant\n%s", now, full)
	}
	less := strings.Replace(full, "mtu = '1400'", "mtu = '1300'", 1)
	if out := s.run(less, "apply", "-"); !strings.Contains(out, "~ local-port t1 mtu=1300\n1 changes applied") {
		t.Errorf("another MTU: %s", out)
	}
	mode := strings.Replace(less, "fail-mode = 'standalone'", "controllers = ['tcp:127.0.0.1:2']", 1)
	if out := s.run(mode, "apply", "-"); !strings.Contains(out, "~ bridge sw1 fail-mode=secure controllers=tcp:127.0.0.1:2\n1 changes applied") {
		t.Errorf("another controller: %s", out)
	}
	s.run(empty, "apply", "--prune", "-")
}
