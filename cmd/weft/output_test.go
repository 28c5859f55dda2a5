// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"weft/cmd/exit"
)

// Every verb fails if it cannot write its results.
func TestFullDisk(t *testing.T) {
	t.Setenv("WEFT_SOCKET", serve(t, func(w http.ResponseWriter, r *http.Request) {
		answer := answers[r.URL.Path]
		if answer == "" {
			answer = "{}"
		}
		_, _ = io.WriteString(w, answer)
	}))
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, line := range []string{"show", "dump-flows", "dump-ports", "dump-groups", "dump-meters", "ct-get-nconns", "ct-timeout",
		"top --once --interval 100ms", "--json dump-flows", "version"} {
		var errs strings.Builder
		code := run(strings.Fields(line), strings.NewReader(""), full, &errs)
		if code != exit.Failed || !strings.Contains(errs.String(), "no space left") || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("weft %s: %d %q", line, code, errs.String())
		}
	}
}
