// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft/bench/hops"
)

func TestHops(t *testing.T) {
	recordings, err := filepath.Glob("../testdata/*.txt")
	if err != nil || len(recordings) != 4 {
		t.Fatalf("%v %v", recordings, err)
	}
	var out strings.Builder
	if err := run(recordings, &out); err != nil || !strings.Contains(out.String(), "191.1 µs, netfilter 84.6 µs") ||
		!strings.Contains(out.String(), "127.6 µs, netfilter 55.0 µs") {
		t.Errorf("%v\n%s", err, out.String())
	}
	out.Reset()
	var ledgers []hops.Ledger
	if err := run(append([]string{"-json"}, recordings...), &out); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out.String()), &ledgers); err != nil || len(ledgers) != len(recordings) {
		t.Errorf("JSON: %v, %d ledgers", err, len(ledgers))
	}
}

func TestHopsWrongWords(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("nothing\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "expected recordings"},
		{[]string{"/nosuchfile"}, "/nosuchfile"},
		{[]string{empty}, "neither a function_graph trace nor"},
		{[]string{"-record", "f", "file"}, "expected FILE COMMAND"},
	} {
		var out strings.Builder
		if err := run(c.args, &out); err == nil || !strings.Contains(err.Error(), c.want) || out.Len() > 0 {
			t.Errorf("%v: %v %q", c.args, err, out.String())
		}
	}
}
