// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"crypto"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"weft/central/centraltest"
	"weft/central/hub"
	"weft/central/pki"
	"weft/central/store"
	"weft/central/wire"
)

type fleet struct {
	t      *testing.T
	ca     *pki.CA
	store  *store.Store
	listen *bufconn.Listener
	gate   *Gate
}

func startFleet(t *testing.T) *fleet {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir)
	e, err := store.Embed(t.Context(), store.EmbedConfig{Name: "a", Dir: dir + "/etcd", PeerURL: "unix://peer:1", ClientURL: "unix://client:1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	ca, err := pki.NewCA("test")
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, ca: ca, store: e.Store(), listen: bufconn.Listen(1 << 20)}
	log := slog.New(slog.DiscardHandler)
	h := hub.New(f.store, IdentifyHost, log)
	gate := NewGate()
	f.gate = gate
	h.OnRevocations = gate.Revocations
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- h.Run(ctx) }()
	server := grpc.NewServer(append(gate.Authorize(), grpc.Creds(credentials.NewTLS(f.keys("a", pki.Central).Server())), grpc.ForceServerCodecV2(hub.Codec()))...)
	wire.RegisterHubServer(server, h)
	New(Config{Name: "a", Store: f.store, Hub: h, CA: ca, Members: true, Log: log,
		Save: func(ctx context.Context) (io.ReadCloser, error) { return store.Snapshot(ctx, e.Client()) }}).Register(server)
	go func() { _ = server.Serve(f.listen) }()
	t.Cleanup(func() {
		cancel()
		server.Stop()
		<-done
	})
	return f
}

func (f *fleet) keys(name string, role pki.Role) *pki.Keys {
	f.t.Helper()
	return centraltest.Keys(f.t, f.ca, f.t.TempDir(), name, role, time.Hour)
}

func (f *fleet) saved(key crypto.Signer, cert []byte) *pki.Keys {
	f.t.Helper()
	files := pki.FilesIn(f.t.TempDir())
	if err := files.Save(cert, key, f.ca.DER()); err != nil {
		f.t.Fatal(err)
	}
	k, err := pki.Load(files)
	if err != nil {
		f.t.Fatal(err)
	}
	return k
}

func (f *fleet) dial(c credentials.TransportCredentials) *grpc.ClientConn {
	f.t.Helper()
	conn, err := grpc.NewClient("passthrough:central", grpc.WithTransportCredentials(c),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return f.listen.DialContext(ctx) }))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (f *fleet) dialAs(name string, role pki.Role) *grpc.ClientConn {
	return f.dial(credentials.NewTLS(f.keys(name, role).Client()))
}

// Each role can call exactly the methods in the table.
func TestRoles(t *testing.T) {
	f := startFleet(t)
	stranger := f.dial(credentials.NewTLS(pki.NewToken(f.ca.Digest()).Enrol()))
	conns := map[pki.Role]*grpc.ClientConn{anybody: stranger}
	for _, role := range []pki.Role{pki.Central, pki.Host, pki.Admin, pki.Reader} {
		conns[role] = f.dialAs("x", role)
	}
	methods := 0
	for _, service := range []grpc.ServiceDesc{wire.Hub_ServiceDesc, wire.Peer_ServiceDesc, wire.Admin_ServiceDesc, wire.Enrolment_ServiceDesc} {
		var names []string
		for _, m := range service.Methods {
			names = append(names, m.MethodName)
		}
		for _, s := range service.Streams {
			names = append(names, s.StreamName)
		}
		for _, name := range names {
			methods++
			method := "/" + service.ServiceName + "/" + name
			for role, conn := range conns {
				// A stream that the role may open stays open. A denial comes at once.
				may, limit := slices.Contains(mayCall[method], role), time.Minute
				if may {
					limit = time.Second
				}
				err := call(t.Context(), limit, conn, method)
				denied := status.Code(err) == codes.PermissionDenied || status.Code(err) == codes.Unauthenticated && strings.Contains(err.Error(), "needs a certificate")
				if denied == may {
					t.Errorf("%s called by role %q: %v; expected denied %v", method, role, err, !may)
				}
			}
		}
	}
	if methods != len(mayCall) {
		t.Errorf("%d methods, %d have roles", methods, len(mayCall))
	}
	// methods that a reader must never call
	for _, method := range []string{wire.Admin_Apply_FullMethodName, wire.Admin_Save_FullMethodName, wire.Admin_Invite_FullMethodName, wire.Peer_Sync_FullMethodName} {
		if slices.Contains(mayCall[method], pki.Reader) || slices.Contains(mayCall[method], pki.Host) {
			t.Errorf("readers or hosts may call %s", method)
		}
	}
}

func call(ctx context.Context, limit time.Duration, conn *grpc.ClientConn, method string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	if err := s.SendMsg(&wire.SessionsRequest{}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_ = s.CloseSend()
	if err := s.RecvMsg(&wire.SessionsRequest{}); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// A token gives exactly one certificate, with the name and the role of the invitation.
// A token is not used up if etcd does not accept the new central as a member.
func TestRefusedCentralKeepsItsToken(t *testing.T) {
	f := startFleet(t)
	invited, err := wire.NewAdminClient(f.dialAs("root", pki.Admin)).Invite(t.Context(), &wire.InviteRequest{Role: "central", Name: "b"})
	if err != nil {
		t.Fatal(err)
	}
	token, err := pki.ParseToken(invited.Token)
	if err != nil {
		t.Fatal(err)
	}
	_, csr, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	enrolment := wire.NewEnrolmentClient(f.dial(credentials.NewTLS(token.Enrol())))
	if _, err := enrolment.Enrol(t.Context(), &wire.EnrolRequest{Token: token.Text(), Csr: csr, Peer: "http://127.0.0.1"}); err == nil || !strings.Contains(err.Error(), "address of the new member") {
		t.Fatalf("a wrong address: %v", err)
	}
	got, err := enrolment.Enrol(t.Context(), &wire.EnrolRequest{Token: token.Text(), Csr: csr, Peer: "https://127.0.0.1:1"})
	if err != nil || got.Cluster == "" {
		t.Errorf("the same token with the right address: %v", err)
	}
}

func TestEnrol(t *testing.T) {
	f := startFleet(t)
	people := wire.NewAdminClient(f.dialAs("root", pki.Admin))
	invited, err := people.Invite(t.Context(), &wire.InviteRequest{Role: "host", Name: "h1"})
	if err != nil {
		t.Fatal(err)
	}
	token, err := pki.ParseToken(invited.Token)
	if err != nil {
		t.Fatal(err)
	}
	enrolment := wire.NewEnrolmentClient(f.dial(credentials.NewTLS(token.Enrol())))
	key, csr, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := enrolment.Enrol(t.Context(), &wire.EnrolRequest{Token: token.Text(), Csr: []byte("no request")}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a request that is no certificate request: %v", err)
	}
	got, err := enrolment.Enrol(t.Context(), &wire.EnrolRequest{Token: token.Text(), Csr: csr})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.CaKey) != 0 || got.Cluster != "" || got.Name != "h1" {
		t.Errorf("a host got %v", got)
	}
	if _, err := enrolment.Enrol(t.Context(), &wire.EnrolRequest{Token: token.Text(), Csr: csr}); status.Code(err) != codes.NotFound {
		t.Errorf("the token works twice: %v", err)
	}
	keys := f.saved(key, got.Certificate)
	if name, role, err := keys.Identity(); name != "h1" || role != pki.Host || err != nil {
		t.Errorf("enrolled as %s %s, %v", role, name, err)
	}
	// a renewed certificate keeps name and role, whatever the request contains
	renewal := wire.NewEnrolmentClient(f.dial(credentials.NewTLS(keys.Client())))
	err = keys.Renew(nil, func(csr []byte) ([]byte, []byte, error) {
		r, err := renewal.Renew(t.Context(), &wire.EnrolRequest{Csr: csr})
		return r.GetCertificate(), r.GetCa(), err
	})
	if name, role, _ := keys.Identity(); err != nil || name != "h1" || role != pki.Host {
		t.Errorf("renewed as %s %s, %v", role, name, err)
	}
	for _, r := range []*wire.InviteRequest{{Role: "root", Name: "x"}, {Role: "host"}, {Role: "host", Name: "x", ValidS: 1 << 30}} {
		if _, err := people.Invite(t.Context(), r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", r, err)
		}
	}
}

func TestListStatusWhySave(t *testing.T) {
	f := startFleet(t)
	ctx := t.Context()
	people := wire.NewAdminClient(f.dialAs("root", pki.Admin))
	set := func(c *wire.Change) *wire.ChangeReply {
		r, err := people.Apply(ctx, &wire.ChangeRequest{Changes: []*wire.Change{c}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	set(&wire.Change{Change: &wire.Change_SetNet{SetNet: &wire.Net{Id: "n1", Name: "blue", Vni: 1}}})
	set(&wire.Change{Change: &wire.Change_SetNet{SetNet: &wire.Net{Id: "n2", Name: "red", Vni: 2}}})
	set(&wire.Change{Change: &wire.Change_SetHost{SetHost: &wire.Host{Id: "h1", Name: "alpha", Endpoint: []byte{192, 0, 2, 1}}}})
	last := set(&wire.Change{Change: &wire.Change_SetPort{SetPort: &wire.Port{Id: "p1", Name: "web", Net: "n1", Mac: []byte{2, 0, 0, 0, 0, 1}}}})
	if _, err := people.Apply(ctx, &wire.ChangeRequest{Changes: []*wire.Change{{Change: &wire.Change_DeleteNet{DeleteNet: "n1"}}}}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a refusal is %v", err)
	}
	for code, c := range map[codes.Code]*wire.Change{
		codes.NotFound:        {Change: &wire.Change_DeleteNet{DeleteNet: "n3"}},
		codes.AlreadyExists:   {Change: &wire.Change_SetNet{SetNet: &wire.Net{Id: "n3", Name: "blue", Vni: 3}}},
		codes.InvalidArgument: {Change: &wire.Change_SetNet{SetNet: &wire.Net{Id: "n3", Name: "green", Vni: 0}}},
	} {
		if _, err := people.Apply(ctx, &wire.ChangeRequest{Changes: []*wire.Change{c}}); status.Code(err) != code {
			t.Errorf("%v: %v, expected %s", c, err, code)
		}
	}
	if _, err := people.Apply(ctx, &wire.ChangeRequest{Expected: 1, Changes: []*wire.Change{{Change: &wire.Change_DeleteNet{DeleteNet: "n2"}}}}); status.Code(err) != codes.Aborted {
		t.Errorf("an old expectation is %v", err)
	}
	list := func(r *wire.ListRequest) *wire.ListReply {
		stream, err := people.List(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		reply, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	if r := list(&wire.ListRequest{}); len(r.Nets) != 2 || len(r.Ports) != 1 || len(r.Hosts) != 1 || r.Revision < last.Revision {
		t.Errorf("listed %v", r)
	}
	if r := list(&wire.ListRequest{Ports: true, Net: "blue"}); len(r.Nets) != 0 || len(r.Ports) != 1 {
		t.Errorf("ports of blue: %v", r)
	}
	if r := list(&wire.ListRequest{Nets: true, Ports: true, Net: "blue"}); len(r.Nets) != 2 || len(r.Ports) != 1 {
		t.Errorf("all networks, and ports of blue: %v", r)
	}
	if r := list(&wire.ListRequest{Ports: true, Net: "red"}); len(r.Ports) != 0 {
		t.Errorf("ports of red: %v", r)
	}
	reason := func() *wire.WhyReply {
		r, err := people.Why(ctx, &wire.WhyRequest{Port: "web"})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := reason(); len(r.Missing) != 1 || !strings.Contains(r.Missing[0], "add a port named web") {
		t.Errorf("unbound: %v", r)
	}
	bound := f.store.Bind(ctx, []store.BindRequest{{Port: "p1", Host: "h1", Endpoint: []byte{192, 0, 2, 1}}})[0]
	if bound.Err != nil {
		t.Fatal(bound.Err)
	}
	if r := reason(); r.BoundOn != "alpha" || r.Alive || len(r.Missing) != 1 || !strings.Contains(r.Missing[0], "connected to no central") {
		t.Errorf("bound on a dead host: %v", r)
	}
	if r, err := people.Sync(ctx, &wire.SyncRequest{WaitHosts: true}); err != nil || r.Revision < bound.Generation || !slices.Equal(r.Missing, []string{"alpha"}) {
		t.Errorf("sync: %v, %v", r, err)
	}
	if r, err := people.Status(ctx, &wire.StatusRequest{}); err != nil || len(r.Centrals) != 1 || !r.Centrals[0].Leader || !r.Centrals[0].Healthy || r.Ports != 1 || r.StoreBytes == 0 {
		t.Errorf("status: %v, %v", r, err)
	}
	backup, err := people.Save(ctx, &wire.SaveRequest{})
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for {
		chunk, err := backup.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		size += len(chunk.Data)
	}
	if size < 10_000 {
		t.Errorf("a backup of %d bytes", size)
	}
}
