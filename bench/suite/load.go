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

// The project's own guests run in a process of their own, on guestCore: this program
// under one of the verbs. It is told what to do as JSON, may say words meanwhile,
// and its last line is its report, as JSON.

// startLoad starts so many guests for one turn, and returns before the switch finds
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

// says waits until the program has said a word.
func (p *process) says(word string, limit time.Duration) error {
	return eventually(limit, func() error {
		if !strings.Contains(p.output(), word) {
			return fmt.Errorf("the guests say %q", p.tail())
		}
		return p.alive()
	})
}

// reports waits for the program's end, and for its report.
func (p *process) reports(limit time.Duration, report any) error {
	p.wait(limit)
	lines := strings.Split(strings.TrimSpace(p.output()), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), report); err != nil {
		return fmt.Errorf("the guests say %q", p.tail())
	}
	return nil
}

// someCame is an error of a load of which nothing came back.
func someCame(rate float64) error {
	if rate == 0 {
		return errors.New("no frame came back")
	}
	return nil
}

// asLoad is how the guests' process begins: with what it is to do, no collector,
// and this thread on guestCore. Its sockets are args[1:].
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

// sayReport is how it ends.
func sayReport(report any) error { return json.NewEncoder(os.Stdout).Encode(report) }
