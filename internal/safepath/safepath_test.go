// SPDX-License-Identifier: Apache-2.0

package safepath

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const someone = 12345 // neither root nor the test's user

func failure(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: gives files away")
	}
	return t.TempDir()
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Functions of safepath follow a symbolic link only if it belongs to root or to the test's user.
func TestLinks(t *testing.T) {
	top := failure(t)
	real := filepath.Join(top, "real")
	check(t, os.Mkdir(real, 0o755))
	for _, c := range []struct {
		name   string
		mode   os.FileMode
		owner  int // of the directory
		linker int // of the link
		ok     bool
	}{
		{"own", 0o755, 0, 0, true},
		{"foreign", 0o755, someone, someone, false},
		{"shared", 0o777, 0, 0, false},
		{"group", 0o775, 0, 0, false},
		{"sticky", 0o777 | os.ModeSticky, 0, 0, true},
		{"trap", 0o777 | os.ModeSticky, 0, someone, false},
	} {
		dir := filepath.Join(top, c.name)
		check(t, os.Mkdir(dir, 0o755))
		for target, link := range map[string]string{real: "abs", "../real": "rel"} {
			check(t, os.Symlink(target, filepath.Join(dir, link)))
			check(t, os.Lchown(filepath.Join(dir, link), c.linker, -1))
		}
		check(t, os.Chown(dir, c.owner, someone))
		check(t, os.Chmod(dir, c.mode))
		for _, link := range []string{"abs", "rel"} {
			path := filepath.Join(dir, link)
			f, err := Dir(filepath.Join(path, "made"), 0o700)
			if err == nil {
				f.Close()
			}
			var refused *linkError
			if c.ok != (err == nil) || err != nil && (!errors.As(err, &refused) || !strings.Contains(err.Error(), path)) {
				t.Errorf("%s: %v", path, err)
			}
			file := filepath.Join(path, "file")
			if f, err = OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
				f.Close()
			}
			if c.ok != (err == nil) {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	for _, name := range []string{"made", "file"} {
		if _, err := os.Stat(filepath.Join(real, name)); err != nil {
			t.Error(err)
		}
	}
}

// OpenFile does not follow another user's symbolic link.
func TestFileThroughLink(t *testing.T) {
	top := failure(t)
	target := filepath.Join(top, "target")
	check(t, os.WriteFile(target, []byte("precious"), 0o600))
	dir := filepath.Join(top, "theirs")
	check(t, os.Mkdir(dir, 0o755))
	check(t, os.Symlink(target, filepath.Join(dir, "out.pcapng")))
	f, err := OpenFile(filepath.Join(dir, "out.pcapng"), os.O_CREATE|os.O_WRONLY, 0o600)
	check(t, err)
	f.Close()
	check(t, os.Chown(dir, someone, -1))
	if f, err := OpenFile(filepath.Join(dir, "out.pcapng"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600); err == nil {
		f.Close()
		t.Error("a link in another user's directory is followed")
	}
	if text, _ := os.ReadFile(target); string(text) != "precious" {
		t.Errorf("the target has %q", text)
	}
	for _, device := range []string{"/dev/null", "/dev/stderr", "/proc/self/fd/2"} {
		f, err := OpenFile(device, os.O_WRONLY, 0)
		if err != nil {
			t.Errorf("%s: %v", device, err)
			continue
		}
		f.Close()
	}
}

// Private creates the directory with mode 0700, and missing parents with 0755.
func TestPrivate(t *testing.T) {
	top := failure(t)
	path := filepath.Join(top, "a", "b", "state")
	f, err := Private(path)
	check(t, err)
	f.Close()
	for dir, want := range map[string]os.FileMode{"a": 0o755, "a/b": 0o755, "a/b/state": 0o700} {
		if info, err := os.Stat(filepath.Join(top, dir)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", dir, info.Mode(), err, want)
		}
	}
	for _, spoil := range []func() error{
		func() error { return errors.Join(os.Chmod(path, 0o770), os.Chown(path, 0, someone)) },
		func() error { return errors.Join(os.Chmod(path, 0o700), os.Chown(path, someone, -1)) },
	} {
		check(t, spoil())
		if f, err := Private(path); err == nil || !strings.Contains(err.Error(), "others may change it") {
			f.Close()
			t.Errorf("opened: %v", err)
		}
	}
	check(t, os.WriteFile(filepath.Join(top, "file"), nil, 0o600))
	if _, err := Private(filepath.Join(top, "file")); err == nil {
		t.Error("a file is no directory")
	}
	check(t, os.Symlink("loop", filepath.Join(top, "loop")))
	if _, err := Private(filepath.Join(top, "loop")); err == nil {
		t.Error("a loop of links ends nowhere")
	}
}
