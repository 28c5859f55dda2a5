// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
)

// controlLog.since returns each new line about engines once. It returns no line of an earlier log, and
// no incomplete line.
func TestControlLogHasNewLinesAboutEngines(t *testing.T) {
	const (
		start = "time=1 level=INFO msg=\"engine started\" pid=7\n"
		hangs = "time=2 level=ERROR msg=\"the engine hangs, replacing it\" why=\"worker 0\"\n"
		other = "time=3 level=WARN msg=\"slow peer\"\n"
		died  = "time=4 level=ERROR msg=\"the engine has died, starting another\" pid=8\n"
	)
	var c controlLog
	for i, v := range []struct {
		file, text string
		want       []string
	}{
		{"1.log", start, nil},
		{"1.log", start + hangs + other + died[:20], []string{hangs[:len(hangs)-1]}},
		{"1.log", start + hangs + other + died, []string{died[:len(died)-1]}},
		{"1.log", start + hangs + other + died, nil},
		{"2.log", died, []string{died[:len(died)-1]}},
	} {
		if got := c.since(v.file, v.text); !slices.Equal(got, v.want) {
			t.Errorf("step %d: %q, want %q", i, got, v.want)
		}
	}
}

// A storm counts the engines that control replaces by itself, without the engine that the storm has
// killed.
func TestStormTellsReplacedEnginesFromKilledOnes(t *testing.T) {
	for event, want := range map[string]uint64{"kill of engine": 1, "kill of control": 2, "move": 2, "": 2} {
		w := &storming{}
		if w.countUnkilled(event, 2); w.r.Unkilled != want {
			t.Errorf("%q: %d, want %d", event, w.r.Unkilled, want)
		}
	}
}
