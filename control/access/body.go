package access

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"weft/control/limits"
)

// Limits of bodies, in bytes. A longer body is refused when it reaches the limit.
const (
	// LargeBody is for files of flows: a million flows of a hundred bytes and more.
	LargeBody = 256 << 20
	// SmallBody is for everything else.
	SmallBody = 1 << 20
	// MaxBodies bounds the bodies of all requests at work together. A handler may hold
	// a body twice, as bytes and decoded. A request beyond it is refused.
	MaxBodies = 2 * (LargeBody + freeBody)
	// freeBody is what a request reads before it counts, so that small requests find
	// room whatever large ones hold.
	freeBody = 64 << 10
)

// Bodies shares out the memory that bodies take: a peer holds half of it at most, which
// is one of the largest.
type Bodies struct {
	mu      sync.Mutex
	used    int64
	peers   map[string]int64
	refused uint64
}

// NewBodies makes an unused budget.
func NewBodies() *Bodies { return &Bodies{peers: map[string]int64{}} }

// LimitRows is a limits.Source.
func (b *Bodies) LimitRows(emit func(limits.Row)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	emit(limits.Row{Name: "api_bodies", Unit: "bytes", Holder: limits.All(),
		Used: uint64(b.used), Limit: MaxBodies, Refused: b.refused})
	for share, has := range b.peers {
		emit(limits.Row{Name: "api_bodies", Unit: "bytes", Holder: limits.Peer(share), Used: uint64(has), Limit: MaxBodies / 2})
	}
}

func (b *Bodies) take(share string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > MaxBodies || b.peers[share]+n > MaxBodies/2 {
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

// LimitError is a request that reached a limit: one line for the client, and the status.
type LimitError struct {
	Status  int
	Message string
}

func (e *LimitError) Error() string { return e.Message }

// body is a request's body under its limits.
type body struct {
	io.ReadCloser
	from    *Bodies
	share   string
	limit   int64
	read    int64
	began   time.Time
	control *http.ResponseController // nil: there is no body

	// A handler that was given up may read on when the request is over.
	mu     sync.Mutex
	held   int64 // of the budget
	over   bool
	failed error
}

// limit puts a request's body under limits, SmallBody at first, and its reading under a
// deadline. release gives the memory back, when the handler has returned.
func (b *Bodies) limit(w http.ResponseWriter, r *http.Request, peer Peer) *body {
	limited := &body{ReadCloser: r.Body, from: b, share: peer.Share, limit: SmallBody, began: time.Now()}
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
	b.from.give(b.share, b.held)
	b.held, b.over = 0, true
}

// take has the budget cover the bytes read.
func (b *body) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	counts := b.read - freeBody
	if counts <= b.held {
		return true
	}
	more := counts - b.held + freeBody // in steps, not with each read
	if b.over || !b.from.take(b.share, more) {
		return false
	}
	b.held += more
	return true
}

// extend moves the deadline with what has come, as the deadline of answers moves. Only
// the connection of a test has none.
func (b *body) extend() { _ = b.control.SetReadDeadline(due(b.began, b.read)) }

// Read returns a *LimitError at a limit.
func (b *body) Read(p []byte) (int, error) {
	if b.failed != nil {
		return 0, b.failed
	}
	b.extend()
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	if err == io.EOF {
		// net/http reads on while the handler works, to see the client leave; a deadline
		// would look like that.
		_ = b.control.SetReadDeadline(time.Time{})
	}
	if b.read > b.limit {
		return b.fail(http.StatusRequestEntityTooLarge, fmt.Sprintf("expected at most %d bytes", b.limit))
	}
	if !b.take() {
		return b.fail(http.StatusServiceUnavailable,
			fmt.Sprintf("large requests at work hold %d bytes already; try again when they are done", MaxBodies/2))
	}
	return n, err
}

func (b *body) fail(status int, message string) (int, error) {
	b.failed = &LimitError{Status: status, Message: message}
	return 0, b.failed
}
