// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The socket of a session gets the configured owner, group and mode. Without configuration, it keeps
// those that the daemon gives it.
func TestSocketAccess(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: gives a socket to another user")
	}
	uid, gid, mode := 1001, 1002, uint32(0o660)
	for _, c := range []struct {
		name string
		SocketAccess
		uid, gid, mode uint32
	}{
		{"all", SocketAccess{&uid, &gid, &mode}, 1001, 1002, 0o660},
		{"owner", SocketAccess{UID: &uid}, 1001, 0, 0o755},
		{"group and mode", SocketAccess{GID: &gid, Mode: &mode}, 0, 1002, 0o660},
		{"nothing", SocketAccess{}, 0, 0, 0o755},
	} {
		old := unix.Umask(0o022)
		path := filepath.Join(t.TempDir(), "s")
		l, err := listen(path, c.SocketAccess)
		unix.Umask(old)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		if st.Uid != c.uid || st.Gid != c.gid || st.Mode&0o7777 != c.mode {
			t.Errorf("%s: owner %d:%d, mode %04o, want %d:%d, %04o", c.name, st.Uid, st.Gid, st.Mode&0o7777, c.uid, c.gid, c.mode)
		}
		l.Close()
	}
}

// Another process has replaced the session's socket by its own. This socket keeps its owner.
func TestSocketAccessOfForeignSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: gives a socket to another user")
	}
	dir := t.TempDir()
	l, err := listen(filepath.Join(dir, "victim"), SocketAccess{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Link(filepath.Join(dir, "victim"), filepath.Join(dir, "s")); err != nil {
		t.Fatal(err)
	}
	n, err := openSocketName(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	uid := 1001
	if err := (SocketAccess{UID: &uid}).apply(n); !errors.Is(err, errForeignSocket) {
		t.Errorf("a hard link to another socket: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "victim"), &st); err != nil || st.Uid != 0 {
		t.Errorf("the other socket belongs to %d: %v", st.Uid, err)
	}
}
