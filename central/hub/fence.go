// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"time"

	"weft/central/wire"
)

// This file delays the answer that no port has an address. Another central may have bound a port with
// this address some milliseconds ago, and this hub's watch of etcd may not have delivered the change
// yet. So the hub asks the store for its revision, and answers when it has received all changes up to
// this revision. One request to the store serves all answers that wait.

const (
	// fenceTimeout limits the time for which an answer waits for the store. The store may hang, for
	// example because etcd has no leader. After this time the hub answers with what it knows, and sets
	// ABSENCE_LATE.
	fenceTimeout = 250 * time.Millisecond
	// maxFenced limits the number of answers that wait for the store. At the limit the hub answers at
	// once with what it knows, and sets ABSENCE_LATE.
	maxFenced = 65536
)

// fenced is a host's message whose answer waits for the store. The message is a Pull, or a Question for
// an address that no port seems to have.
type fenced struct {
	session  *session
	pull     *wire.Pull
	question *wire.Question // nil: a Pull
}

// fence makes an answer wait until the hub has received all changes that are in the store now. The
// caller holds mu.
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

// catchUp reads the store's revision for the answers that wait, and sends them when the hub has
// received all changes up to this revision. It returns when ctx ends.
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

// revisionRead asks the store for its revision, with one request at a time. If a caller's time limit
// ends first, the request continues. The next call waits for its end before it sends another request.
type revisionRead struct {
	store   Store
	reading bool // an answer will be in done
	done    chan storeRevision
}

type storeRevision struct {
	revision int64
	err      error
}

// next returns the store's revision, read after the call began. It returns an error when the context
// "limit" ends. ctx is the context of the request to the store.
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

// await waits until the hub has received all changes up to a revision. It returns false if ctx ends
// first.
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

// unfence sends an answer that fence has delayed. If no port has the address of a Question, absence
// says why the answer has no port. The caller holds mu.
func (h *Hub) unfence(f fenced, absence wire.Absence) {
	switch {
	case h.sessions[f.session.host] != f.session:
	case f.question != nil:
		h.answerQuestion(f.session, f.question, absence)
	default:
		h.answerPull(f.session, f.pull)
	}
}
