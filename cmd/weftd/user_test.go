// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/privilege"
)

// owner returns the user of a file, without following a link.
func owner(t *testing.T, path string) int {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return int(st.Uid)
}

// A state directory of root is given to the user with all its files, but not the target of a link. A
// directory that the user owns stays as it is. The directory of a third user is refused.
func TestGiveState(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: changes owners")
	}
	user := &privilege.Account{Name: "nobody", UID: 65534, GID: 65534}
	dir := t.TempDir()
	state, outside := filepath.Join(dir, "state"), filepath.Join(dir, "outside")
	files := []string{"state.db", "folder", "folder/file", "link"}
	if err := os.MkdirAll(filepath.Join(state, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{outside, filepath.Join(state, "state.db"), filepath.Join(state, "folder/file")} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(state, "link")); err != nil {
		t.Fatal(err)
	}
	if err := giveState(state, user); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(files, ".") {
		if uid := owner(t, filepath.Join(state, name)); uid != user.UID {
			t.Errorf("%s belongs to %d", name, uid)
		}
	}
	if uid := owner(t, outside); uid != 0 {
		t.Errorf("the target of a link belongs to %d", uid)
	}

	later := filepath.Join(state, "later")
	if err := os.WriteFile(later, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := giveState(state, user); err != nil || owner(t, later) != 0 {
		t.Errorf("a directory of the user: %v, file of %d", err, owner(t, later))
	}
	if err := os.Chown(state, 1, 1); err != nil {
		t.Fatal(err)
	}
	if err := giveState(state, user); err == nil || !strings.Contains(err.Error(), "owner uid 1") {
		t.Errorf("a directory of a third user: %v", err)
	}
}
