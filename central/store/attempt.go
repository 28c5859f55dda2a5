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

// Pauses between attempts at a request to etcd, and limits for large transactions.
const (
	retryFirst = 10 * time.Millisecond
	retryMost  = 200 * time.Millisecond
	// largeTimeout limits the time of a transaction of more than largeBytes, and of each transaction
	// that is a part of a large request (see journal.go).
	largeTimeout = 10 * time.Second
	largeBytes   = 64 << 10
)

// temporary reports whether another attempt may succeed after this error. The failed write may still
// take effect.
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

// explain replaces the error of etcd for a full database by ErrFull, which tells the operator what to do.
func explain(err error) error {
	if errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) {
		return ErrFull
	}
	return err
}

// pause waits between two attempts at a request to etcd, longer after each attempt. n is the number of
// earlier failed attempts. If ctx ends first, pause returns its error.
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

// patience returns the time limit of the next attempt at a request to etcd. n is the number of earlier
// attempts. The limit doubles with each attempt. If it did not, a slow member of etcd would begin the
// same work again and again.
func (s *Store) patience(n int) time.Duration {
	limit := attemptTimeout
	if s.leaderChanged != nil {
		limit = memberTimeout
	}
	return min(limit<<min(n, 10), largeTimeout)
}

// attempt returns the context of one attempt at a request to etcd, which ends after timeout. If the
// member of etcd is in this process, the context also ends when the member has a new leader, because the
// request may be lost with the previous one.
func (s *Store) attempt(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	if s.leaderChanged != nil {
		changed := s.leaderChanged()
		go func() {
			select {
			case <-changed:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return ctx, cancel
}

func (s *Store) commit(ctx context.Context, timeout time.Duration, ifs []clientv3.Cmp, ops []clientv3.Op) (*clientv3.TxnResponse, error) {
	member := s.members.current()
	attempt, cancel := s.attempt(ctx, timeout)
	defer cancel()
	r, err := s.kv.Txn(attempt).If(ifs...).Then(ops...).Commit()
	if err != nil && ctx.Err() == nil && temporary(err) {
		s.members.leave(member)
	}
	return r, err
}

// members chooses the member of etcd to which the client sends its requests, and
// changes the member after a failure. The client of etcd itself would send the requests
// to all members in turn. While one member hangs, every third request would then last
// attemptTimeout, and a change needs several requests.
type members struct {
	client    *clientv3.Client
	endpoints []string // endpoints of all members

	mu sync.Mutex
	// number of the present member; modulo the number of endpoints it is the index in
	// endpoints
	number int
}

func newMembers(client *clientv3.Client) *members {
	m := &members{client: client, endpoints: client.Endpoints()}
	if len(m.endpoints) > 1 {
		m.number = rand.IntN(len(m.endpoints)) // random, so that several centrals use different members
		m.client.SetEndpoints(m.endpoints[m.number])
	}
	return m
}

// current returns the number of the present member of etcd.
func (m *members) current() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.number
}

// leave changes to the next member, unless another request that failed at the same
// member has already done so.
func (m *members) leave(member int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.endpoints) < 2 || m.number != member {
		return
	}
	m.number++
	m.client.SetEndpoints(m.endpoints[m.number%len(m.endpoints)])
}

// read executes a transaction of reads and idempotent puts, and repeats it until it
// succeeds.
func (s *Store) read(ctx context.Context, ops []clientv3.Op) (*clientv3.TxnResponse, error) {
	for n := 0; ; n++ {
		r, err := s.commit(ctx, s.patience(n), nil, ops)
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

// requestLease is an etcd lease with which keys under request/ expire. Keys of the same few seconds
// share a lease, because etcd writes to disk to grant one.
type requestLease struct {
	mu    sync.Mutex
	id    clientv3.LeaseID
	fresh time.Time // time at which etcd granted the lease
}

// A request id is remembered for at least requestTTL. New ids share a lease for the time leaseShared.
// This time is short, because etcd deletes all keys of an expired lease in one transaction.
const (
	requestTTL  = 10 * time.Minute
	leaseShared = 10 * time.Second
)

func (s *Store) requestLease(ctx context.Context) (clientv3.LeaseID, error) {
	l := &s.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.id != 0 && time.Since(l.fresh) < leaseShared {
		return l.id, nil
	}
	for n := 0; ; n++ {
		member := s.members.current()
		attempt, cancel := s.attempt(ctx, s.patience(n))
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
		if ctx.Err() == nil {
			s.members.leave(member)
		}
		if pause(ctx, n) != nil {
			return 0, fmt.Errorf("etcd grants no lease: %w", err)
		}
	}
}

// forgetLease drops a lease that etcd no longer knows, so that the next request gets a new one.
func (s *Store) forgetLease(id clientv3.LeaseID) {
	s.lease.mu.Lock()
	defer s.lease.mu.Unlock()
	if s.lease.id == id {
		s.lease.id = 0
	}
}
