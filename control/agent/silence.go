// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"sync"
	"time"
)

// silence ends a session whose hub has promised messages at regular intervals and does
// not send them. A hub may hang or be stopped, while the kernel of its machine still
// acknowledges TCP keepalives.
//
// The time limit doubles with each session that ends this way, up to mostPatience times
// its lowest value. Otherwise all hosts would move from hub to hub when all hubs are
// overloaded. After a session of at least calmAfter, the limit is at its lowest value
// again.
type silence struct {
	stop     func()
	patience int

	mu      sync.Mutex // guards the fields below
	limit   time.Duration
	busy    bool // readAhead messages wait to be applied; further ones wait in the kernel
	last    time.Time
	timer   *time.Timer
	expired bool
}

const (
	mostPatience = 4
	calmAfter    = time.Minute
)

// begin notes that a message has arrived, and that the agent is handling it. heard notes that the agent
// can read the next message.
func (w *silence) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy = true
}

func (w *silence) heard() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy, w.last = false, time.Now()
}

// promise is called with the longest interval between messages that the hub promises;
// 0: unchanged.
func (w *silence) promise(beat time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if beat > 0 {
		w.limit = beat * 3 / 2 * time.Duration(w.patience)
		if w.timer == nil {
			w.timer = time.AfterFunc(w.limit, w.look)
		}
	}
}

// look is called when the timer expires. It ends the session if no message has come for the time limit, or
// else starts the timer again. A message does not reset the timer.
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
