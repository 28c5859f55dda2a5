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
	// Why is fmt.Sprintf(format, args...). Some arguments may be mentions.
	format string
	args   []any
}

func (r *Refused) Error() string { return r.Why }

// Reason is a kind of Refused.
type Reason uint8

// The reasons.
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

// mention is an object that the text of a Refused mentions. The store often knows only its id, from a
// guard. An id is random unless the administrator has chosen it, so nameMentions adds the name.
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

// nameMentions writes the names of mentioned objects into the text of a Refused. An object of
// the request has the name that the request gives it, another one its stored name. If the store
// does not answer, the text has the ids only. Errors of other kinds are returned as they are.
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

// givenName returns the name that a request gives to a mentioned object, or "".
func givenName(m mention, objects []*target) string {
	for _, w := range objects {
		if w.kind == m.kind && w.id == m.id && w.message != nil {
			return nameIn(w.message)
		}
	}
	return ""
}

// storedName returns the name of a mentioned object, or "". It asks only one member of etcd, so the name
// may be old.
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
