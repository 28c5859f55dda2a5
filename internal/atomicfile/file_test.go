// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	failure := errors.New("half")
	for _, step := range []struct {
		text string
		mode os.FileMode
		err  error
		want string
	}{{"one", 0o600, nil, "one"}, {"tw", 0o644, failure, "one"}, {"three", 0o644, nil, "three"}} {
		err := Write(file, step.mode, func(w io.Writer) error {
			if _, err := io.WriteString(w, step.text); err != nil {
				return err
			}
			return step.err
		})
		if !errors.Is(err, step.err) {
			t.Errorf("%s: %v", step.text, err)
		}
		got, err := os.ReadFile(file)
		if err != nil || string(got) != step.want {
			t.Errorf("after %s the file has %q, %v", step.text, got, err)
		}
		if info, err := os.Stat(file); err != nil || step.err == nil && info.Mode() != step.mode {
			t.Errorf("after %s: %v, %v", step.text, info.Mode(), err)
		}
		if all, err := os.ReadDir(filepath.Dir(file)); err != nil || len(all) != 1 {
			t.Errorf("after %s: %v, %v", step.text, all, err)
		}
	}
	if err := WriteBytes(filepath.Join(file, "none"), 0o600, nil); err == nil {
		t.Error("a file is in a file")
	}
}

// If root writes a file into another user's directory, the file belongs to this user.
func TestWriteForOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: changes owners")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	for _, uid := range []int{0, 65534} {
		if err := os.Chown(dir, uid, uid); err != nil {
			t.Fatal(err)
		}
		if err := WriteForOwner(path, 0o600, []byte("x")); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		if int(st.Uid) != uid || int(st.Gid) != uid || st.Mode&0o777 != 0o600 {
			t.Errorf("owner %d:%d, mode %04o, want %d and 0600", st.Uid, st.Gid, st.Mode&0o777, uid)
		}
	}
}
