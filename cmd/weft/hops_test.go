// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft/bench/hops"
	"weft/cmd/exit"
)

// Without arguments, the verb bench hops shows the built-in recordings.
func TestHops(t *testing.T) {
	out, errs, code := weft("", "bench", "hops")
	if code != 0 || !strings.Contains(out, "191.1 µs, netfilter 84.6 µs") || !strings.Contains(out, "127.6 µs, netfilter 55.0 µs") {
		t.Errorf("%d %q\n%s", code, errs, out)
	}
	out, _, _ = weft("", "--json", "bench", "hops")
	var ledgers []hops.Ledger
	if err := json.Unmarshal([]byte(out), &ledgers); err != nil || len(ledgers) != len(hops.Bundled) {
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
		word string
	}{
		{[]string{"/nosuchfile"}, "/nosuchfile"},
		{[]string{empty}, "neither a function_graph trace nor"},
		{[]string{"--record", "f", "file"}, "expected RECORDING -- COMMAND"},
		{[]string{"file", "--", "ls"}, "ls is one word too many"},
	} {
		out, errs, code := weft("", append([]string{"bench", "hops"}, c.args...)...)
		if code != exit.Input || !strings.Contains(errs, c.word) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%v: %d %q %q", c.args, code, errs, out)
		}
	}
}
