// SPDX-License-Identifier: Apache-2.0

package watchdog

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFrozenGroup(t *testing.T) {
	for name, c := range map[string]struct {
		text, file, state string
		want              bool
	}{
		"version 2":            {"0::/a/b\n", "a/b/cgroup.events", "populated 1\nfrozen 1\n", true},
		"version 2, runs":      {"0::/a/b\n", "a/b/cgroup.events", "populated 1\nfrozen 0\n", false},
		"hybrid":               {"5:cpu:/x\n0::/a\n", "unified/a/cgroup.events", "populated 1\nfrozen 1\n", true},
		"version 1":            {"6:freezer:/a\n0::/\n", "freezer/a/freezer.state", "FROZEN\n", true},
		"version 1, runs":      {"6:freezer:/a\n0::/\n", "freezer/a/freezer.state", "THAWED\n", false},
		"another group":        {"0::/a\n", "b/cgroup.events", "populated 1\nfrozen 1\n", false},
		"no group is readable": {"0::/a\n7:freezer:/a\n", "none", "", false},
		"nothing":              {"", "none", "", false},
	} {
		mounts := t.TempDir()
		path := filepath.Join(mounts, c.file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(c.state), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := frozenGroup(c.text, mounts); got != c.want {
			t.Errorf("%s: frozen %v", name, got)
		}
	}
	if frozen(os.Getpid()) {
		t.Error("this process is frozen")
	}
}
