// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Pauses between attempts, and limits for large transactions.
const (
	retryFirst = 10 * time.Millisecond
	retryMost  = 200 * time.Millisecond
	// largeTimeout is the time limit for transactions of more than largeBytes and for
	// those of a large request, which may take long on a slow disk.
	largeTimeout = 10 * time.Second
	largeBytes   = 64 << 10
)

// temporary reports whether another attempt may succeed after the error err. A write
// that failed with such an error may have taken effect, or may still do so.
func temporary(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	var e rpctypes.EtcdError
	if errors.As(rpctypes.Error(err), &e) {
		switch e.Code() {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
			return true
		}
		return errors.Is(e, rpctypes.ErrTooManyRequests)
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return true
	}
	return false
}

// explain adds to an error what an operator can do.
func explain(err error) error {
	if errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) {
		return fmt.Errorf("the store is full: compact and defragment etcd or raise its quota, then disarm its alarm: %w", err)
	}
	return err
}

// pause waits after attempt n has failed, and waits longer for larger n. The first
// attempt is number 0. If ctx ends, pause returns the error of ctx.
func pause(ctx context.Context, n int) error {
	d := min(retryFirst<<min(n, 10), retryMost)
	t := time.NewTimer(d/2 + rand.N(d/2))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// commit tries once to commit a transaction.
func (s *Store) commit(ctx context.Context, timeout time.Duration, ifs []clientv3.Cmp, then []clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return s.client.Txn(ctx).If(ifs...).Then(then...).Commit()
}

// read repeats a transaction until it succeeds. The transaction may contain only
// reads, and puts that are harmless if they happen twice.
func (s *Store) read(ctx context.Context, ops []clientv3.Op) (*clientv3.TxnResponse, error) {
	for n := 0; ; n++ {
		// Later attempts have a longer time limit, because the member may be slow and
		// not dead.
		r, err := s.commit(ctx, attemptTimeout*time.Duration(max(1, n-2)), nil, ops)
		if err == nil {
			return r, nil
		}
		if !temporary(err) {
			return nil, explain(err)
		}
		if pause(ctx, n) != nil {
			return nil, fmt.Errorf("etcd does not answer: %w", err)
		}
	}
}

// requestLease has the current lease for the keys under request/. Many requests share
// a lease, because each new lease costs etcd a write.
type requestLease struct {
	mu    sync.Mutex
	id    clientv3.LeaseID
	fresh time.Time // time at which etcd granted the lease
}

// The store remembers a request id for at least requestTTL. New request ids share a
// lease until the lease is leaseShared old.
const (
	requestTTL  = time.Hour
	leaseShared = 10 * time.Minute
)

func (s *Store) requestLease(ctx context.Context) (clientv3.LeaseID, error) {
	l := &s.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.id != 0 && time.Since(l.fresh) < leaseShared {
		return l.id, nil
	}
	for n := 0; ; n++ {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		start := time.Now()
		r, err := s.client.Grant(attempt, int64((requestTTL+leaseShared)/time.Second))
		cancel()
		if err == nil {
			l.id, l.fresh = r.ID, start
			return l.id, nil
		}
		if !temporary(err) {
			return 0, explain(err)
		}
		if pause(ctx, n) != nil {
			return 0, fmt.Errorf("etcd grants no lease: %w", err)
		}
	}
}

// forgetLease makes the next request ask etcd for a new lease, because this one does
// not exist any more.
func (s *Store) forgetLease(id clientv3.LeaseID) {
	s.lease.mu.Lock()
	defer s.lease.mu.Unlock()
	if s.lease.id == id {
		s.lease.id = 0
	}
}
