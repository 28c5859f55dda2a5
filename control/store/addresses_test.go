// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// LoadAddresses returns the saved addresses. If a symbolic link, a FIFO or the file of another
// boot is in their place, it returns none, and the link's target stays unchanged.
func TestAddressesFile(t *testing.T) {
	dir := t.TempDir()
	s := openTestStore(t, dir)
	path := filepath.Join(dir, addressesFile)
	if err := s.SaveAddresses([]byte("saved")); err != nil {
		t.Fatal(err)
	}
	if data, err := s.LoadAddresses(); err != nil || string(data) != "saved" {
		t.Errorf("%q is loaded: %v", data, err)
	}
	replace := func(create func() error) {
		t.Helper()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := create(); err != nil {
			t.Fatal(err)
		}
	}
	target := filepath.Join(t.TempDir(), "target")
	content := []byte(bootID() + "\nforeign")
	if err := os.WriteFile(target, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]func() error{
		"symbolic link": func() error { return os.Symlink(target, path) },
		"FIFO":          func() error { return unix.Mkfifo(path, 0o600) },
		"other boot":    func() error { return os.WriteFile(path, []byte("other\nforeign"), 0o600) },
	} {
		replace(file)
		if data, _ := s.LoadAddresses(); len(data) != 0 {
			t.Errorf("%s: %q is loaded", name, data)
		}
		if err := s.SaveAddresses([]byte("saved")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now, err := os.ReadFile(target); err != nil || !bytes.Equal(now, content) {
		t.Errorf("the link's target has %q: %v", now, err)
	}
}
