// SPDX-License-Identifier: Apache-2.0

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

// Limits of expensive requests in progress, such as dumps. A request over a limit waits at most
// workPatience and is then refused. A request of a peer with role Write never waits for requests of
// peers with role Read.
const (
	maxWork      = 4 // for each of the roles Read and Write
	workPatience = 20 * time.Second
)

// Work limits the expensive requests in progress to maxWork for each role. One client may have half as
// many.
type Work struct {
	name    string                   // name of the limit that `weft show limits` shows
	slots   [Write + 1]chan struct{} // semaphores by role: Read and Write
	shares  shares
	refused atomic.Uint64
}

// newWork returns a Work without a request. name is the name of the limit that `weft show limits`
// shows.
func newWork(name string) *Work {
	w := &Work{name: name}
	for role := range w.slots {
		w.slots[role] = make(chan struct{}, maxWork)
	}
	w.shares.limit = maxWork / 2
	return w
}

// LimitRows emits the row of `weft show limits` about expensive requests in progress.
func (w *Work) LimitRows(emit func(limits.Row)) {
	used := len(w.slots[Read]) + len(w.slots[Write])
	emit(limits.Row{Name: w.name, Unit: "requests", Holder: limits.All(),
		Used: uint64(used), Limit: 2 * maxWork, Refused: w.refused.Load()})
}

var errBusy = errors.New("busy")

func (w *Work) begin(ctx context.Context, peer Peer) (release func(), err error) {
	ctx, stop := context.WithTimeoutCause(ctx, workPatience, errBusy)
	defer stop()
	own := w.shares.semaphore(peer.Share)
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
			return nil, fmt.Errorf("%d expensive requests are in progress already, %s has %d; try again", len(slots), peer.Share, len(own))
		}
	}
	return func() {
		<-slots
		<-own
		w.shares.leave(peer.Share)
	}, nil
}

type workKey struct{}

// Expensive waits until the limits of expensive requests allow this one. The request then counts as
// expensive until release is called. A stream calls Expensive only for the objects that exist when it
// begins. An error is one line for the client.
func Expensive(r *http.Request) (release func(), err error) {
	w, ok := r.Context().Value(workKey{}).(*Work)
	if !ok {
		return func() {}, nil // the handler was not called by a Mux
	}
	release, err = w.begin(r.Context(), PeerOf(r.Context()))
	if err != nil {
		return nil, &LimitError{Status: http.StatusServiceUnavailable, Message: err.Error()}
	}
	return release, nil
}

// guard returns a handler that calls h while the request counts as an expensive request in progress.
// It sends the response after h has returned, so that slow readers do not delay other requests.
// Responses must be small, because they are kept in memory.
func (w *Work) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(response http.ResponseWriter, r *http.Request) {
		peer := PeerOf(r.Context())
		peer.Role = Read
		done, err := w.begin(r.Context(), peer)
		if err != nil {
			refuse(response, http.StatusServiceUnavailable, err.Error())
			return
		}
		answer := &madeAnswer{header: response.Header(), status: http.StatusOK}
		func() {
			defer done()
			h.ServeHTTP(answer, r)
		}()
		response.WriteHeader(answer.status)
		_, _ = response.Write(answer.body.Bytes()) // error ignored: the client has closed the connection
	})
}

type madeAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *madeAnswer) Header() http.Header         { return a.header }
func (a *madeAnswer) WriteHeader(status int)      { a.status = status }
func (a *madeAnswer) Write(p []byte) (int, error) { return a.body.Write(p) }
