// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"sync"
	"time"
)

// silence ends a session whose hub says nothing for too long, although it has promised
// messages at regular intervals. A hub may hang, or be stopped, while the kernel of its
// machine still acknowledges what a keepalive of TCP sends.
//
// The limit doubles with each session that has ended this way, up to mostPatience
// times, so that hosts do not go from hub to hub when all hubs have too much to do. It
// is back at its lowest after a session of at least calmAfter.
type silence struct {
	stop     func()
	patience int

	mu      sync.Mutex // guards the fields below
	limit   time.Duration
	busy    bool // a message is being applied: the following ones wait in the kernel
	last    time.Time
	timer   *time.Timer
	expired bool
}

const (
	mostPatience = 8
	calmAfter    = time.Minute
)

// begin is called when a message arrives, heard after its processing. beat is the
// hub's new interval; 0: unchanged.
func (w *silence) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy = true
}

func (w *silence) heard(beat time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy, w.last = false, time.Now()
	if beat > 0 {
		w.limit = beat * 3 / 2 * time.Duration(w.patience)
		if w.timer == nil {
			w.timer = time.AfterFunc(w.limit, w.look)
		}
	}
}

// look is the timer's function. It runs once a limit, so that messages set no timer.
func (w *silence) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := w.limit - time.Since(w.last)
	switch {
	case w.busy:
		w.timer.Reset(w.limit)
	case rest > 0:
		w.timer.Reset(rest)
	default:
		w.expired = true
		w.stop()
	}
}

func (w *silence) silent() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.expired
}

func (w *silence) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
}
