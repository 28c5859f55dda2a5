// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The shell's completion knows the daemon's ports and the types of ports.
func TestCompletePorts(t *testing.T) {
	t.Setenv("WEFT_SOCKET", serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `[{"name":"vm1","type":"tap","state":"up"},{"name":"uplink","type":"af_xdp","state":"down"}]`)
	}))
	for line, want := range map[string]string{
		"del-port ":        "vm1\ttap up\nuplink\taf_xdp down\n:4\n",
		"del-port v":       "vm1\ttap up\n:4\n",
		"del-port vm1 ":    ":4\n",
		"show limits up":   "uplink\taf_xdp down\n:4\n",
		"show routes up":   "uplink\taf_xdp down\n:4\n",
		"add-port x type=": strings.Join(portTypes, "\n") + "\n:4\n",
	} {
		// The last word of a completion request is the beginning of the word at the
		// cursor.
		out, _, code := weft("", append([]string{"__complete"}, strings.Split(line, " ")...)...)
		if code != 0 || out != want {
			t.Errorf("%q: %d %q, want %q", line, code, out, want)
		}
	}
	for _, shell := range []string{"bash", "zsh"} {
		if out, errs, code := weft("", "completion", shell); code != 0 || !strings.Contains(out, "__complete") {
			t.Errorf("completion %s: %d %s", shell, code, errs)
		}
	}
	t.Setenv("WEFT_SOCKET", "/nosuchdirectory/s")
	if out, _, code := weft("", "__complete", "del-port", ""); code != 0 || out != ":4\n" {
		t.Errorf("without a daemon: %d %q", code, out)
	}
}

// Completion suggests each type of port that the help of add-port lists.
func TestCompletionHasEveryType(t *testing.T) {
	var types []string
	for _, m := range regexp.MustCompile(`(?m)^  (type=\S+) `).FindAllStringSubmatch(addPortHelp, -1) {
		if !strings.HasSuffix(m[1], ",") && !slices.Contains(types, m[1]) {
			types = append(types, m[1])
		}
	}
	suggested := slices.Clone(portTypes)
	slices.Sort(types)
	slices.Sort(suggested)
	if !slices.Equal(types, suggested) {
		t.Errorf("completion suggests %v, the help lists %v", suggested, types)
	}
}
