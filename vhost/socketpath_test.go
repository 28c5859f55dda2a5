// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft/vhost"
	"weft/vhost/vhosttest"
)

// TestSocketLinks: a directory or its socket is replaced by a symbolic link. The session neither binds
// nor removes the link's target, and does not connect to it.
func TestSocketLinks(t *testing.T) {
	needRoot(t)
	const someone = 12345
	top := t.TempDir()
	theirs, victim := filepath.Join(top, "theirs"), filepath.Join(top, "victim")
	for _, dir := range []string{theirs, victim, filepath.Join(theirs, "real")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(theirs, someone, someone); err != nil {
		t.Fatal(err)
	}
	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(victim, "vhost.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	config := vhost.Config{Path: filepath.Join(theirs, "real", "vhost.sock")}
	s, err := vhost.NewSession(config, &vhosttest.Engine{})
	if err != nil {
		t.Fatal(err)
	}
	// The directory is replaced by a link while the session listens.
	if err := os.Rename(filepath.Join(theirs, "real"), filepath.Join(theirs, "old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(theirs, "real")); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := os.Lstat(filepath.Join(victim, "vhost.sock")); err != nil {
		t.Fatalf("another guest's socket is gone: %v", err)
	}
	if _, err := vhost.NewSession(config, &vhosttest.Engine{}); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Fatalf("listens behind a link: %v", err)
	}
	// A client's path is a link to another guest's socket.
	link := filepath.Join(theirs, "client.sock")
	if err := os.Symlink(filepath.Join(victim, "vhost.sock"), link); err != nil {
		t.Fatal(err)
	}
	client, err := vhost.NewSession(vhost.Config{Path: link, Client: true}, &vhosttest.Engine{})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = client.Run(context.Background()) }()
	defer client.Close()
	eventually(t, "refusal", func() bool { return strings.Contains(client.Status().LastError, "no socket") })
	if client.Status().Connects != 0 {
		t.Fatal("connected to another guest's socket")
	}
}
