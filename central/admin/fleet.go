// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"weft/central/store"
	"weft/central/wire"
)

// Sync implements wire.PeerServer. It waits until the hosts that are connected to this
// central have applied a revision.
func (p *peers) Sync(ctx context.Context, r *wire.SyncRequest) (*wire.SyncReply, error) {
	hosts, err := p.s.Hub.Sync(ctx, r.GetRevision())
	if err != nil {
		return nil, failure(err)
	}
	return &wire.SyncReply{Revision: r.GetRevision(), Hosts: uint32(len(hosts))}, nil
}

// Sessions implements wire.PeerServer. It returns the hosts that are connected to this central.
func (p *peers) Sessions(context.Context, *wire.SessionsRequest) (*wire.SessionsReply, error) {
	return &wire.SessionsReply{Sessions: p.s.Hub.Sessions()}, nil
}

// Waiting implements wire.PeerServer. It sends the ports that hosts of this central have and that are
// not declared, and then each change of this list, until the call ends.
func (p *peers) Waiting(_ *wire.WaitingRequest, stream grpc.ServerStreamingServer[wire.WaitingPorts]) error {
	return failure(p.s.Hub.AnnounceWaiting(stream.Context(), stream.Send))
}

// ask calls the function local for this central, and the function remote for each of the other
// centrals, all at the same time. It returns the results and the errors by the central's name, and the
// list of all centrals.
func ask[T any](ctx context.Context, s *Service, local func() (T, error), remote func(wire.PeerClient) (T, error)) (map[string]T, map[string]error, []*wire.Central, error) {
	centrals, err := s.Store.Centrals(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	if !slices.ContainsFunc(centrals, func(c *wire.Central) bool { return c.Name == s.Name }) {
		centrals = append(centrals, &wire.Central{Name: s.Name})
	}
	results, failed := map[string]T{}, map[string]error{}
	var mu sync.Mutex
	var done sync.WaitGroup
	for _, c := range centrals {
		done.Go(func() {
			var result T
			var err error
			if c.Name == s.Name {
				result, err = local()
			} else {
				conn, dialErr := s.dial(c.Address)
				if err = dialErr; err == nil {
					result, err = remote(wire.NewPeerClient(conn))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[c.Name] = err
			} else {
				results[c.Name] = result
			}
		})
	}
	done.Wait()
	return results, failed, centrals, nil
}

func (s *Service) sessions(ctx context.Context) (map[string][]*wire.SessionInfo, map[string]error, []*wire.Central, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	return ask(ctx, s, func() ([]*wire.SessionInfo, error) { return s.Hub.Sessions(), nil },
		func(p wire.PeerClient) ([]*wire.SessionInfo, error) {
			r, err := p.Sessions(ctx, &wire.SessionsRequest{})
			return r.GetSessions(), err
		})
}

// hostState is what a connected host has reported: its applied revision and its error text.
type hostState struct {
	central string // name of the central to which the host is connected; "": none
	applied int64  // revision
	trouble string // one line; "": none
}

// connected returns what the hosts that are connected to any central have reported, by the host's id.
func (s *Service) connected(ctx context.Context) map[string]hostState {
	hosts := map[string]hostState{}
	all, _, _, err := s.sessions(ctx)
	if err != nil {
		return hosts
	}
	for central, sessions := range all {
		for _, h := range sessions {
			if old, known := hosts[h.Host]; !known || h.Applied >= old.applied {
				hosts[h.Host] = hostState{central, h.Applied, h.Trouble}
			}
		}
	}
	return hosts
}

// Sync implements wire.AdminServer. The reply has the revision of the request, or the store's present
// one if the request has none. If the request says so, Sync first waits until the hosts that are
// connected to any central have applied this revision.
func (s *Service) Sync(ctx context.Context, r *wire.SyncRequest) (*wire.SyncReply, error) {
	revision := r.GetRevision()
	if revision == 0 {
		var err error
		if revision, err = s.Store.Revision(ctx); err != nil {
			return nil, failure(err)
		}
	}
	reply := &wire.SyncReply{Revision: revision}
	if !r.GetWaitHosts() {
		return reply, nil
	}
	began := time.Now()
	counts, failed, _, err := ask(ctx, s,
		func() (uint32, error) {
			hosts, err := s.Hub.Sync(ctx, revision)
			return uint32(len(hosts)), err
		},
		func(p wire.PeerClient) (uint32, error) {
			r, err := p.Sync(ctx, &wire.SyncRequest{Revision: revision})
			return r.GetHosts(), err
		})
	if err != nil {
		return nil, failure(err)
	}
	for central, err := range failed {
		return nil, failure(fmt.Errorf("central %s: %w", central, err))
	}
	for _, n := range counts {
		reply.Hosts += n
	}
	if s.Synced != nil {
		s.Synced(time.Since(began))
	}
	reply.Missing, err = s.missing(ctx)
	return reply, failure(err)
}

func (s *Service) missing(ctx context.Context) (names []string, err error) {
	_, hosts, err := s.Store.Objects(ctx, store.KindHost)
	if err != nil {
		return nil, err
	}
	connected := s.connected(ctx)
	for _, o := range hosts {
		if h := o.Message.(*wire.Host); connected[h.Id].central == "" {
			names = append(names, h.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Status implements wire.AdminServer. It asks all centrals. The reply has an error in place of the
// state of a central that does not answer.
func (s *Service) Status(ctx context.Context, _ *wire.StatusRequest) (*wire.StatusReply, error) {
	sessions, failed, centrals, err := s.sessions(ctx)
	if err != nil {
		return nil, failure(err)
	}
	health, err := s.Store.Health(ctx)
	stats := s.Hub.Stats()
	reply := &wire.StatusReply{
		Centrals: centrals, Revision: stats.Revision, Nets: uint32(stats.Nets), Ports: uint32(stats.Ports),
		Bound: uint32(stats.Bound), Hosts: uint32(stats.Hosts), StoreBytes: uint64(health.Bytes), StoreLimit: uint64(health.Limit),
	}
	for _, c := range centrals {
		c.Leader, c.Healthy, c.Sessions = c.Name == health.Leader, failed[c.Name] == nil, uint32(len(sessions[c.Name]))
		reply.Connected += c.Sessions
		if failed[c.Name] != nil {
			c.Trouble = failed[c.Name].Error()
		} else if err != nil && c.Name == s.Name {
			c.Healthy, c.Trouble = false, err.Error()
		} else if health.Full && c.Name == s.Name {
			c.Trouble = s.fullText()
		}
	}
	if s.Members {
		reply.Centrals = append(centrals, absent(health.Members, centrals)...)
	}
	slices.SortFunc(reply.Centrals, func(a, b *wire.Central) int { return cmp.Compare(a.Name, b.Name) })
	return reply, nil
}

// absent returns an entry for each member of etcd whose central is not registered. A
// central that has ended stays registered until its lease expires.
func absent(members []store.Member, centrals []*wire.Central) (list []*wire.Central) {
	for _, m := range members {
		switch {
		case m.Name == "":
			list = append(list, &wire.Central{Name: "?", Trouble: "joined and has never started: its member of etcd is " + m.PeerURL})
		case !slices.ContainsFunc(centrals, func(c *wire.Central) bool { return c.Name == m.Name }):
			list = append(list, &wire.Central{Name: m.Name, Trouble: "does not run, or does not reach the store: its member of etcd is " + m.PeerURL})
		}
	}
	return list
}

// fullText returns the text that tells an administrator what to do when etcd has reached its size limit.
// The text depends on whether etcd is embedded in the centrals.
func (s *Service) fullText() string {
	if s.Members {
		return "the store is full and takes no changes; the central that is full makes room within seconds, or its log says to raise quota-mib in central.toml"
	}
	return "etcd is full and takes no changes; compact and defragment it or raise its quota, then disarm its alarm NOSPACE"
}
