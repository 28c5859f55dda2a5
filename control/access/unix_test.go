// SPDX-License-Identifier: Apache-2.0

package access

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func noGroups() *Policy { return &Policy{WriteGroup: NoGroup, ReadGroup: NoGroup} }

func TestSocketIsPrivateAndReplacedWhenDead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "s")
	l, err := ListenUnix(path, noGroups())
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := ListenUnix(path, noGroups()); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second daemon on the socket: %v", err)
	}
	l.(*unixListener).Listener.Close() // leaves the socket file behind, as a daemon does that is killed
	own := os.Getgid()                 // only root may give a file to a group to which it does not belong
	for _, c := range []struct {
		write, read int
		mode        os.FileMode
	}{{own, NoGroup, 0o660}, {NoGroup, own, 0o660}, {own, own, 0o660}, {own, own + 1, 0o666}, {NoGroup, NoGroup, 0o600}} {
		if l, err = ListenUnix(path, &Policy{WriteGroup: c.write, ReadGroup: c.read}); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != c.mode {
			t.Errorf("groups %d and %d: mode %v, %v; want %v", c.write, c.read, info.Mode(), err, c.mode)
		}
		l.Close()
		if _, err := os.Lstat(path); err == nil {
			t.Error("the socket is still there")
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(file, noGroups()); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file in the place of the socket: %v", err)
	}
}

// A listener that closes does not remove the socket file of a newer daemon.
func TestSocketOfAnotherStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := ListenUnix(path, noGroups())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Error("the other socket is gone:", err)
	}
}

// Listen refuses a path that goes through another user's symbolic link.
func TestSocketOverLink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: gives a directory away")
	}
	top := t.TempDir()
	theirs := filepath.Join(top, "theirs")
	if err := os.Mkdir(theirs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(top, filepath.Join(theirs, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(theirs, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if l, err := ListenUnix(filepath.Join(theirs, "link", "s"), noGroups()); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		l.Close()
		t.Errorf("listens: %v", err)
	}
}
