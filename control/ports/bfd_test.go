// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft/bfd"
)

// The key of BFD's authentication is read from a regular file of one line that others cannot read.
func TestBFDKeyFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"good": "secret\n", "bare": "secret", "long": strings.Repeat("k", bfd.KeyLength+1), "empty": "\n"} {
		if err := os.WriteFile(at(name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(at("open"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{os.Chmod(at("open"), 0o644), os.Symlink(at("good"), at("link")), unix.Mkfifo(at("pipe"), 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"good": "", "bare": "", "long": "1 to 20 bytes", "empty": "1 to 20 bytes", "open": "without access for others",
		"link": "not a link", "pipe": "regular file", "missing": "no such file", ".": "regular file",
	} {
		values := map[string]string{"bfd_auth": "keyed-sha1", "bfd_key_file": at(name), "bfd_key_id": "9"}
		a, err := readBFDAuth(values)
		if want == "" {
			if err != nil || a.Type != bfd.KeyedSHA1 || a.KeyID != 9 || string(a.Key[:7]) != "secret\x00" {
				t.Errorf("%s: %+v, %v", name, a, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
		if a.Type != bfd.KeyedSHA1 || a.Key == [bfd.KeyLength]byte{} {
			t.Errorf("%s: without its key, the session runs without authentication: %+v", name, a)
		}
	}
	if a, err := readBFDAuth(map[string]string{}); err != nil || a != (bfd.Auth{}) {
		t.Errorf("without bfd_auth=: %+v, %v", a, err)
	}
}

// Each option of BFD's authentication needs the others.
func TestBFDAuthOptions(t *testing.T) {
	for _, c := range []struct{ words, want string }{
		{"bfd=on bfd_auth=keyed-sha1 bfd_key_file=/k", ""},
		{"bfd=on bfd_auth=off", ""},
		{"bfd=on bfd_auth=meticulous-keyed-sha1", "expected bfd_key_file="},
		{"bfd=on bfd_key_file=/k", "expected bfd_auth="},
		{"bfd=on bfd_auth=off bfd_key_id=3", "expected bfd_auth="},
		{"bfd_one_hop=on", "expected bfd=on"},
	} {
		values := map[string]string{"remote": "10.1.0.2"}
		for word := range strings.SplitSeq(c.words, " ") {
			key, value, _ := strings.Cut(word, "=")
			values[key] = value
		}
		err := checkBFD(values)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.words, err, c.want)
		}
	}
}
