package access

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"weft/control/limits"
)

// Limits of expensive requests, such as dumps, at work at once. Further ones wait in
// turn, workPatience at most, and are refused then. Peers who may change something do
// not wait for those who only read.
const (
	maxWork      = 4 // of each of the two kinds of peers
	workPatience = 20 * time.Second
)

// Work shares out expensive requests: a peer has half of maxWork at most.
type Work struct {
	name    string                   // of its rows
	slots   [Write + 1]chan struct{} // by role: Read and Write
	shares  shares
	refused atomic.Uint64
}

// NewWork makes Work with nothing to do; name is that of its rows.
func NewWork(name string) *Work {
	w := &Work{name: name}
	for role := range w.slots {
		w.slots[role] = make(chan struct{}, maxWork)
	}
	w.shares.limit = maxWork / 2
	return w
}

// LimitRows is a limits.Source.
func (w *Work) LimitRows(emit func(limits.Row)) {
	used := len(w.slots[Read]) + len(w.slots[Write])
	emit(limits.Row{Name: w.name, Unit: "requests", Holder: limits.All(),
		Used: uint64(used), Limit: 2 * maxWork, Refused: w.refused.Load()})
}

var errBusy = errors.New("busy")

// begin waits for a turn. done ends it.
func (w *Work) begin(ctx context.Context, peer Peer) (done func(), err error) {
	ctx, stop := context.WithTimeoutCause(ctx, workPatience, errBusy)
	defer stop()
	own := w.shares.of(peer.Share)
	slots := w.slots[peer.Role]
	for i, c := range []chan struct{}{own, slots} {
		select {
		case c <- struct{}{}:
		case <-ctx.Done():
			if i == 1 {
				<-own
			}
			w.shares.leave(peer.Share)
			w.refused.Add(1)
			return nil, fmt.Errorf("%d expensive requests are at work already, of %s %d; try again", len(slots), peer.Share, len(own))
		}
	}
	return func() {
		<-slots
		<-own
		w.shares.leave(peer.Share)
	}, nil
}

type workKey struct{}

// Expensive waits for a turn among the expensive requests, until done: for the part of
// a stream that is one. Errors are one line for the client.
func Expensive(r *http.Request) (done func(), err error) {
	w, ok := r.Context().Value(workKey{}).(*Work)
	if !ok {
		return func() {}, nil // no Mux has called the handler
	}
	done, err = w.begin(r.Context(), PeerOf(r.Context()))
	if err != nil {
		return nil, &LimitError{Status: http.StatusServiceUnavailable, Message: err.Error()}
	}
	return done, nil
}

// guard has each request of h wait for its turn. The turn ends when the answer is made:
// a peer that does not read it keeps nobody waiting. For small answers only.
func (w *Work) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		peer := PeerOf(r.Context())
		peer.Role = Read
		done, err := w.begin(r.Context(), peer)
		if err != nil {
			refuse(out, http.StatusServiceUnavailable, err.Error())
			return
		}
		answer := &madeAnswer{header: out.Header(), status: http.StatusOK}
		func() {
			defer done()
			h.ServeHTTP(answer, r)
		}()
		out.WriteHeader(answer.status)
		_, _ = out.Write(answer.body.Bytes()) // a client that has gone does not want it
	})
}

// madeAnswer is an answer in memory.
type madeAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *madeAnswer) Header() http.Header         { return a.header }
func (a *madeAnswer) WriteHeader(status int)      { a.status = status }
func (a *madeAnswer) Write(p []byte) (int, error) { return a.body.Write(p) }
