// SPDX-License-Identifier: Apache-2.0

// Package store keeps the declaration and the bindings of a fleet in etcd.
//
// The declaration consists of networks, groups, ports and hosts. The method Apply changes the
// declaration by requests, each of which takes effect completely or not at all. The
// method Bind stores the host of a port. The method Follow passes all objects and then
// every change to one reader. No store has a special role: several stores in several
// processes may use one etcd at the same time.
//
// The comparisons in etcd's transactions guarantee the following:
//
//   - A name, a VNI or a tunnel endpoint belongs to only one object of the fleet, and a
//     MAC or IP address to only one object of a network. A key under guard/ names the
//     owner.
//   - The network of a port exists, and so do the hosts and groups that the port names.
//   - The port and the host of a binding existed when the binding was written. The
//     generation of a binding is the revision of the transaction that wrote it.
//   - A request id takes effect at most once.
package store

import (
	"context"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// Limits of a transaction, which a separate etcd accepts by default. The operator of etcd can raise
// both.
const (
	// DefaultOps is the default of etcd's option --max-txn-ops. A request with more
	// operations takes several transactions (see journal.go).
	DefaultOps = 128
	// DefaultBytes is the limit of a transaction's size. It is below 1.5 MiB, the
	// default of etcd's option --max-request-bytes.
	DefaultBytes = 1 << 20
)

// attemptTimeout limits the first attempt at a request to etcd. After it, the store sends the request
// to another member. memberTimeout is the limit if the member is in this process, as there is no other
// member then. Such an attempt also ends when etcd elects a new leader.
const (
	attemptTimeout = time.Second
	memberTimeout  = 2 * time.Second
)

// Store reads and writes the keys of one fleet. Its methods are safe for concurrent
// use.
type Store struct {
	client *clientv3.Client
	// kv executes transactions, and watcher executes watches. Both are the client, or make function
	// calls to a member in this process.
	kv      clientv3.KV
	watcher clientv3.Watcher
	// local means that the member of etcd is in this process. The first attempt of a
	// change then reads this member's data without asking the other members. The data
	// may be old; the comparisons in the transaction detect this.
	local bool
	// readLocal reads from the etcd member in this process. If it is nil, all reads are transactions of
	// kv.
	readLocal localReader
	ops       int // limit of operations in one transaction
	bytes     int // limit of the size of one transaction
	lease     requestLease
	requests  requests
	// leaderChanged returns a channel that is closed when the member in this process has a
	// new leader; nil: the member is in another process.
	leaderChanged func() <-chan struct{}

	members *members
	// waiting records since when another store's large request has made no progress.
	waiting writerSeen

	waitingHost func(p *wire.Port) (host string) // see SetWaiting; nil: none known
	boundAtOnce atomic.Uint64
	undecodable atomic.Uint64
}

// Option sets an option of a new Store.
type Option func(*Store)

// WithLimits sets the largest number of operations and of bytes in one transaction.
// etcd must accept transactions of this size.
func WithLimits(ops, bytes int) Option { return func(s *Store) { s.ops, s.bytes = ops, bytes } }

// New returns a Store that uses the client. The Store sets the endpoint of the client, and changes it
// after failures. The caller closes the client after the last call of the Store.
func New(client *clientv3.Client, options ...Option) *Store {
	s := &Store{client: client, kv: client, watcher: client, ops: DefaultOps, bytes: DefaultBytes, members: newMembers(client)}
	for _, o := range options {
		o(s)
	}
	return s
}

// Kind is a kind of object.
type Kind uint8

// Kinds of objects. The comment of each kind names the type of Object.Message.
const (
	KindNet        Kind = iota + 1 // *wire.Net
	KindPort                       // *wire.Port
	KindHost                       // *wire.Host
	KindBind                       // *wire.Bind; ID is the port's
	KindStatus                     // *wire.HostStatus; ID is the host's
	KindRevocation                 // *wire.Revocation
	KindGroup                      // *wire.Group
)

// Object is a stored object, or the deletion of one.
type Object struct {
	Kind Kind
	ID   string
	// Message is nil if the object was deleted. Several goroutines share a message, so
	// it must not be modified.
	Message proto.Message
	// Revision is the etcd revision of the transaction that wrote or deleted the
	// object. For a binding, it is also the generation.
	Revision int64
}

// Sink receives objects from Follow. Only one goroutine calls its methods. Revisions
// increase from call to call. Only a Reset after a restore of etcd from a backup may
// have a lower revision.
type Sink interface {
	// Reset passes the full list of objects, which replaces all earlier objects.
	// Networks come first, followed by hosts, groups, ports, bindings, status and revocations.
	Reset(revision int64, objects []Object)
	// Change passes the objects that have changed since the last call, each once and in
	// any order. Usually the changes belong to one revision, sometimes to several.
	Change(revision int64, objects []Object)
	// Progress reports that no object has changed between the last call and this
	// revision.
	Progress(revision int64)
}

// BindRequest is a request to store or to delete a binding, the record of the host on which a port is.
// If the port's declaration names the host in move_to, the binding completes the move: the declaration
// then names only this host.
type BindRequest struct {
	Port     string // id
	Host     string // id
	Endpoint []byte // IP address of the host's VXLAN endpoint
	// Expected is the generation of the port's current binding as the caller knows
	// it, or 0 if the port is not bound.
	Expected int64
	// Release is true for a request to delete the binding, if the port is bound to Host.
	Release bool
}

// BindResult is the result of a BindRequest: the generation of the binding, or an
// error. The error is a *Refused, or may be temporary.
type BindResult struct {
	Generation int64
	Err        error
}

// API has the methods of a Store that the hub and the service Admin use.
type API interface {
	Apply(ctx context.Context, request *wire.ChangeRequest) (revision int64, err error)
	Bind(ctx context.Context, requests []BindRequest) []BindResult
	PutStatus(ctx context.Context, status []*wire.HostStatus) error
	Follow(ctx context.Context, sink Sink) error
}

var _ API = (*Store)(nil)
