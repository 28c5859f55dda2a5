// SPDX-License-Identifier: Apache-2.0

// Package client sends requests to the weft-central servers (centrals) of a fleet. It tries one after
// another until a central answers. Each change has a request id, so that a request that is sent twice
// takes effect once.
package client

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"weft/central/declare"
	"weft/central/wire"
)

const (
	// connectTimeout limits the setup of a connection. The kernel completes the TCP handshake even if
	// the central's process is suspended.
	connectTimeout = 3 * time.Second
	// answerTimeout, plus perChange for each change of the request, limits the wait for
	// an answer.
	answerTimeout = 15 * time.Second
	perChange     = time.Millisecond
	// Keep-alive probes detect a dead central during a long call.
	aliveEvery, aliveWithin = 10 * time.Second, 5 * time.Second
	// unreachableRounds is how often the client tries each central before it gives up because none is
	// reachable, which takes about 3 s. A central that has just started needs a second or two before it
	// listens.
	unreachableRounds = 15
	// roundPause is the pause after the client has tried every central once. Busy centrals
	// may ask for a longer one, up to mostPause.
	roundPause = 200 * time.Millisecond
	mostPause  = 10 * time.Second
	// maxMessage is the largest accepted message in bytes.
	maxMessage = 64 << 20
	// maxAttempts is how often Change tries again because somebody else has changed the declaration
	// (the networks, ports, groups and hosts).
	maxAttempts = 30
)

// Refused is the error of a request that a central has refused. The request has changed
// nothing.
type Refused struct {
	Why      string // why the central refuses, in one line
	NotFound bool   // an object is not declared
	Changed  bool   // the declaration has changed since the expected revision
}

func (r *Refused) Error() string { return r.Why }

// Client sends requests to centrals. Only one goroutine may use it at a time.
type Client struct {
	centrals []*central // the central that answered last comes first
}

type central struct {
	address string
	conn    *grpc.ClientConn
}

// New returns a client of the centrals at these addresses (HOST:PORT or unix:PATH). It does not
// connect.
func New(addresses []string, creds credentials.TransportCredentials) (*Client, error) {
	c := &Client{}
	for _, a := range addresses {
		if err := CheckAddress(a); err != nil {
			return nil, err
		}
		target := a
		if !strings.HasPrefix(a, "unix:") {
			target = "dns:///" + a
		}
		conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds), grpc.WithDisableServiceConfig(),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: roundPause, Multiplier: 1.5, MaxDelay: time.Second}, MinConnectTimeout: connectTimeout}),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: aliveEvery, Timeout: aliveWithin}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("central %s: %w", a, err)
		}
		c.centrals = append(c.centrals, &central{a, conn})
	}
	if len(c.centrals) == 0 {
		return nil, errors.New("no central is given")
	}
	return c, nil
}

// CheckAddress returns an error if a is neither HOST:PORT nor unix:PATH.
func CheckAddress(a string) error {
	if path, unix := strings.CutPrefix(a, "unix:"); unix && path != "" {
		return nil
	}
	if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
		return fmt.Errorf("central %q: expected HOST:PORT", a)
	}
	return nil
}

// Close closes the connections to all centrals.
func (c *Client) Close() {
	for _, o := range c.centrals {
		_ = o.conn.Close() // error ignored: already closed
	}
}

// tryAll calls f with one central after another, in rounds, until a central answers. timeout limits each
// call of f.
func (c *Client) tryAll(ctx context.Context, timeout time.Duration, f func(context.Context, wire.AdminClient) error) error {
	return c.eachConn(ctx, timeout, func(ctx context.Context, conn *grpc.ClientConn) error {
		return f(ctx, wire.NewAdminClient(conn))
	})
}

func (c *Client) eachConn(ctx context.Context, timeout time.Duration, f func(context.Context, *grpc.ClientConn) error) error {
	var problems []string
	for unreachable := 0; ; {
		reached, wait := false, roundPause
		problems = problems[:0]
		for i, o := range c.centrals {
			attempt, stop := context.WithTimeout(ctx, timeout)
			err := f(attempt, o.conn)
			stop()
			if err == nil || !retryable(err) {
				c.centrals[0], c.centrals[i] = c.centrals[i], c.centrals[0]
				return explain(err)
			}
			reached = reached || o.conn.GetState() == connectivity.Ready
			problems = append(problems, fmt.Sprintf("%s: %s", o.address, plain(err)))
			wait = max(wait, min(wire.RetryIn(err), mostPause))
			if ctx.Err() != nil {
				break
			}
		}
		if !reached {
			unreachable++
		}
		if unreachable >= unreachableRounds || !sleep(ctx, wait) {
			return fmt.Errorf("no central answers: %s", strings.Join(problems, "; "))
		}
	}
}

// sleep pauses for the time wait, plus a random time of up to a quarter of it. So clients that were
// refused at the same moment do not come back together. It returns false if ctx ends first.
func sleep(ctx context.Context, wait time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait + rand.N(wait/4)):
		return true
	}
}

// retryable reports whether err means that another central, or a later attempt, may succeed.
func retryable(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	}
	return false
}

func explain(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	switch s.Code() {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.AlreadyExists, codes.NotFound, codes.OutOfRange, codes.Aborted:
		return &Refused{Why: s.Message(), NotFound: s.Code() == codes.NotFound, Changed: s.Code() == codes.Aborted}
	case codes.Unimplemented:
		return fmt.Errorf("the central does not know this request, it may be older than this weft: %s", s.Message())
	}
	return errors.New(plain(err))
}

func plain(err error) string { return PlainText(status.Convert(err).Message()) }

// PlainText returns an error's text without the phrases that gRPC adds.
func PlainText(text string) string {
	before, status, found := strings.Cut(text, "rpc error: code = ")
	if found {
		_, text, _ = strings.Cut(status, " desc = ")
	} else {
		before = ""
	}
	for _, frame := range []string{"Error while dialing: ", `desc = "transport: `, `desc = "`} {
		if _, rest, found := strings.Cut(text, frame); found {
			return before + strings.TrimSuffix(rest, `"`)
		}
	}
	return before + text
}

// Apply sends changes in one request, which takes effect as a whole or not at all. It returns the
// revision of the declaration after them. If "expected" is not 0, the central refuses the request if
// the declaration has changed after this revision.
func (c *Client) Apply(ctx context.Context, changes []*wire.Change, expected int64) (int64, error) {
	request := &wire.ChangeRequest{Id: cryptorand.Text(), Changes: changes, Expected: expected}
	timeout := answerTimeout + time.Duration(len(changes))*perChange
	ctx, stop := context.WithTimeout(ctx, 2*timeout)
	defer stop()
	var revision int64
	err := c.tryAll(ctx, timeout, func(ctx context.Context, a wire.AdminClient) error {
		r, err := a.Apply(ctx, request)
		revision = r.GetRevision()
		return err
	})
	return revision, err
}

// Change reads the declaration with readState, computes changes with plan, and applies them. If plan
// returns guarded, the changes are valid only for the declaration that was read. If somebody else has
// changed it meanwhile, Change starts again, at most maxAttempts times.
func (c *Client) Change(ctx context.Context, readState func() (*declare.Fleet, error), plan func(*declare.Fleet) (changes []*wire.Change, guarded bool, err error)) (int64, error) {
	for attempt := 1; ; attempt++ {
		f, err := readState()
		if err != nil {
			return 0, err
		}
		changes, guarded, err := plan(f)
		if err != nil || len(changes) == 0 {
			return f.Revision, err
		}
		expected := int64(0)
		if guarded {
			expected = f.Revision
		}
		revision, err := c.Apply(ctx, changes, expected)
		var refused *Refused
		if !errors.As(err, &refused) || !refused.Changed {
			return revision, err
		}
		if attempt == maxAttempts {
			return 0, fmt.Errorf("others change the declaration too often: %d attempts; try again", attempt)
		}
	}
}

// List returns the objects that the request selects, all at one revision. If the request names a network,
// only its ports and bindings are certainly at this revision; other objects may be newer.
func (c *Client) List(ctx context.Context, request *wire.ListRequest) (*declare.Fleet, error) {
	var parts []*wire.ListReply
	ctx, stop := context.WithTimeout(ctx, 4*answerTimeout)
	defer stop()
	err := c.tryAll(ctx, 2*answerTimeout, func(ctx context.Context, a wire.AdminClient) error {
		parts = nil
		stream, err := a.List(ctx, request)
		for err == nil {
			var part *wire.ListReply
			if part, err = stream.Recv(); err == nil {
				parts = append(parts, part)
			}
		}
		if err == io.EOF {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return declare.NewFleet(parts), nil
}

// Sync returns a reply with the given revision; 0 stands for the revision that the store has now. If
// hosts is set, it first waits until all connected hosts have applied the revision. Only ctx limits the
// time.
func (c *Client) Sync(ctx context.Context, revision int64, hosts bool) (reply *wire.SyncReply, err error) {
	err = c.tryAll(ctx, forever, func(ctx context.Context, a wire.AdminClient) error {
		reply, err = a.Sync(ctx, &wire.SyncRequest{Revision: revision, WaitHosts: hosts})
		return err
	})
	return reply, err
}

const forever = 24 * time.Hour

// Why returns whether a port, given by name or id, is reachable, and what is missing if it is not.
func (c *Client) Why(ctx context.Context, port string) (reply *wire.WhyReply, err error) {
	err = c.ask(ctx, func(ctx context.Context, a wire.AdminClient) error {
		reply, err = a.Why(ctx, &wire.WhyRequest{Port: port})
		return err
	})
	return reply, err
}

// Status returns the state of all centrals, as the central that answers knows it.
func (c *Client) Status(ctx context.Context) (reply *wire.StatusReply, err error) {
	err = c.ask(ctx, func(ctx context.Context, a wire.AdminClient) error {
		reply, err = a.Status(ctx, &wire.StatusRequest{})
		return err
	})
	return reply, err
}

func (c *Client) ask(ctx context.Context, f func(context.Context, wire.AdminClient) error) error {
	ctx, stop := context.WithTimeout(ctx, 2*answerTimeout)
	defer stop()
	return c.tryAll(ctx, answerTimeout, f)
}

// Save writes a snapshot of the store to w and returns its size in bytes. If a central fails after
// Save has written to w, Save fails too, because it cannot continue with another central.
func (c *Client) Save(ctx context.Context, w io.Writer) (size int64, err error) {
	err = c.tryAll(ctx, forever, func(ctx context.Context, a wire.AdminClient) error {
		stream, err := a.Save(ctx, &wire.SaveRequest{})
		for err == nil {
			var chunk *wire.SaveChunk
			if chunk, err = stream.Recv(); err != nil {
				break
			}
			var n int
			n, err = w.Write(chunk.GetData())
			size += int64(n)
		}
		switch {
		case err == io.EOF:
			return nil
		case size > 0: // an error without a gRPC code ends the attempts
			return fmt.Errorf("the snapshot is not complete: %s", plain(err))
		}
		return err
	})
	return size, err
}
