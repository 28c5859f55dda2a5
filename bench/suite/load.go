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

	"weft/e2e/lab"
	"weft/internal/cpu"
)

// The functions below start processes of guests and other loads. Such a process is this program with a
// special first argument. Its task is JSON in the second argument. It prints its result as JSON in the
// last line of its output.

// startLoad starts a process of guests. The process ends with the run. startLoad does not wait until
// the switch has attached the guests.
func startLoad(r *run, verb string, guests int, spec any) *process {
	var sockets []string
	for i := range guests {
		sockets = append(sockets, r.socket(i))
	}
	return startAs(r, "guests", "", verb, spec, sockets...)
}

// startAs starts this program in the network namespace netns, with a task.
func startAs(r *run, name, netns, verb string, spec any, args ...string) *process {
	return r.startSelf(name, netns, append([]string{verb, taskText(spec)}, args...)...)
}

func taskText(spec any) string { return string(lab.Must(json.Marshal(spec))) }

func readTask(args []string, spec any) { lab.Check(json.Unmarshal([]byte(args[0]), spec)) }

// waitForWord waits until the process prints word.
func (p *process) waitForWord(word string, limit time.Duration) {
	eventually(limit, func() {
		if !strings.Contains(p.output(), word) {
			lab.Check(fmt.Errorf("the process printed %q", p.tail()))
		}
		lab.Check(p.alive())
	})
}

// waitForReport waits until the process has ended, and decodes the last line of its output into
// report.
func (p *process) waitForReport(limit time.Duration, report any) {
	p.wait(limit)
	lines := strings.Split(strings.TrimSpace(p.output()), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), report); err != nil {
		lab.Check(fmt.Errorf("the process printed %q", p.tail()))
	}
}

func someCame(rate float64) {
	if rate == 0 {
		lab.Check(errors.New("no frame came back"))
	}
}

// asLoad prepares a process of guests. It decodes the task in args into spec, and pins the calling
// thread to guestCore. args also has the guests' sockets.
func asLoad(args []string, spec any) {
	readTask(args, spec)
	lab.Check(cpu.Confine([]int{switchCore}))
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	lab.Check(cpu.Pin(guestCore))
}

func sayReport(report any) { lab.Check(json.NewEncoder(os.Stdout).Encode(report)) }
