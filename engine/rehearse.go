// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"weft/conntrack"
	"weft/internal/buildinfo"
)

// rehearsalConnections is the size of the connection table of a rehearsal. It is the smallest size.
const rehearsalConnections = 64

// Rehearse checks that an engine of the program exe can start its workers with configuration s, while
// another engine serves stateDir. The checked engine has memory of its own and no device, so it cannot
// disturb the serving engine. It has ended when Rehearse returns. An error says what has failed, with the
// last line that the program has printed.
func Rehearse(exe, stateDir string, s Start) error {
	s.Connections = conntrack.Sizes{Connections: rehearsalConnections}
	memory, err := NewMemory(s, nil)
	if err != nil {
		return err
	}
	defer memory.Close()
	cmd := exec.Command(exe, "engine", "--state", stateDir, controlFlag, "--rehearsal")
	var said lastLine
	cmd.Stderr = io.MultiWriter(os.Stderr, &said)
	cmd.WaitDelay = time.Second // limits the wait if a child process keeps standard error open
	e, err := launch(cmd)
	if err != nil {
		return err
	}
	err = e.rehearse(s, memory)
	e.Close() // before said is read
	if err != nil && len(said.line) > 0 {
		return fmt.Errorf("%w: %s", err, said.line)
	}
	return err
}

func (s *Spare) rehearse(start Start, memory *Memory) error {
	c, err := s.Engage()
	if err != nil {
		return err
	}
	if err := c.Start(start, memory); err != nil {
		return fmt.Errorf("start of the workers: %w", err)
	}
	if b := c.Build(); b != buildinfo.Own() {
		return fmt.Errorf("engine: the program is of version %v, and this weftd of version %v: install both from one build", b, buildinfo.Own())
	}
	return nil
}

// lastLine is a Writer that keeps the last line that is written to it, at most maxLine bytes of it.
type lastLine struct {
	line  []byte
	ended bool // the next byte begins another line
}

const maxLine = 512

func (l *lastLine) Write(text []byte) (int, error) {
	for part := range bytes.Lines(text) {
		if l.ended {
			l.line = l.line[:0]
		}
		l.ended = part[len(part)-1] == '\n'
		part = bytes.TrimSuffix(part, []byte{'\n'})
		l.line = append(l.line, part[:min(len(part), maxLine-len(l.line))]...)
	}
	return len(text), nil
}
