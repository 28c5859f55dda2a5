// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"testing"
)

// Each request in an endless series of OpKeep under one key replaces the one before. The series grows
// the engine's memory by less than twice maxGarbage.
func TestGarbage(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's own memory hides the engine's: runs without -race")
	}
	c := spawnEngine(t, t.TempDir())
	startEngine(t, c, 1)
	blob := json.RawMessage(fmt.Sprintf("%q", bytes.Repeat([]byte("a"), 100<<10)))
	before := residentBytes(t, c.PID())
	for range 3000 { // the blobs add up to 300 MB
		if err := c.Keep("port/1", blob, nil); err != nil {
			t.Fatal(err)
		}
	}
	if grown := residentBytes(t, c.PID()) - before; grown > 2*maxGarbage {
		t.Fatalf("the engine has grown by %d MB", grown>>20)
	}
}

func residentBytes(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * os.Getpagesize()
}
