// SPDX-License-Identifier: Apache-2.0

// Package store keeps the declaration and the bindings of a fleet in etcd.
//
// Intent (networks, ports, hosts) changes by Apply: a whole request or nothing. Bind
// says where ports are. Follow copies everything to one reader and then each change.
// Nothing here is specific to one hub: several stores may use one etcd at once.
//
// Invariants, each held by comparisons inside etcd's transactions:
//
//   - A name, a VNI, an endpoint, and in a network a MAC or IP address belongs to one
//     object. A key under guard/ holds it and names the owner.
//   - A port's network exists, and so do the hosts that it names.
//   - A binding's port and host existed when it was written. Its generation is the
//     revision of its transaction.
//   - A request id has an effect at most once.
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

// Limits of a transaction. An etcd that is not embedded has the first two unless its
// operator raised them.
const (
	// DefaultOps is etcd's default of --max-txn-ops. A larger request takes several
	// transactions, see journal.go.
	DefaultOps = 128
	// DefaultBytes stays below etcd's default of --max-request-bytes, 1.5 MiB.
	DefaultBytes = 1 << 20
)

// attemptTimeout bounds one request to etcd. A member that hangs answers nothing; the
// next attempt goes to another member.
const attemptTimeout = time.Second

// Store reads and writes one fleet's keys. All methods may be used concurrently.
type Store struct {
	client *clientv3.Client
	ops    int // of one transaction
	bytes  int // of one transaction
	lease  requestLease

	undecodable atomic.Uint64
}

// Option changes a Store.
type Option func(*Store)

// WithLimits says how many operations and bytes etcd accepts in one transaction.
func WithLimits(ops, bytes int) Option { return func(s *Store) { s.ops, s.bytes = ops, bytes } }

// New makes a store. The caller owns the client and closes it after the last call.
func New(client *clientv3.Client, options ...Option) *Store {
	s := &Store{client: client, ops: DefaultOps, bytes: DefaultBytes}
	for _, o := range options {
		o(s)
	}
	return s
}

// Refused reports a request that cannot be done as it is: one line that names what is
// wrong and what to do. The request had no effect. Every other error of this package
// may be temporary; the request may then have had an effect, and the same request can
// be sent again.
type Refused struct{ Why string }

func (r *Refused) Error() string { return r.Why }

func refusedf(format string, args ...any) error { return &Refused{Why: fmt.Sprintf(format, args...)} }

// Kind is a kind of object.
type Kind uint8

// The kinds of objects, with the type of Object.Message.
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
	// Message is nil if the object was deleted. Messages are shared; nobody changes them.
	Message proto.Message
	// Revision is the revision of the transaction that wrote or deleted the object; of a
	// binding it is the generation.
	Revision int64
}

// Sink takes what Follow reads, from one goroutine. Revisions only grow, except at a
// Reset after etcd was restored from an older backup.
type Sink interface {
	// Reset replaces everything. Networks come first, then hosts, ports, bindings and
	// status.
	Reset(revision int64, objects []Object)
	// Change has all objects that changed in one revision, or the sum of the changes up
	// to this revision, in any order, each once.
	Change(revision int64, objects []Object)
	// Progress says that nothing else changed up to the revision.
	Progress(revision int64)
}

// BindRequest asks that a port is bound to a host. If the host is the port's move_to,
// the same transaction completes the move: the host becomes the port's only host.
type BindRequest struct {
	Port     string // id
	Host     string // id
	Endpoint []byte // IP address of the host's VXLAN endpoint
	// Expected is the generation that the caller saw; 0: unbound.
	Expected int64
	// Release removes the binding instead, if Host has it.
	Release bool
}

// BindResult has the generation of a binding, or the error: a *Refused, or one that
// may be temporary.
type BindResult struct {
	Generation int64
	Err        error
}

// API is what the hub and the admin service use of a Store.
type API interface {
	Apply(ctx context.Context, request *wire.ChangeRequest) (revision int64, err error)
	Bind(ctx context.Context, requests []BindRequest) []BindResult
	PutStatus(ctx context.Context, status []*wire.HostStatus) error
	Follow(ctx context.Context, sink Sink) error
}

var _ API = (*Store)(nil)
