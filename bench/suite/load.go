// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"weft/internal/cpu"
)

// The project's own guests run in their own process on guestCore: this program under
// one of its verbs. It gets its task as JSON, may print words in between, and prints
// its report as JSON in the last line.

// startLoad starts so many guests for one turn. It returns before the switch finds
// their sockets.
func startLoad(r *run, verb string, guests int, spec any) (*process, error) {
	var sockets []string
	for i := range guests {
		sockets = append(sockets, r.socket(i))
	}
	return startAs(r, "guests", verb, spec, sockets...)
}

// startAs starts this program as another part of the experiment.
func startAs(r *run, name, verb string, spec any, args ...string) (*process, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	return r.startSelf(name, "", append([]string{verb, string(text)}, args...)...)
}

// says waits until the program has printed a word.
func (p *process) says(word string, limit time.Duration) error {
	return eventually(limit, func() error {
		if !strings.Contains(p.output(), word) {
			return fmt.Errorf("the guests say %q", p.tail())
		}
		return p.alive()
	})
}

// reports waits for the program's end and decodes its report.
func (p *process) reports(limit time.Duration, report any) error {
	p.wait(limit)
	lines := strings.Split(strings.TrimSpace(p.output()), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), report); err != nil {
		return fmt.Errorf("the guests say %q", p.tail())
	}
	return nil
}

// someCame returns an error if no frame returned.
func someCame(rate float64) error {
	if rate == 0 {
		return errors.New("no frame came back")
	}
	return nil
}

// asLoad begins a guests' process: it decodes the task, switches the collector off
// and pins this thread to guestCore. The sockets are args[1:].
func asLoad(args []string, spec any) error {
	if err := json.Unmarshal([]byte(args[0]), spec); err != nil {
		return err
	}
	if err := cpu.Confine([]int{switchCore}); err != nil {
		return err
	}
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	return cpu.Pin(guestCore)
}

// sayReport prints the report.
func sayReport(report any) error { return json.NewEncoder(os.Stdout).Encode(report) }
