// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrFull is the error for a write that etcd refuses because its database has reached
// its size limit. Reads and watches still work. The limit includes old revisions, so
// Reclaim usually makes room.
var ErrFull = errors.New("the store is full and takes no changes; weft central status says what to do")

// Health is the state of the member of etcd that a store uses, and of its cluster.
type Health struct {
	Leader       string // name of the cluster's leader
	Bytes, Limit int64  // size of the member's database, and its limit; 0: unknown
	Full         bool   // etcd refuses writes, because some member has reached its limit
	Members      []Member
}

// Member is a member of etcd.
type Member struct {
	Name    string // "": it has never started
	PeerURL string
}

// Health asks the member that the store uses.
func (s *Store) Health(ctx context.Context) (Health, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	status, err := s.status(ctx)
	if err != nil {
		return Health{}, err
	}
	h := Health{Bytes: status.DbSize, Limit: status.DbSizeQuota, Full: full(status)}
	members, err := s.client.MemberList(ctx)
	if err != nil {
		return h, err
	}
	for _, m := range members.Members {
		if m.ID == status.Leader {
			h.Leader = m.Name
		}
		h.Members = append(h.Members, Member{m.Name, strings.Join(m.PeerURLs, ",")})
	}
	return h, nil
}

func (s *Store) status(ctx context.Context) (*clientv3.StatusResponse, error) {
	endpoints := s.client.Endpoints()
	if len(endpoints) == 0 {
		return nil, errors.New("no endpoint of etcd")
	}
	return s.client.Status(ctx, endpoints[0])
}

// full reports whether a member has the alarm NOSPACE, which etcd raises at the limit of the database's
// size. The status lists alarms as texts.
func full(status *clientv3.StatusResponse) bool {
	return slices.ContainsFunc(status.Errors, func(e string) bool { return strings.Contains(e, pb.AlarmType_NOSPACE.String()) })
}

const (
	// reclaimTimeout limits the time of Reclaim, which rewrites the database.
	reclaimTimeout = 5 * time.Minute
	// reclaimedPercent is the percentage of the size limit that the database may use after Reclaim. If it
	// uses more, Reclaim does not end the alarm.
	reclaimedPercent = 90
)

// Reclaim makes room if the member that the store uses has reached its size limit. It
// deletes the old revisions, rewrites the database and ends the alarm. The member does
// not answer while it rewrites the database. Reclaim returns false if there is nothing
// to do. It returns an error if the present revision alone is too large.
//
// Reclaim handles only the embedded etcd. The operator of a separate etcd makes room
// there.
func (s *Store) Reclaim(ctx context.Context) (complete bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, reclaimTimeout)
	defer cancel()
	before, err := s.status(ctx)
	if err != nil || !full(before) {
		return false, err
	}
	alarms, err := s.client.AlarmList(ctx)
	if err != nil {
		return false, err
	}
	mine := slices.IndexFunc(alarms.Alarms, func(a *pb.AlarmMember) bool {
		return a.MemberID == before.Header.MemberId && a.Alarm == pb.AlarmType_NOSPACE
	})
	if mine < 0 {
		return false, nil // another member is full; its central calls Reclaim there
	}
	if _, err := s.client.Compact(ctx, before.Header.Revision, clientv3.WithCompactPhysical()); err != nil && !errors.Is(rpctypes.Error(err), rpctypes.ErrCompacted) {
		return false, err
	}
	if _, err := s.client.Defragment(ctx, s.client.Endpoints()[0]); err != nil {
		return false, err
	}
	after, err := s.status(ctx)
	if err != nil {
		return false, err
	}
	if after.DbSize > after.DbSizeQuota/100*reclaimedPercent {
		return false, fmt.Errorf("the declaration takes %d of %d MiB of the store; raise quota-mib in central.toml of all centrals and restart them one by one",
			after.DbSize>>20, after.DbSizeQuota>>20)
	}
	_, err = s.client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: before.Header.MemberId, Alarm: pb.AlarmType_NOSPACE})
	return err == nil, err
}
