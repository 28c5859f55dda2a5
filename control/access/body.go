// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"weft/control/limits"
)

// Limits of request bodies in bytes. A request with a longer body is refused.
const (
	// LargeBody is the limit for requests that carry a file of OpenFlow flows. It has room for a million
	// flows of up to 256 bytes each.
	LargeBody = 256 << 20
	// SmallBody is the limit for all other requests.
	SmallBody = 1 << 20
	// maxBodies limits the memory of all request bodies together, in bytes. A request that would
	// exceed it is refused.
	maxBodies = 2 * (LargeBody + freeBody)
	// freeBody is the number of bytes of each body that do not count against maxBodies, so that small
	// requests always pass.
	freeBody = 64 << 10
)

// Bodies limits the memory of the request bodies of all clients together. One client may use half of
// maxBodies.
type Bodies struct {
	mu      sync.Mutex
	used    int64
	peers   map[string]int64
	refused uint64
}

func newBodies() *Bodies { return &Bodies{peers: map[string]int64{}} }

// LimitRows emits the rows of `weft show limits` about the memory of request bodies: one in total, and one
// for each client.
func (b *Bodies) LimitRows(emit func(limits.Row)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	emit(limits.Row{Name: "api_bodies", Unit: "bytes", Holder: limits.All(),
		Used: uint64(b.used), Limit: maxBodies, Refused: b.refused})
	for share, has := range b.peers {
		emit(limits.Row{Name: "api_bodies", Unit: "bytes", Holder: limits.Peer(share), Used: uint64(has), Limit: maxBodies / 2})
	}
}

func (b *Bodies) take(share string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > maxBodies || b.peers[share]+n > maxBodies/2 {
		b.refused++
		return false
	}
	b.used += n
	b.peers[share] += n
	return true
}

func (b *Bodies) give(share string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.peers[share] -= n; b.peers[share] <= 0 {
		delete(b.peers, share)
	}
}

// LimitError is the error of a request that exceeded a limit. Status is the HTTP status of the answer.
type LimitError struct {
	Status  int
	Message string
}

func (e *LimitError) Error() string { return e.Message }

// body is a request body that enforces the limits while the handler reads it.
type body struct {
	io.ReadCloser
	owner   *Bodies
	share   string
	limit   int64
	read    int64
	began   time.Time
	control *http.ResponseController // nil: the request has no body

	// mu guards the fields below. A handler whose request was abandoned may still read
	// the body.
	mu       sync.Mutex
	waits    bool  // a Read waits for the client
	held     int64 // bytes taken from the quota
	exceeded bool
	failed   error
}

// limit replaces r.Body with a body that enforces the size limit, the memory limit and the read
// deadline. The caller calls release at the end of the request.
func (b *Bodies) limit(w http.ResponseWriter, r *http.Request, peer Peer) *body {
	limited := &body{ReadCloser: r.Body, owner: b, share: peer.Share, limit: SmallBody, began: time.Now()}
	if r.Body == nil || r.Body == http.NoBody {
		return limited
	}
	limited.control = http.NewResponseController(w)
	limited.extend()
	r.Body = limited
	return limited
}

func (b *body) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.owner.give(b.share, b.held)
	b.held, b.exceeded = 0, true
}

func (b *body) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	counts := b.read - freeBody
	if counts <= b.held {
		return true
	}
	more := counts - b.held + freeBody // in steps, not at each read
	if b.exceeded || !b.owner.take(b.share, more) {
		return false
	}
	b.held += more
	return true
}

// extend sets the read deadline. It is patience after the begin of the request, plus one second for each
// minRate bytes read so far. SetReadDeadline fails only in tests without a connection.
func (b *body) extend() { _ = b.control.SetReadDeadline(due(b.began, b.read)) }

// Read implements io.Reader. It returns a *LimitError if the body exceeds a limit of size or memory.
func (b *body) Read(p []byte) (int, error) {
	if b.failed != nil {
		return 0, b.failed
	}
	b.extend()
	b.setWaits(true)
	n, err := b.ReadCloser.Read(p)
	b.setWaits(false)
	b.read += int64(n)
	if err == io.EOF {
		// After the body, net/http continues to read, so that it notices a disconnect.
		// An expired deadline would look like a disconnect, so the deadline is removed.
		_ = b.control.SetReadDeadline(time.Time{})
	}
	if b.read > b.limit {
		return b.fail(http.StatusRequestEntityTooLarge, fmt.Sprintf("expected at most %d bytes", b.limit))
	}
	if !b.take() {
		return b.fail(http.StatusServiceUnavailable,
			fmt.Sprintf("the bodies of requests in progress hold %d bytes already; try again when they are done", maxBodies/2))
	}
	return n, err
}

func (b *body) setWaits(waits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waits = waits
}

// AbandonBody makes the read deadline of a request body expire, so that a handler that waits for the body
// stops reading. While a handler reads, net/http sends no response. AbandonBody returns false if the
// handler was not waiting.
func AbandonBody(r *http.Request) bool {
	b, ok := r.Body.(*body)
	if !ok {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waits {
		_ = b.control.SetReadDeadline(time.Unix(1, 0)) // fails only without a connection
	}
	return b.waits
}

func (b *body) fail(status int, message string) (int, error) {
	b.failed = &LimitError{Status: status, Message: message}
	return 0, b.failed
}
