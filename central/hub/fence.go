// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"time"

	"weft/central/wire"
)

// A port may be bound through another central, whose watch is some milliseconds ahead.
// The hub therefore says that nobody has an address only when it has every change that
// the store had after the host asked. It asks the store for its revision once for all
// questions that have come meanwhile.

const (
	// fenceTimeout limits how long an answer waits for the store. Then the answer is
	// what the hub knows, for example while the store has no leader.
	fenceTimeout = 250 * time.Millisecond
	// maxFenced limits the answers that wait. Beyond it the answer is what the hub
	// knows.
	maxFenced = 65536
)

// fenced is a Pull, or a Question for an address that nobody seems to have.
type fenced struct {
	session  *session
	pull     *wire.Pull
	question *wire.Question // nil: a Pull
}

// fence makes an answer wait until the hub has caught up with the store. The caller
// holds mu.
func (h *Hub) fence(f fenced) {
	if len(h.fences) >= maxFenced {
		h.unfence(f)
		return
	}
	h.fences = append(h.fences, f)
	select {
	case h.fenceWake <- struct{}{}:
	default:
	}
}

// catchUp answers what waits, again and again until ctx ends.
func (h *Hub) catchUp(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.fenceWake:
		}
		h.mu.Lock()
		list := h.fences
		h.fences = nil
		h.mu.Unlock()
		limit, cancel := context.WithTimeout(ctx, fenceTimeout)
		if revision, err := h.store.Revision(limit); err == nil {
			h.await(limit, revision)
		}
		cancel()
		h.mu.Lock()
		for _, f := range list {
			h.unfence(f)
		}
		h.mu.Unlock()
	}
}

// await waits until the hub has a revision, or ctx ends.
func (h *Hub) await(ctx context.Context, revision int64) {
	for {
		h.mu.Lock()
		reached := h.revision >= revision
		h.mu.Unlock()
		if reached {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-h.advanced:
		}
	}
}

// unfence answers with what the hub knows. The caller holds mu.
func (h *Hub) unfence(f fenced) {
	switch {
	case h.sessions[f.session.host] != f.session:
	case f.question != nil:
		h.answerQuestion(f.session, f.question, true)
	default:
		h.flushNow(f.session)
		h.answer(f.session, f.pull.GetNumber(), nil)
	}
}
