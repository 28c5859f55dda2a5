// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Control gives up the protection that the unit has given it, and an engine takes the protection back.
func TestOOMScores(t *testing.T) {
	file := filepath.Join(t.TempDir(), "score")
	set := func(score string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(score), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := func(event, score string) {
		t.Helper()
		if text, err := os.ReadFile(file); err != nil || string(text) != score {
			t.Errorf("%s: score %q, %v, want %q", event, text, err, score)
		}
	}
	t.Setenv(scoreVariable, "")
	for _, score := range []string{"0\n", "300\n"} {
		set(score)
		if err := giveUpProtection(file); err != nil || takeProtection(file) != nil {
			t.Fatal(err)
		}
		want("no protection", score)
	}
	set("-900\n")
	if err := giveUpProtection(file); err != nil {
		t.Fatal(err)
	}
	want("control", "0")
	if err := giveUpProtection(file); err != nil { // the next control process inherits the variable
		t.Fatal(err)
	}
	if err := takeProtection(file); err != nil {
		t.Fatal(err)
	}
	want("engine", "-900")
	set("nonsense")
	if err := giveUpProtection(file); err == nil {
		t.Error("nonsense is no score")
	}
}
