// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"weft/e2e/lab"
)

// run is one run of one experiment with one switch. It is also called a turn.
type run struct {
	id     string        // short and unique, because it is part of namespace names
	dir    string        // directory for temporary files, deleted at the end of the run
	bin    string        // directory of the programs weftd and weft
	length time.Duration // length of one measurement
	extras map[string]extra
	turn   *turn // results of all scenarios, if the experiment has a session

	mu    sync.Mutex
	ends  []func()
	ended bool // the run has ended and may not start further processes
}

// A run may take turnLimit plus turnLengths times the length of a measurement. Then the suite ends the
// processes of the run, and the function measure must return within endLimit.
const (
	turnLimit   = 2 * time.Minute
	turnLengths = 20
	endLimit    = 30 * time.Second
)

// limited calls measure and returns its result. At the time limit, or when ctx ends, it ends all
// programs that the run has started.
func (r *run) limited(ctx context.Context, limit time.Duration, measure func() float64) (float64, error) {
	type result struct {
		figure float64
		err    error
	}
	done := make(chan result, 1)
	go func() {
		var d result
		d.err = lab.Attempt(func() { d.figure = measure() })
		done <- d
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done within %s", limit))
	defer cancel()
	select {
	case d := <-done:
		r.end()
		return d.figure, d.err
	case <-ctx.Done():
	}
	r.end()
	select {
	case d := <-done:
		return 0, errors.Join(context.Cause(ctx), d.err)
	case <-time.After(endLimit):
		return 0, fmt.Errorf("%w, and it goes on", context.Cause(ctx))
	}
}

// atEnd registers a function that is called when the run ends. The functions are called in reverse
// order.
func (r *run) atEnd(f func()) {
	r.mu.Lock()
	ended := r.ended
	if !ended {
		r.ends = append(r.ends, f)
	}
	r.mu.Unlock()
	if ended {
		f()
	}
}

func (r *run) end() {
	r.mu.Lock()
	ends := r.ends
	r.ends, r.ended = nil, true
	r.mu.Unlock()
	for _, f := range slices.Backward(ends) {
		f()
	}
}

var errOver = errors.New("the turn is over")

func (r *run) begin() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return errOver
	}
	return nil
}

func (r *run) start(name string, words ...string) *process {
	lab.Check(r.begin())
	p := start(r.dir, name, words[0], words[1:]...)
	r.atEnd(p.stop)
	return p
}

// startSelf starts this program in the network namespace netns.
func (r *run) startSelf(name, netns string, words ...string) *process {
	self := lab.Must(os.Executable())
	return r.start(name, netnsCommand(netns, append([]string{self}, words...)...)...)
}

func (r *run) namespaces(names ...string) {
	for _, ns := range names {
		lab.Check(r.begin())
		r.atEnd(func() { command(nil, "ip", "netns", "del", ns) }) // ignores the error if the namespace was not created
		runCommands(nil, [][]string{{"ip", "netns", "add", ns}, {"ip", "-n", ns, "link", "set", "lo", "up"}})
	}
}

// extra is a secondary result of a run. The report shows it, but does not compare switches by it.
type extra struct {
	unit  string
	value float64
}

func (r *run) note(name, unit string, value float64) { r.extras[name] = extra{unit, value} }

func (r *run) socket(i int) string { return filepath.Join(r.dir, guestName(i)+".sock") }
