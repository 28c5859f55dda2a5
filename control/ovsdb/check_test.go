// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/api"
)

// A check reports rows that the switch cannot put into effect, and columns without effect. Bridges have
// neither controllers nor flows of their own while a script restores the flows.
func TestCheck(t *testing.T) {
	rows := tables{
		"Open_vSwitch": {"o": {"bridges": one(uuid("b"))}},
		"Bridge": {"b": {"name": one("br0"), "ports": value{atoms: []any{uuid("p"), uuid("g")}}, "controller": one(uuid("c")),
			"stp_enable": one(true)}},
		"Controller": {"c": {"target": one("tcp:192.0.2.1")}},
		"Port":       {"p": {"interfaces": one(uuid("i"))}, "g": {"interfaces": one(uuid("j"))}},
		"Interface":  {"i": {"name": one("p0"), "ofport": one(int64(7))}, "j": {"name": one("gre0"), "type": one("lisp")}},
	}
	findings := findingsOf(rows)
	if len(findings) != 2 || !strings.HasPrefix(findings[0], "interface gre0: type lisp: ") || !strings.HasPrefix(findings[1], "bridge br0 stp_enable: ") {
		t.Errorf("findings: %q", findings)
	}
	f := &fakeSwitch{bridges: map[string]*api.Bridge{}, ports: map[string]*api.Port{}}
	c := New(Setup{Switch: f, Log: slog.New(slog.DiscardHandler)})
	c.kernel = fakeKernel{}
	m := wanted(rows, "")
	c.reconcile(&m, time.Now())
	if prefer := slices.Index(f.log, "prefer br0 p0 7"); prefer < 0 || prefer > slices.IndexFunc(f.log, func(s string) bool { return strings.HasPrefix(s, "add-port p0") }) {
		t.Errorf("p0 is added without its last number: %q", f.log)
	}
	for limit, tags := range map[string]int{"": 2, "0": 2, "1": 1, "2": 2} {
		rows["Open_vSwitch"]["o"]["other_config"] = mapOf(map[string]string{"vlan-limit": limit})
		if got := wantedSettings(rows).vlanLimit; got != tags {
			t.Errorf("vlan-limit=%s: flows see %d tags, want %d", limit, got, tags)
		}
	}
	for _, c := range []struct {
		wait, failMode string
		controllers    int
	}{{"false", api.FailStandalone, 1}, {"true", api.FailSecure, 0}} {
		rows["Open_vSwitch"]["o"]["other_config"] = mapOf(map[string]string{"flow-restore-wait": c.wait})
		if b := wanted(rows, "").bridges[0]; b.failMode != c.failMode || len(b.controllers) != c.controllers {
			t.Errorf("flow-restore-wait=%s: fail mode %s, controllers %v", c.wait, b.failMode, b.controllers)
		}
	}
}
