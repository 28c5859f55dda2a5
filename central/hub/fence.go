// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"time"

	"weft/central/wire"
)

// This file delays one kind of answer: that nobody has an address. A port may have been
// bound through another central, whose watch of the store is some milliseconds ahead.
// So the hub gives this answer only after it has received every change that was in the
// store when the host asked. To know this, the hub asks the store for its revision,
// once for all questions that have arrived in the meantime.

const (
	// fenceTimeout limits how long an answer waits for the store, which may have no
	// leader. After this time the hub answers with what it knows, and sets ABSENCE_LATE.
	fenceTimeout = 250 * time.Millisecond
	// maxFenced limits the number of answers that wait. At the limit the hub answers at
	// once with what it knows, and sets ABSENCE_LATE.
	maxFenced = 65536
)

// fenced is a Pull, or a Question for an address that no port seems to have, whose
// answer waits for the store.
type fenced struct {
	session  *session
	pull     *wire.Pull
	question *wire.Question // nil: a Pull
}

// fence makes an answer wait until the hub has caught up with the store. The caller
// holds mu.
func (h *Hub) fence(f fenced) {
	if len(h.fences) >= maxFenced {
		h.unfence(f, wire.Absence_ABSENCE_LATE)
		return
	}
	h.fences = append(h.fences, f)
	select {
	case h.fenceWake <- struct{}{}:
	default:
	}
}

// catchUp sends the waiting answers each time the hub has caught up with the store,
// until ctx ends.
func (h *Hub) catchUp(ctx context.Context) {
	read := revisionRead{store: h.store, done: make(chan storeRevision, 1)}
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
		absence := wire.Absence_ABSENCE_LATE
		limit, cancel := context.WithTimeout(ctx, fenceTimeout)
		if revision, err := read.next(ctx, limit); err == nil && h.await(limit, revision) {
			absence = wire.Absence_ABSENCE_NOBODY
		}
		cancel()
		h.mu.Lock()
		for _, f := range list {
			h.unfence(f, absence)
		}
		h.mu.Unlock()
	}
}

// revisionRead asks the store for its revision. A request that misses its time limit goes on, and the
// next request waits for its end. So a slow store has only one request at a time.
type revisionRead struct {
	store   Store
	reading bool // an answer will be in done
	done    chan storeRevision
}

type storeRevision struct {
	revision int64
	err      error
}

// next returns a revision that the store has had since the call began, no older one. It returns an error
// when the context "limit" ends. The request to the store ends only with ctx.
func (r *revisionRead) next(ctx, limit context.Context) (int64, error) {
	if r.reading { // an answer from before the call is of no use
		select {
		case <-limit.Done():
			return 0, limit.Err()
		case <-r.done:
		}
	}
	r.reading = true
	go func() {
		revision, err := r.store.Revision(ctx)
		r.done <- storeRevision{revision, err}
	}()
	select {
	case <-limit.Done():
		return 0, limit.Err()
	case now := <-r.done:
		r.reading = false
		return now.revision, now.err
	}
}

// await waits until the hub has a revision. It returns false if ctx ends before.
func (h *Hub) await(ctx context.Context, revision int64) bool {
	for {
		h.mu.Lock()
		reached := h.revision >= revision
		h.mu.Unlock()
		if reached {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-h.advanced:
		}
	}
}

// unfence sends an answer that has waited for the store. absence is the answer to a question for an
// address that nobody seems to have. The caller holds mu.
func (h *Hub) unfence(f fenced, absence wire.Absence) {
	switch {
	case h.sessions[f.session.host] != f.session:
	case f.question != nil:
		h.answerQuestion(f.session, f.question, absence)
	default:
		h.answerPull(f.session, f.pull)
	}
}
