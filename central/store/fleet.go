// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// Keys of running centrals and of tokens. Both expire with a lease:
//
//	central/<name>   the wire.Central of a running central
//	invite/<digest>  the wire.InviteRequest of an unused token
const (
	centralPrefix = Prefix + "central/"
	invitePrefix  = Prefix + "invite/"
)

// centralTTL is the time after which the lease of a central ends if it is not renewed.
const centralTTL = 5 * time.Second

// Objects returns all objects of the selected kinds at one revision. It first waits for the end of a
// large request (see journal.go), whose parts take effect at several revisions.
func (s *Store) Objects(ctx context.Context, selected ...Kind) (revision int64, objects []Object, err error) {
	if revision, err = s.settled(ctx); err != nil {
		return 0, nil, err
	}
	for i := range kinds {
		if !slices.Contains(selected, kinds[i].kind) {
			continue
		}
		err := s.list(ctx, kinds[i].prefix, &revision, func(kv *mvccpb.KeyValue) {
			if o, ok := s.decodeOrCount(kv, false); ok {
				objects = append(objects, o)
			}
		})
		if err != nil {
			return 0, nil, err
		}
	}
	return revision, objects, nil
}

// Find returns the id of the object that the user calls "word". This is the object with this name, or
// else the object with this id. Without such an object, Find returns "". In Weft, a name always has
// precedence over an id, because people choose names and mostly leave ids to the machine.
func (s *Store) Find(ctx context.Context, kind Kind, word string) (id string, err error) {
	if _, err := s.settled(ctx); err != nil {
		return "", err
	}
	row := &kinds[slices.IndexFunc(kinds, func(k kindRow) bool { return k.kind == kind })]
	name := strings.Trim(strings.TrimPrefix(row.prefix, Prefix), "/")
	r, err := s.read(ctx, []clientv3.Op{clientv3.OpGet(nameGuard(name, word)), clientv3.OpGet(row.prefix + word)})
	if err != nil {
		return "", err
	}
	for _, kv := range r.Responses[0].GetResponseRange().Kvs {
		return string(kv.Value), nil
	}
	if len(r.Responses[1].GetResponseRange().Kvs) > 0 {
		return word, nil
	}
	return "", nil
}

// Get returns the existing objects of a kind that have one of the given ids.
func (s *Store) Get(ctx context.Context, kind Kind, ids ...string) (objects []Object, err error) {
	row := &kinds[slices.IndexFunc(kinds, func(k kindRow) bool { return k.kind == kind })]
	revision := int64(0)
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = row.prefix + id
	}
	for batch := range s.batches(keys) {
		ops := make([]clientv3.Op, len(batch))
		for i, key := range batch {
			ops[i] = clientv3.OpGet(key, clientv3.WithRev(revision))
		}
		r, err := s.read(ctx, ops)
		if err != nil {
			return nil, err
		}
		revision = r.Header.Revision
		for _, one := range r.Responses {
			for _, kv := range one.GetResponseRange().Kvs {
				if o, ok := s.decodeOrCount(kv, false); ok {
					objects = append(objects, o)
				}
			}
		}
	}
	return objects, nil
}

// OfNet returns the network with this id, its ports and their bindings, all at one
// revision. It reads no objects of other networks.
func (s *Store) OfNet(ctx context.Context, id string) (revision int64, objects []Object, err error) {
	if revision, err = s.settled(ctx); err != nil {
		return 0, nil, err
	}
	v := s.newView(false)
	v.revision = revision
	var ports []string
	if err := s.list(ctx, macGuards(id), &revision, func(kv *mvccpb.KeyValue) { ports = append(ports, string(kv.Value)) }); err != nil {
		return 0, nil, err
	}
	keys := []string{netKey(id)}
	for _, p := range ports {
		keys = append(keys, portKey(p), bindKey(p))
	}
	if err := v.load(ctx, keys); err != nil {
		return 0, nil, err
	}
	for _, k := range keys {
		if rec := v.records[k]; rec.exists {
			if o, ok := s.decodeOrCount(&mvccpb.KeyValue{Key: []byte(k), Value: rec.value, ModRevision: rec.mod}, false); ok {
				objects = append(objects, o)
			}
		}
	}
	return revision, objects, nil
}

// Revision returns the current revision of the store. If a large request (see journal.go) is taking
// effect, Revision waits for its end.
func (s *Store) Revision(ctx context.Context) (int64, error) { return s.settled(ctx) }

// settled waits until no large request (see journal.go) is in progress, and returns the revision.
func (s *Store) settled(ctx context.Context) (int64, error) {
	for {
		r, err := s.read(ctx, []clientv3.Op{clientv3.OpGet(writerKey)})
		if err != nil {
			return 0, err
		}
		kvs := r.Responses[0].GetResponseRange().Kvs
		if len(kvs) == 0 {
			return r.Header.Revision, nil
		}
		w, err := decodeWriter(kvs[0].Value, kvs[0].ModRevision)
		if err != nil {
			return 0, err
		}
		if !w.Committed {
			return r.Header.Revision, nil
		}
		if err := s.awaitWriter(ctx); err != nil {
			return 0, err
		}
	}
}

// Invite stores an invitation, which is valid for the time lifetime. secretDigest is the digest
// of the token's secret.
func (s *Store) Invite(ctx context.Context, secretDigest string, invitation *wire.InviteRequest, lifetime time.Duration) error {
	if err := checkWord("the name in the certificate", invitation.GetName()); err != nil {
		return err
	}
	value, err := encode(invitation)
	if err != nil {
		return err
	}
	lease, err := s.client.Grant(ctx, int64(max(1, lifetime/time.Second)))
	if err != nil {
		return explain(err)
	}
	_, err = s.read(ctx, []clientv3.Op{clientv3.OpPut(invitePrefix+secretDigest, string(value), clientv3.WithLease(lease.ID))})
	return err
}

// TakeInvitation returns an invitation and deletes it. If the result is lost, the token
// cannot be used any more.
func (s *Store) TakeInvitation(ctx context.Context, digest string) (*wire.InviteRequest, error) {
	key := invitePrefix + digest
	r, err := s.read(ctx, []clientv3.Op{clientv3.OpGet(key)})
	if err != nil {
		return nil, err
	}
	unknown := refuse(NotFound, "the token is not known: it was used, has expired, or is another fleet's; ask for a new one")
	kvs := r.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return nil, unknown
	}
	var invitation wire.InviteRequest
	if err := proto.Unmarshal(kvs[0].Value, &invitation); err != nil {
		return nil, err
	}
	taken, err := s.commit(ctx, attemptTimeout, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", kvs[0].ModRevision)},
		[]clientv3.Op{clientv3.OpDelete(key)})
	if err != nil {
		return nil, explain(err)
	}
	if !taken.Succeeded {
		return nil, unknown
	}
	return &invitation, nil
}

// Register keeps a central in the list that Centrals returns, until ctx ends.
func (s *Store) Register(ctx context.Context, central *wire.Central) error {
	value, err := encode(central)
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		// The loop ignores the error, because any error may be temporary. For example, other centrals make
		// room in a full store.
		_ = s.keepRegistered(ctx, centralPrefix+central.GetName(), string(value))
		if pause(ctx, n) != nil {
			return ctx.Err()
		}
	}
}

// keepRegistered writes the key with a lease, and renews the lease until the lease is lost or ctx ends.
func (s *Store) keepRegistered(ctx context.Context, key, value string) error {
	lease, err := s.client.Grant(ctx, int64(centralTTL/time.Second))
	if err != nil {
		return err
	}
	if _, err := s.read(ctx, []clientv3.Op{clientv3.OpPut(key, value, clientv3.WithLease(lease.ID))}); err != nil {
		return err
	}
	alive, err := s.client.KeepAlive(ctx, lease.ID)
	if err != nil {
		return err
	}
	for range alive {
	}
	if ctx.Err() != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
		defer cancel()
		_, _ = s.client.Revoke(end, lease.ID)
	}
	return nil
}

// Centrals returns the registered centrals, sorted by name. A central that has died is in the list for up
// to centralTTL.
func (s *Store) Centrals(ctx context.Context) ([]*wire.Central, error) {
	var objects []*wire.Central
	var revision int64
	err := s.list(ctx, centralPrefix, &revision, func(kv *mvccpb.KeyValue) {
		c := &wire.Central{}
		if proto.Unmarshal(kv.Value, c) == nil {
			objects = append(objects, c)
		}
	})
	return objects, err
}

// AddMember adds a new member to the cluster before the member starts. It returns the
// list of members for EmbedConfig.Cluster. The new member has no vote until
// PromoteMembers gives it one.
func (s *Store) AddMember(ctx context.Context, name, peerURL string) (cluster string, err error) {
	var added *clientv3.MemberAddResponse
	for n := 0; ; n++ {
		added, err = s.client.MemberAddAsLearner(ctx, []string{peerURL})
		// etcd refuses a further change of members for some seconds. It also accepts only one member
		// without a vote at a time. PromoteMembers gives that member its vote.
		busy := errors.Is(rpctypes.Error(err), rpctypes.ErrUnhealthy) || errors.Is(rpctypes.Error(err), rpctypes.ErrTooManyLearners)
		if err == nil || !busy || pause(ctx, n) != nil {
			break
		}
	}
	if err != nil {
		return "", fmt.Errorf("etcd takes no member at %s: %w", peerURL, err)
	}
	var objects []string
	for _, m := range added.Members {
		n := m.Name
		if m.ID == added.Member.ID {
			n = name
		}
		for _, u := range m.PeerURLs {
			objects = append(objects, n+"="+u)
		}
	}
	return strings.Join(objects, ","), nil
}

// PromoteMembers gives a vote to each new member that has received the leader's data.
func (s *Store) PromoteMembers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	list, err := s.client.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, m := range list.Members {
		if m.IsLearner {
			if _, err := s.client.MemberPromote(ctx, m.ID); err != nil {
				return err
			}
		}
	}
	return nil
}
