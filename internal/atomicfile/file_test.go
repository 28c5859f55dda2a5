// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
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
