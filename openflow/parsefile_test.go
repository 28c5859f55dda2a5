// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"errors"
	"runtime"
	"strings"
	"testing"
)

// ParseFlowMods allocates little memory for a file of comments. An earlier parser allocated 30 times the
// file's size.
func TestCommentsTakeNoRoom(t *testing.T) {
	text := strings.Repeat("# nothing\n", 1<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	mods, err := ParseFlowMods(text, Add, nil)
	runtime.ReadMemStats(&after)
	if err != nil || len(mods) != 0 {
		t.Fatalf("parsed %d flows, error %v", len(mods), err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > uint64(len(text)) {
		t.Errorf("parsing %d bytes of comments allocated %d bytes", len(text), took)
	}
}

// A file may have maxFileFlows flows, which is more than the tables hold. A file with more is refused.
func TestFileHasALimit(t *testing.T) {
	if testing.Short() {
		t.Skip("parses two million flows: runs without -short")
	}
	text := strings.Repeat("action=1\n", maxFileFlows)
	if mods, err := ParseFlowMods(text, Add, nil); err != nil || len(mods) != maxFileFlows {
		t.Fatalf("parsed %d flows, error %v", len(mods), err)
	}
	var pe *ParseError
	mods, err := ParseFlowMods(text+"\n# one more\naction=1\n", Add, nil)
	if !errors.As(err, &pe) || pe.Line != maxFileFlows+3 || mods != nil {
		t.Errorf("parsed %d flows, error %v", len(mods), err)
	}
}
