// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Others may not write to a new socket, even if the umask allows it. A stricter umask stays.
func TestUmask(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	for umask, want := range map[int]os.FileMode{0: 0o775, 0o022: 0o755, 0o077: 0o700} {
		unix.Umask(umask)
		keepOthersOut()
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("umask %03o: mode %03o, want %03o", umask, got, want)
		}
		l.Close()
	}
}
