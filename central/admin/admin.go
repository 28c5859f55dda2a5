// SPDX-License-Identifier: Apache-2.0

// Package admin implements three gRPC services of weft-central: Admin for
// administrators, Peer for other centrals, and Enrolment for new certificates.
// Authorize checks the role in the caller's certificate.
package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weft/central/hub"
	"weft/central/pki"
	"weft/central/store"
	"weft/central/wire"
)

const (
	// listPage is the number of objects in one message. An object has at most 6 KiB,
	// and gRPC's limit is 4 MiB.
	listPage = 500
	// saveChunk is the number of bytes of a backup in one gRPC message.
	saveChunk = 256 << 10
	// peerTimeout limits a gRPC call to another central. The calls Sync and Waiting may take longer.
	peerTimeout = 2 * time.Second
	// Without a given lifetime, a token is valid for defaultInvite. The largest lifetime is maxInvite.
	defaultInvite = time.Hour
	maxInvite     = 7 * 24 * time.Hour
)

// Config has the parts of weft-central that a Service uses, such as the store and the CA.
type Config struct {
	Name  string // name of this central
	Store *store.Store
	Hub   *hub.Hub
	CA    *pki.CA // certificate authority of the fleet; nil: the site's own CA signs certificates
	// Members is true if the centrals run an embedded etcd. A new central then also becomes a member of
	// etcd.
	Members bool
	// Dial connects to another central; nil if there are none.
	Dial func(address string) (grpc.ClientConnInterface, error)
	// Save returns a reader of a backup of the store.
	Save func(ctx context.Context) (io.ReadCloser, error)
	// Synced, if not nil, is called after each Sync that has waited for hosts, with the time that it
	// waited.
	Synced func(time.Duration)
	Log    *slog.Logger
}

// Service implements the gRPC service Admin. The services Peer and Enrolment share its
// state.
type Service struct {
	wire.UnimplementedAdminServer
	Config
}

// New returns a Service. Its method Register adds the gRPC services to a server.
func New(c Config) *Service { return &Service{Config: c} }

// peers implements the gRPC service Peer. It is a type of its own, because the services Admin and Peer
// both have a method Sync.
type peers struct {
	wire.UnimplementedPeerServer
	s *Service
}

// Register registers the three services with a gRPC server.
func (s *Service) Register(server *grpc.Server) {
	wire.RegisterAdminServer(server, s)
	wire.RegisterPeerServer(server, &peers{s: s})
	wire.RegisterEnrolmentServer(server, &enrolment{s: s})
}

// codeOf has the gRPC code of each reason for which the store refuses a request.
var codeOf = map[store.Reason]codes.Code{
	store.Invalid: codes.InvalidArgument, store.NotFound: codes.NotFound, store.Duplicate: codes.AlreadyExists,
	store.InUse: codes.FailedPrecondition, store.Changed: codes.Aborted,
}

// failure converts an error to an error with a gRPC code. The code of a refused request
// makes clients give up. Other errors may be temporary: their code makes clients try
// again.
func failure(err error) error {
	var refused *store.Refused
	var busy *store.Busy
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return status.Error(codeOf[refused.Reason], refused.Why)
	case errors.As(err, &busy):
		return wire.BusyError(busy.Error(), busy.RetryIn)
	case errors.Is(err, store.ErrFull):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unavailable, err.Error())
}

// Apply implements wire.AdminServer. It applies a request to change declared objects as a whole or not
// at all.
func (s *Service) Apply(ctx context.Context, r *wire.ChangeRequest) (*wire.ChangeReply, error) {
	revision, err := s.Store.Apply(ctx, r)
	if err != nil {
		return nil, failure(err)
	}
	s.Log.Info("intent changed", "by", caller(ctx), "changes", len(r.GetChanges()), "revision", revision, "request", r.GetId())
	return &wire.ChangeReply{Revision: revision}, nil
}

// List implements wire.AdminServer. It sends the objects of the requested kinds, in pages of listPage.
func (s *Service) List(r *wire.ListRequest, stream grpc.ServerStreamingServer[wire.ListReply]) error {
	ctx := stream.Context()
	all := !r.GetNets() && !r.GetPorts() && !r.GetHosts() && !r.GetBinds() && !r.GetStatus() && !r.GetGroups()
	wanted := map[store.Kind]bool{
		store.KindNet: all || r.GetNets(), store.KindPort: all || r.GetPorts(), store.KindHost: all || r.GetHosts(),
		store.KindBind: all || r.GetBinds(), store.KindStatus: all || r.GetStatus(), store.KindGroup: all || r.GetGroups(),
	}
	revision, objects, err := s.read(ctx, wanted, r.GetNet())
	if err != nil {
		return failure(err)
	}
	var connected map[string]hostState
	if wanted[store.KindStatus] {
		connected = s.connected(ctx)
	}
	objects = slices.DeleteFunc(objects, func(o store.Object) bool { return !wanted[o.Kind] })
	for first := true; first || len(objects) > 0; first = false {
		page := objects[:min(listPage, len(objects))]
		objects = objects[len(page):]
		if err := stream.Send(reply(revision, page, connected)); err != nil {
			return err
		}
	}
	return nil
}

// read reads the objects of the selected kinds at one revision. If net is not empty, it
// is the name or id of a network, and read returns only ports and bindings of this
// network. The objects of other kinds may then be of a later revision.
func (s *Service) read(ctx context.Context, selected map[store.Kind]bool, net string) (revision int64, objects []store.Object, err error) {
	var kinds []store.Kind
	for k, want := range selected {
		if want && (net == "" || k != store.KindPort && k != store.KindBind) {
			kinds = append(kinds, k)
		}
	}
	if net == "" {
		return s.Store.Objects(ctx, kinds...)
	}
	id, err := s.Store.Find(ctx, store.KindNet, net)
	if err == nil && id == "" {
		err = &store.Refused{Why: fmt.Sprintf("there is no network %s; list the networks", net), Reason: store.NotFound}
	}
	if err != nil {
		return 0, nil, err
	}
	revision, objects, err = s.Store.OfNet(ctx, id)
	if err != nil || len(kinds) == 0 {
		return revision, objects, err
	}
	objects = slices.DeleteFunc(objects, func(o store.Object) bool { return o.Kind == store.KindNet })
	_, others, err := s.Store.Objects(ctx, kinds...)
	return revision, append(objects, others...), err
}

func reply(revision int64, page []store.Object, connected map[string]hostState) *wire.ListReply {
	r := &wire.ListReply{Revision: revision}
	for _, o := range page {
		switch m := o.Message.(type) {
		case *wire.Net:
			r.Nets = append(r.Nets, m)
		case *wire.Port:
			r.Ports = append(r.Ports, m)
		case *wire.Group:
			r.Groups = append(r.Groups, m)
		case *wire.Host:
			r.Hosts = append(r.Hosts, m)
		case *wire.Bind:
			r.Binds = append(r.Binds, &wire.BoundPort{Bind: m, Generation: o.Revision})
		case *wire.HostStatus:
			at, ok := connected[m.Host]
			if ok && at.applied > 0 { // the store gets the report later
				m.Applied, m.Trouble = max(m.Applied, at.applied), at.trouble
			}
			r.Status = append(r.Status, &wire.HostReport{Status: m, Connected: ok, Hub: at.central})
		}
	}
	return r
}

// Save implements wire.AdminServer. It sends a backup of the store in chunks.
func (s *Service) Save(_ *wire.SaveRequest, stream grpc.ServerStreamingServer[wire.SaveChunk]) error {
	from, err := s.Config.Save(stream.Context())
	if err != nil {
		return failure(err)
	}
	defer from.Close()
	buffer := make([]byte, saveChunk)
	for {
		n, err := io.ReadFull(from, buffer)
		if n > 0 {
			if err := stream.Send(&wire.SaveChunk{Data: buffer[:n]}); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return failure(err)
		}
	}
}
