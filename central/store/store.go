// SPDX-License-Identifier: Apache-2.0

// Package store keeps the declaration and the bindings of a fleet in etcd.
//
// Apply changes the declared networks, ports and hosts, which the code calls the
// intent; a request is applied as a whole or not at all. Bind records which host has
// a port. Follow gives one reader all objects and then each change. Several stores
// may use one etcd at the same time.
//
// Comparisons inside etcd's transactions keep these invariants:
//
//   - A name, a VNI and an endpoint belong to at most one object. So does a MAC or IP
//     address in each network. For each of these values a key under guard/ names the
//     owner.
//   - The network of a port exists, and so do the hosts that its declaration names.
//   - When a binding is written, its port and its host exist. Its generation is the
//     revision of its transaction.
//   - A request with an id has an effect at most once.
package store

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// Limits of one request to etcd. DefaultOps and DefaultBytes fit an etcd of the site
// whose operator has not raised its limits.
const (
	// DefaultOps is the limit of operations in one transaction, etcd's default of
	// --max-txn-ops. A request with more operations takes several transactions, see
	// journal.go.
	DefaultOps = 128
	// DefaultBytes is the limit of bytes in one transaction. It is below etcd's
	// default of --max-request-bytes, 1.5 MiB.
	DefaultBytes = 1 << 20
)

// attemptTimeout is the time limit of one request to etcd. A member that hangs does
// not answer; the next attempt goes to another member.
const attemptTimeout = time.Second

// Store reads and writes the keys of one fleet. All methods may be called
// concurrently.
type Store struct {
	client *clientv3.Client
	ops    int // of one transaction
	bytes  int // of one transaction
	lease  requestLease

	undecodable atomic.Uint64
}

// Option changes a Store.
type Option func(*Store)

// WithLimits sets the numbers of operations and of bytes that etcd accepts in one
// transaction.
func WithLimits(ops, bytes int) Option { return func(s *Store) { s.ops, s.bytes = ops, bytes } }

// New returns a store. The caller owns the client, and closes it after the last call
// of the store.
func New(client *clientv3.Client, options ...Option) *Store {
	s := &Store{client: client, ops: DefaultOps, bytes: DefaultBytes}
	for _, o := range options {
		o(s)
	}
	return s
}

// Refused is the error of a request that the store cannot execute and that had no
// effect. Why says in one line what is wrong and what to do. After any other error of
// this package the request may have had an effect, and the caller may send the same
// request again.
type Refused struct{ Why string }

func (r *Refused) Error() string { return r.Why }

func refusedf(format string, args ...any) error { return &Refused{Why: fmt.Sprintf(format, args...)} }

// Kind is a kind of object.
type Kind uint8

// Kinds of objects, each with the type of its Object.Message.
const (
	KindNet    Kind = iota + 1 // *wire.Net
	KindPort                   // *wire.Port
	KindHost                   // *wire.Host
	KindBind                   // *wire.Bind; ID is the port's
	KindStatus                 // *wire.HostStatus; ID is the host's
)

// Object is one stored object.
type Object struct {
	Kind Kind
	ID   string
	// Message is nil if the object was deleted. Several readers share a message, so
	// nobody may change it.
	Message proto.Message
	// Revision is the revision of the transaction that wrote or deleted the object.
	// For a binding it is the binding's generation.
	Revision int64
}

// Sink receives what Follow reads; all calls come from one goroutine. Revisions only
// grow, except at a Reset after etcd was restored from an older backup.
type Sink interface {
	// Reset replaces all objects of the sink. Networks come first, then hosts, ports,
	// bindings and status.
	Reset(revision int64, objects []Object)
	// Change has all objects that were changed in one revision, or all that were
	// changed since the last call, up to this revision. Each object comes once; the
	// order has no meaning.
	Change(revision int64, objects []Object)
	// Progress reports that there are no further changes up to this revision.
	Progress(revision int64)
}

// BindRequest asks the store to bind a port to a host. If the host is the declared
// target of a move (move_to), the same transaction completes the move: the
// declaration then names this host as the port's only one.
type BindRequest struct {
	Port     string // id
	Host     string // id
	Endpoint []byte // IP address of the host's VXLAN endpoint
	// Expected is the generation of the binding that the caller knows; 0: the port is
	// not bound. If the stored generation differs, the request is refused.
	Expected int64
	// If Release is true, the request removes the binding of the port to the host, if
	// there is one.
	Release bool
}

// BindResult has the generation of a binding or an error, which is a *Refused or
// perhaps temporary.
type BindResult struct {
	Generation int64
	Err        error
}

// API has the methods of a Store that the hub and the admin service use.
type API interface {
	Apply(ctx context.Context, request *wire.ChangeRequest) (revision int64, err error)
	Bind(ctx context.Context, requests []BindRequest) []BindResult
	PutStatus(ctx context.Context, status []*wire.HostStatus) error
	Follow(ctx context.Context, sink Sink) error
}

var _ API = (*Store)(nil)
