// SPDX-License-Identifier: Apache-2.0

package procstat

import "testing"

func TestParse(t *testing.T) {
	for text, want := range map[string]Thread{
		"7 (a) b) S 1 7 7 0 -1 4194368 1 2":      {State: 'S'},
		"7 (weftd) D 1 7 7 0 -1 4194372 1 2":     {State: 'D', Ending: true}, // PF_EXITING
		"7 (weftd) R 1 7 7 0 -1 4195392 1 2\n":   {State: 'R', Ending: true}, // PF_SIGNALED
		"7 (weftd) t 1 7 7 34816 7 1077936128 1": {State: 't'},
	} {
		if got, err := Parse([]byte(text)); got != want || err != nil {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "7 (weftd) S 1 2 3 4 5", "7 (weftd) S 1 7 7 0 -1 x 2"} {
		if _, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestEnded(t *testing.T) {
	for state, want := range map[byte]bool{'R': false, 'S': false, 'D': false, 't': false, 'Z': true, 'X': true} {
		if got := (Thread{State: state}).Ended(); got != want {
			t.Errorf("state %c: ended %v", state, got)
		}
	}
}
