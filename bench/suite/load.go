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

// The functions below start processes of guests. Such a process is this program with a special first
// argument. Its task is JSON in the second argument. It prints its result as JSON in the last line of
// its output.

// startLoad starts a process of guests. The process ends with the run. startLoad does not wait until
// the switch has attached the guests.
func startLoad(r *run, verb string, guests int, spec any) (*process, error) {
	var sockets []string
	for i := range guests {
		sockets = append(sockets, r.socket(i))
	}
	return startAs(r, "guests", verb, spec, sockets...)
}

func startAs(r *run, name, verb string, spec any, args ...string) (*process, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	return r.startSelf(name, "", append([]string{verb, string(text)}, args...)...)
}

// waitForWord waits until the process prints word.
func (p *process) waitForWord(word string, limit time.Duration) error {
	return eventually(limit, func() error {
		if !strings.Contains(p.output(), word) {
			return fmt.Errorf("the process printed %q", p.tail())
		}
		return p.alive()
	})
}

// waitForReport waits until the process has ended, and decodes the last line of its output into
// report.
func (p *process) waitForReport(limit time.Duration, report any) error {
	p.wait(limit)
	lines := strings.Split(strings.TrimSpace(p.output()), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), report); err != nil {
		return fmt.Errorf("the process printed %q", p.tail())
	}
	return nil
}

func someCame(rate float64) error {
	if rate == 0 {
		return errors.New("no frame came back")
	}
	return nil
}

// asLoad prepares a process of guests. It decodes the task in args into spec, and pins the calling
// thread to guestCore. args also has the guests' sockets.
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

func sayReport(report any) error { return json.NewEncoder(os.Stdout).Encode(report) }
