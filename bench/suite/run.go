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

// run is one peer's turn at one experiment.
type run struct {
	id     string        // unique on this machine, and short enough for a namespace's name
	dir    string        // scratch folder, removed at the end
	bin    string        // folder of weftd and weft
	length time.Duration // length of a measurement
	also   map[string]extra

	mu    sync.Mutex
	ends  []func()
	ended bool // set once the turn is over: nothing more may start
}

// turnLimit and turnLengths, in lengths of a measurement, bound the time of a turn:
// the longest measures ten times the length, and warms up. endLimit bounds the time
// that a turn takes to fail once everything it started has ended.
const (
	turnLimit   = 2 * time.Minute
	turnLengths = 20
	endLimit    = 30 * time.Second
)

// limited runs an experiment within limit or until the context ends. Then it ends
// everything that the turn started, which makes the experiment fail.
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

// atEnd registers f to be called at the end of the turn, in reverse order. If the
// turn is over, it calls f at once.
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

// start starts a program.
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

// startSelf starts this program under one of its verbs.
func (r *run) startSelf(name, netns string, words ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return r.start(name, in(netns, append([]string{self}, words...)...)...)
}

// namespaces makes network namespaces with their loopback up.
func (r *run) namespaces(names ...string) error {
	for _, ns := range names {
		if err := r.begin(); err != nil {
			return err
		}
		r.atEnd(func() { command(nil, "ip", "netns", "del", ns) }) // a namespace that does not exist needs no removal
		if err := all(nil, [][]string{{"ip", "netns", "add", ns}, {"ip", "-n", ns, "link", "set", "lo", "up"}}); err != nil {
			return err
		}
	}
	return nil
}

// extra is a secondary figure of a run, beside the one that is compared.
type extra struct {
	unit  string
	value float64
}

// note stores a secondary figure: a percentile, seconds of CPU, cycles a frame.
func (r *run) note(name, unit string, value float64) { r.also[name] = extra{unit, value} }

// socket returns the path on which guest i listens for the switch.
func (r *run) socket(i int) string { return filepath.Join(r.dir, guestName(i)+".sock") }
