// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"weft/central/store"
)

// binder stores in etcd on which host each port is. Such a record is a binding. Requests that arrive
// during a transaction share the next transaction. A request to delete a binding first waits for
// releasePause.
type binder struct {
	store  Store
	refuse func(s *session, port, reason string)
	log    *slog.Logger

	mu   sync.Mutex
	jobs map[string]job // by port id; a newer request replaces the queued one
	wake chan struct{}
}

// job is a request to store or to delete the binding of a port to the host of a session. session is nil
// if the request deletes a binding to an undeclared host.
type job struct {
	session *session
	request store.BindRequest
	due     time.Time // earliest time of the transaction
}

const (
	// bindBatch limits the bindings of one transaction.
	bindBatch = 512
	// bindAgain is the pause before the binder repeats requests after a temporary
	// failure. The pause doubles up to bindAgainMost with each failure, because a full
	// store may stay full for a long time.
	bindAgain, bindAgainMost = 100 * time.Millisecond, 2 * time.Second
	// releasePause is the time for which the deletion of a binding waits, so that several deletions
	// share a transaction. If the port itself is deleted in this time, as is usual when a virtual
	// machine ends, the binding needs no deletion of its own.
	releasePause = 50 * time.Millisecond
)

func newBinder(s Store, refuse func(s *session, port, reason string), log *slog.Logger) *binder {
	return &binder{store: s, refuse: refuse, log: log, jobs: map[string]job{}, wake: make(chan struct{}, 1)}
}

func bindOf(p *port, host string, endpoint []byte) store.BindRequest {
	return store.BindRequest{Port: p.id, Host: host, Endpoint: endpoint, Expected: p.generation}
}

func releaseOf(p *port) store.BindRequest {
	return store.BindRequest{Port: p.id, Host: p.bind.GetHost(), Expected: p.generation, Release: true}
}

func (b *binder) add(j job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if j.request.Release {
		j.due = time.Now().Add(releasePause)
		if old, queued := b.jobs[j.request.Port]; queued && old.request.Release {
			j.due = old.due
		}
	}
	b.jobs[j.request.Port] = j
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// drop removes a queued job that deletes the port's binding. It does nothing if the binder has already
// taken the job for a transaction.
func (b *binder) drop(port string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.jobs[port].request.Release {
		delete(b.jobs, port)
	}
}

func (b *binder) run(ctx context.Context) {
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
		case <-due.C:
		}
		pause := bindAgain
		batch, wait := b.take(time.Now())
		for ; len(batch) > 0; batch, wait = b.take(time.Now()) {
			if !b.write(ctx, batch) {
				pause = bindAgain
				continue
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, bindAgainMost)
		}
		due.Reset(wait)
	}
}

// take removes jobs for one transaction from the queue and returns them. If it finds none that is due,
// wait is the time until the first job is due.
func (b *binder) take(now time.Time) (batch []job, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wait = time.Hour
	for port, j := range b.jobs {
		if len(batch) == bindBatch {
			break
		}
		if d := j.due.Sub(now); d > 0 {
			wait = min(wait, d)
			continue
		}
		batch = append(batch, j)
		delete(b.jobs, port)
	}
	if len(b.jobs) == 0 {
		b.jobs = map[string]job{} // a new map, because a map never returns memory
	}
	return batch, wait
}

// write sends the requests of the jobs to the store in one call. It queues a job again if the store has
// failed temporarily, and returns true if there was such a job.
func (b *binder) write(ctx context.Context, batch []job) (requeued bool) {
	requests := make([]store.BindRequest, len(batch))
	for i := range batch {
		requests[i] = batch[i].request
	}
	for i, r := range b.store.Bind(ctx, requests) {
		var refused *store.Refused
		switch {
		case r.Err == nil:
		case errors.As(r.Err, &refused):
			if s := batch[i].session; s != nil {
				b.refuse(s, batch[i].request.Port, refused.Why)
			}
		default:
			if !requeued { // one log line for the whole batch, which may have hundreds of ports
				b.log.Warn("bindings are tried again", "port", batch[i].request.Port, "error", r.Err)
			}
			requeued = true
			b.retry(batch[i])
		}
	}
	return requeued
}

// retry queues a job again, unless a newer job for the same port is already queued.
func (b *binder) retry(j job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, newer := b.jobs[j.request.Port]; !newer {
		b.jobs[j.request.Port] = j
	}
}
