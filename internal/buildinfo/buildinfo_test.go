// SPDX-License-Identifier: Apache-2.0

package buildinfo

import "testing"

// If the linker sets a commit, it replaces the one that go build records.
func TestBuildOf(t *testing.T) {
	const revision = "0123456789abcdef0123456789abcdef01234567"
	for _, c := range []struct {
		linked             string
		revision, modified string
		want               string
	}{
		{"", "", "", "unknown"},
		{"", revision, "false", "0123456789ab"},
		{"", revision, "true", "0123456789ab-dirty"},
		{"fedcba9876543210", revision, "true", "fedcba9876543210"},
		{"abc", "", "", "abc"},
	} {
		commit = c.linked
		b := buildOf(map[string]string{"vcs.revision": c.revision, "vcs.modified": c.modified})
		if b.Commit != c.want || b.Version == "" || b.String() != b.Version+" (commit "+c.want+")" {
			t.Errorf("%+v: %+v, %s", c, b, b)
		}
	}
	commit = ""
}
