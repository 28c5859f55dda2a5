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

// The project's own guests run in a process of their own, which is this program with
// a special first argument. The process gets its task as JSON in the second argument,
// and prints its result as JSON in the last line of its output.

// startLoad starts a process with the given number of guests. The process ends with
// the run at the latest. startLoad returns before the switch connects to the guests'
// sockets.
func startLoad(r *run, verb string, guests int, spec any) (*process, error) {
	var sockets []string
	for i := range guests {
		sockets = append(sockets, r.socket(i))
	}
	return startAs(r, "guests", verb, spec, sockets...)
}

// startAs starts this program in the role that verb selects, with the task spec as
// JSON.
func startAs(r *run, name, verb string, spec any, args ...string) (*process, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	return r.startSelf(name, "", append([]string{verb, string(text)}, args...)...)
}

// The method says waits until the process has printed the given word.
func (p *process) says(word string, limit time.Duration) error {
	return eventually(limit, func() error {
		if !strings.Contains(p.output(), word) {
			return fmt.Errorf("the process printed %q", p.tail())
		}
		return p.alive()
	})
}

// The method reports waits until the process has ended, and decodes the last line of
// its output into the value report.
func (p *process) reports(limit time.Duration, report any) error {
	p.wait(limit)
	lines := strings.Split(strings.TrimSpace(p.output()), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), report); err != nil {
		return fmt.Errorf("the process printed %q", p.tail())
	}
	return nil
}

// someCame returns an error if the rate of received frames is 0.
func someCame(rate float64) error {
	if rate == 0 {
		return errors.New("no frame came back")
	}
	return nil
}

// asLoad prepares a process of guests: it decodes the task in args[0] into spec,
// turns the garbage collector off, and pins the calling thread to guestCore. The
// other threads stay on switchCore. The guests' sockets are args[1:].
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

// sayReport prints the report as JSON on standard output.
func sayReport(report any) error { return json.NewEncoder(os.Stdout).Encode(report) }
