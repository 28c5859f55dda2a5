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
)

// run is one run of one experiment with one peer. The comments call it a turn.
type run struct {
	id     string        // unique on this machine; short, because namespace names contain it
	dir    string        // scratch directory, deleted at the end of the turn
	bin    string        // directory of the programs weftd and weft
	length time.Duration // length of one measurement
	also   map[string]extra

	mu    sync.Mutex
	ends  []func()
	ended bool // the turn is over, and no process may be started
}

// A turn may take turnLimit plus turnLengths times the length of a measurement: the
// longest experiment measures ten times this length and also warms up. After that the
// suite ends all processes of the turn, and the turn must fail within endLimit.
const (
	turnLimit   = 2 * time.Minute
	turnLengths = 20
	endLimit    = 30 * time.Second
)

// limited calls the function do and returns its result. If the time limit is over or
// ctx ends first, limited ends everything that the turn has started. The function do
// then fails.
func (r *run) limited(ctx context.Context, limit time.Duration, do func() (float64, error)) (float64, error) {
	type result struct {
		figure float64
		err    error
	}
	done := make(chan result, 1)
	go func() {
		figure, err := do()
		done <- result{figure, err}
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

// atEnd registers f to be called at the end of the turn. The functions are called in
// reverse order. If the turn is over, atEnd calls f at once.
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

// begin returns errOver if the turn is over.
func (r *run) begin() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return errOver
	}
	return nil
}

// start starts a program. The program ends with the turn at the latest.
func (r *run) start(name string, words ...string) (*process, error) {
	if err := r.begin(); err != nil {
		return nil, err
	}
	p, err := start(r.dir, name, words[0], words[1:]...)
	if err == nil {
		r.atEnd(p.stop)
	}
	return p, err
}

// startSelf starts this program with the given arguments, in the network namespace
// netns.
func (r *run) startSelf(name, netns string, words ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return r.start(name, in(netns, append([]string{self}, words...)...)...)
}

// namespaces creates network namespaces and sets their loopback devices up. The
// namespaces are deleted at the end of the turn.
func (r *run) namespaces(names ...string) error {
	for _, ns := range names {
		if err := r.begin(); err != nil {
			return err
		}
		r.atEnd(func() { command(nil, "ip", "netns", "del", ns) }) // ignores the error if the namespace was not created
		if err := all(nil, [][]string{{"ip", "netns", "add", ns}, {"ip", "-n", ns, "link", "set", "lo", "up"}}); err != nil {
			return err
		}
	}
	return nil
}

// extra is a secondary result of a run, which is reported but not compared between
// the peers.
type extra struct {
	unit  string
	value float64
}

// note records a secondary result, such as a percentile, seconds of CPU time or
// cycles for each frame.
func (r *run) note(name, unit string, value float64) { r.also[name] = extra{unit, value} }

// socket returns the path of the socket on which guest i waits for the switch.
func (r *run) socket(i int) string { return filepath.Join(r.dir, guestName(i)+".sock") }
