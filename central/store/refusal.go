// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
)

// Refused is the error for a request that is not allowed. Its text is one line that
// says what is wrong and what to do. The request has changed nothing. After any other
// error of this package, the request may have taken effect, and the caller may send the
// same request again.
type Refused struct {
	Why    string
	Reason Reason
	// format and args are the arguments of fmt.Sprintf that make Why. Some args may be of the type
	// mention.
	format string
	args   []any
}

func (r *Refused) Error() string { return r.Why }

// Reason is the reason for which the store has refused a request.
type Reason uint8

// The reasons for a Refused.
const (
	Invalid   Reason = iota // the request itself is wrong
	NotFound                // the request names an object that is not declared
	Duplicate               // a name, number or address belongs to another object
	InUse                   // an object to delete is used by another one
	Changed                 // the declaration is not in the state that the request expects
)

func refusedf(format string, args ...any) error { return refuse(Invalid, format, args...) }

func refuse(reason Reason, format string, args ...any) error {
	return &Refused{Why: fmt.Sprintf(format, args...), Reason: reason, format: format, args: args}
}

// mention is an argument of an error text: an object whose name the store does not know when it makes
// the text. Ids are mostly random, so nameMentions later replaces the id in the text by the name.
type mention struct {
	kind, id string // kind is a key of noun
	name     string // "": not known
}

func (m mention) String() string {
	if m.name != "" {
		return noun[m.kind] + " " + m.name
	}
	return "the " + noun[m.kind] + " of id " + m.id
}

func (m mention) key() string { return Prefix + m.kind + "/" + m.id }

// nameMentions adds the names of objects to the text of a Refused. If the request sets the object, this
// is the name in the request, otherwise the stored name. If the store does not answer, the text has
// only ids. Errors of other types are returned unchanged.
func (s *Store) nameMentions(ctx context.Context, err error, objects []*target) error {
	var refused *Refused
	if !errors.As(err, &refused) || !slices.ContainsFunc(refused.args, isMention) {
		return err
	}
	args := slices.Clone(refused.args)
	for i, arg := range args {
		m, ok := arg.(mention)
		if !ok {
			continue
		}
		if m.name = givenName(m, objects); m.name == "" {
			m.name = s.storedName(ctx, m)
		}
		args[i] = m
	}
	return &Refused{Why: fmt.Sprintf(refused.format, args...), Reason: refused.Reason, format: refused.format, args: args}
}

func isMention(arg any) bool {
	_, ok := arg.(mention)
	return ok
}

// givenName returns the name of the object in the request. It returns "" if the request does not set
// it.
func givenName(m mention, objects []*target) string {
	for _, w := range objects {
		if w.kind == m.kind && w.id == m.id && w.message != nil {
			return nameIn(w.message)
		}
	}
	return ""
}

// storedName returns the name of the stored object, or "". It asks only one member of etcd, so the name
// may be out of date.
func (s *Store) storedName(ctx context.Context, m mention) string {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	r, err := s.kv.Get(ctx, m.key(), clientv3.WithSerializable())
	if err != nil || len(r.Kvs) == 0 {
		return ""
	}
	o, _, err := decode(r.Kvs[0].Key, r.Kvs[0].Value, false, 0)
	if err != nil {
		return ""
	}
	return nameIn(o.Message)
}

func nameIn(message proto.Message) string {
	if named, ok := message.(interface{ GetName() string }); ok {
		return named.GetName()
	}
	return ""
}
