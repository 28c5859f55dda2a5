// Package hops keeps the ledger of a frame's way: it reads recordings of the
// kernel (function_graph traces, call graphs of perf), gives each function's own
// time to exactly one hop, and adds up. Which function belongs to which hop is
// data: hops.txt.
package hops

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Units of a recording.
const (
	UnitTime  = "µs"
	UnitShare = "% of cycles"
)

// Recording is what was recorded of a way.
type Recording struct {
	Name string // of the file, without what all such files end with
	Unit string
	// Total is what the recording itself says that all of it took.
	Total float64
	// Calls are the outermost calls, in order; of a call graph there is one.
	Calls []Call
}

// Call is an outermost call: its total, and where it went.
type Call struct {
	Function string
	Total    float64
	Own      []Own
}

// Own is a function's own time, without that of what it called. Path leads from
// the outermost function known to the function itself.
type Own struct {
	Path  []Function
	Value float64
}

// Function is a function as a recording names it. Object is the kernel module in
// brackets, or the program or library in user space; "" is the kernel itself.
type Function struct{ Name, Object string }

func (f Function) String() string {
	if f.Object == "" {
		return f.Name
	}
	return f.Name + " " + f.Object
}

// lineLimit bounds a line of a recording: symbols of C++ are long.
const lineLimit = 1 << 20

// Read reads a recording of either kind.
func Read(path string) (*Recording, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := parse(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r.Name = recordingName(path)
	return r, nil
}

func recordingName(path string) string {
	name := filepath.Base(path)
	for _, end := range []string{".txt", ".funcgraph", ".perf"} {
		name = strings.TrimSuffix(name, end)
	}
	return name
}

// parse tells the kinds apart by the first line that only one of them has.
func parse(in io.Reader) (*Recording, error) {
	var lines []string
	scan := bufio.NewScanner(in)
	scan.Buffer(nil, lineLimit)
	for scan.Scan() {
		lines = append(lines, strings.TrimRight(scan.Text(), "▒ \t\r"))
	}
	if err := scan.Err(); err != nil {
		return nil, err
	}
	for _, line := range lines {
		switch {
		case strings.HasPrefix(line, "#") || line == "":
		case graphLine.MatchString(line):
			return parseGraph(lines)
		case reportEntry.MatchString(line):
			return parseReport(lines)
		case treeBranch.MatchString(line):
			return parseTree(lines)
		}
	}
	return nil, fmt.Errorf("neither a function_graph trace nor a call graph of perf")
}
