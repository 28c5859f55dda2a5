// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"crypto/x509"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weft/central/pki"
	"weft/central/store"
	"weft/central/wire"
)

// readyTimeout limits how long a call waits until the central has read the store's
// revocations after its start. Then the call is refused, and the client asks another
// central.
const readyTimeout = 2 * time.Second

// Gate admits a gRPC call to weft-central if the caller's role allows it and the caller's
// certificate is not revoked. It ends a running call when its certificate is revoked.
//
// Certificates of centrals cannot be revoked: a central has the key of the CA.
type Gate struct {
	ready chan struct{} // closed once the revocations are known

	mu      sync.Mutex                  // guards the fields below
	revoked map[string]*wire.Revocation // by id in the store
	calls   map[*runningCall]struct{}
	refused uint64
	ended   uint64
}

// runningCall is a call in progress whose caller has a certificate.
type runningCall struct {
	cert *x509.Certificate
	end  context.CancelCauseFunc
}

// GateStats has the counters of a Gate.
type GateStats struct {
	Revocations int
	Refused     uint64 // calls refused because the certificate was revoked
	Ended       uint64 // running calls ended because the certificate was revoked
}

// NewGate returns a Gate, which does not know the revoked certificates yet. A gRPC call with
// a certificate, except an enrolment, therefore waits until Revocations is called for the first time.
// After readyTimeout, the Gate refuses the waiting call.
func NewGate() *Gate {
	return &Gate{ready: make(chan struct{}), revoked: map[string]*wire.Revocation{}, calls: map[*runningCall]struct{}{}}
}

// Stats returns the present counters.
func (g *Gate) Stats() GateStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return GateStats{len(g.revoked), g.refused, g.ended}
}

// Revocations passes the Gate the revocations that have changed in the store, or all of them if
// isComplete is true. The Gate ends running calls whose certificates are revoked. It is a function for
// hub.Hub.OnRevocations.
func (g *Gate) Revocations(isComplete bool, changed []store.Object) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if isComplete {
		clear(g.revoked)
	}
	for _, o := range changed {
		if r, ok := o.Message.(*wire.Revocation); ok {
			g.revoked[o.ID] = r
		} else {
			delete(g.revoked, o.ID)
		}
	}
	for c := range g.calls {
		if reason := g.check(c.cert); reason != nil {
			g.ended++
			delete(g.calls, c)
			c.end(reason)
		}
	}
	select {
	case <-g.ready:
	default:
		close(g.ready)
	}
}

// check returns an error if a certificate is revoked. The caller holds mu.
func (g *Gate) check(cert *x509.Certificate) error {
	name, role, err := pki.Identity(cert)
	if err != nil || role == pki.Central {
		return err
	}
	r := g.revoked["serial/"+cert.SerialNumber.Text(16)]
	if r == nil {
		r = g.revoked["name/"+string(role)+"/"+name]
		if r == nil || cert.NotBefore.Unix() >= r.GetValidSinceS() {
			return nil
		}
	}
	return status.Errorf(codes.PermissionDenied, "the certificate of %s %s with serial number %x was revoked at %s; enrol again with a new token",
		role, name, cert.SerialNumber, time.Unix(r.GetRevokedS(), 0).UTC().Format(time.RFC3339))
}

// enter admits a call or refuses it. An admitted call runs with the returned context.
// When the call ends, the caller of enter passes the call's error to the function leave,
// which returns the error for the client.
func (g *Gate) enter(ctx context.Context, method string) (admitted context.Context, leave func(error) error, err error) {
	if err := authorize(ctx, method); err != nil {
		return nil, nil, err
	}
	cert := certificate(ctx)
	if cert == nil || method == wire.Enrolment_Enrol_FullMethodName { // a token is enough to enrol
		return ctx, func(err error) error { return err }, nil
	}
	timer := time.NewTimer(readyTimeout)
	defer timer.Stop()
	select {
	case <-g.ready:
	case <-timer.C:
		return nil, nil, status.Error(codes.Unavailable, "this central has not read the store yet; ask another one")
	case <-ctx.Done():
		return nil, nil, status.FromContextError(ctx.Err()).Err()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.check(cert); err != nil {
		g.refused++
		return nil, nil, err
	}
	inside, end := context.WithCancelCause(ctx)
	c := &runningCall{cert, end}
	g.calls[c] = struct{}{}
	return inside, func(err error) error {
		g.mu.Lock()
		defer g.mu.Unlock()
		if _, running := g.calls[c]; !running && err != nil {
			return context.Cause(inside) // the call was ended
		}
		delete(g.calls, c)
		end(nil)
		return err
	}, nil
}

// insideStream is a gRPC stream whose context is the one from Gate.enter. This context ends when the
// caller's certificate is revoked.
type insideStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *insideStream) Context() context.Context { return s.ctx }

// Authorize returns gRPC server options. They refuse a call if mayCall does not allow
// it for the caller's role, or if the caller's certificate is revoked.
func (g *Gate) Authorize() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, r any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			inside, leave, err := g.enter(ctx, info.FullMethod)
			if err != nil {
				return nil, err
			}
			reply, err := next(inside, r)
			return reply, leave(err)
		}),
		grpc.ChainStreamInterceptor(func(s any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			inside, leave, err := g.enter(stream.Context(), info.FullMethod)
			if err != nil {
				return err
			}
			return leave(next(s, &insideStream{stream, inside}))
		}),
	}
}
