// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"
)

// Sessions that exceed the rate wait in the order of their arrival. A waiting session that has got its
// batch otherwise takes no token.
func TestPacerServesInOrder(t *testing.T) {
	start := time.Now()
	p := pacer{rate: 10, burst: 100, tokens: 2, filled: start}
	var sessions []*session
	for range 6 {
		s := &session{behind: true}
		sessions = append(sessions, s)
		p.join(s)
		p.join(s) // it is in the line already
	}
	sessions[1].behind = false
	var served []int
	for _, after := range []time.Duration{0, 50 * time.Millisecond, 100 * time.Millisecond, 350 * time.Millisecond} {
		for s := p.nextSession(start.Add(after)); s != nil; s = p.nextSession(start.Add(after)) {
			s.behind = false
			served = append(served, slices.Index(sessions, s))
		}
		served = append(served, -1)
	}
	if want := []int{0, 2, -1, -1, 3, -1, 4, 5, -1}; !slices.Equal(served, want) {
		t.Errorf("served %v, expected %v", served, want)
	}
	if len(p.line) != 0 {
		t.Errorf("%d sessions wait", len(p.line))
	}
}

// If changes for all sessions never end, a hub with many sessions sends each of them a batch about
// as often as a beat is due, and not more often.
func TestBusySessionsGetBatchesLikeBeats(t *testing.T) {
	h := New(noStore{}, nil, slog.New(slog.DiscardHandler))
	h.mu.Lock()
	defer h.mu.Unlock()
	const count, seconds = 600, 20
	for n := range count {
		id := fmt.Sprint("h", n)
		h.sessions[id] = &session{host: id, hub: h, number: n, wake: make(chan struct{}, 1)}
	}
	now := time.Now()
	h.pacer.filled = now
	for step := range int(seconds * time.Second / paceTick) {
		for _, s := range h.sessions {
			s.behind, s.queued, s.bytes = true, nil, 0
			h.pacer.join(s)
		}
		now = now.Add(paceTick)
		h.pace(now)
		if step%int(beatTick/paceTick) == 0 {
			h.beatAll()
		}
	}
	// the first batch needs no token
	batches := float64(h.stats.Batches-count) / count
	most := seconds / (beatTicks * beatTick.Seconds())
	if least := seconds/beatWithin.Seconds() - 1; batches < least || batches > most {
		t.Errorf("%.1f batches a session in %d s, expected %.1f to %.1f", batches, seconds, least, most)
	}
}

// A queue that is too large for one batch is divided into batches that a host accepts.
func TestQueueIsCut(t *testing.T) {
	queue := rawBatch{make(rawMessage, maxBatch+1), make(rawMessage, maxBatch/2), make(rawMessage, maxBatch/2), make(rawMessage, 1)}
	var sizes []int
	for len(queue) > 0 {
		var batch rawBatch
		batch, queue = queue.cut()
		sizes = append(sizes, len(batch))
	}
	if !slices.Equal(sizes, []int{1, 2, 1}) {
		t.Errorf("batches of %v messages", sizes)
	}
}
