// SPDX-License-Identifier: Apache-2.0

// Package hops divides the time of a frame's path into hops (sections), such as a
// system call or a bridge. It reads recordings of the kernel: function_graph traces and
// call graphs of perf. It assigns each function's time, without its callees, to exactly
// one hop. The file hops.txt assigns functions to hops.
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

// Recording is a trace or a profile of a frame's path.
type Recording struct {
	Name string // the file's name without its extension
	Unit string
	// Total is the total time or share that the recording itself states.
	Total float64
	// Calls has the outermost calls in order.
	Calls []Call
}

// Call is an outermost call with its total time and the times of the functions below
// it.
type Call struct {
	Function string
	Total    float64
	Own      []Own
}

// Own is the time of a function without its callees. Path has the function's callers
// and the function itself, the outermost first.
type Own struct {
	Path  []Function
	Value float64
}

// Function is a function in a recording. Object is the kernel module in brackets, or
// the program or library in user space. An empty Object means the kernel itself.
type Function struct{ Name, Object string }

func (f Function) String() string {
	if f.Object == "" {
		return f.Name
	}
	return f.Name + " " + f.Object
}

// lineLimit is the greatest length of a line in bytes. It is large because C++
// symbols are long.
const lineLimit = 1 << 20

// Read reads a function_graph trace or a call graph of perf from a file.
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

// parse recognizes the format of a recording by the first line that occurs in only one
// format.
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
