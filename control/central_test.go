// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"weft/central/admin"
	"weft/central/centraltest"
	"weft/central/hub"
	"weft/central/pki"
	"weft/central/store"
	"weft/central/wire"
	"weft/control/usererr"
	"weft/control/workers/workertest"
	"weft/internal/waitfor"
)

// testHub is a weft-central hub over TLS, with a store in memory.
type testHub struct {
	memory  *centraltest.Memory
	address string
	certs   string // directory with the certificate of the host named a
	stop    func()
}

func newTestHub(t *testing.T) *testHub {
	t.Helper()
	ca, err := pki.NewCA("test")
	if err != nil {
		t.Fatal(err)
	}
	keys := func(name string, role pki.Role) (string, *pki.Keys) {
		dir := filepath.Join(t.TempDir(), name)
		key, csr, err := pki.NewKey("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		cert, err := ca.Sign(csr, name, role, pki.DefaultLife)
		err = errors.Join(err, pki.FilesIn(dir).Save(cert, key, ca.DER()))
		loaded, loadErr := pki.Load(pki.FilesIn(dir))
		if err = errors.Join(err, loadErr); err != nil {
			t.Fatal(err)
		}
		return dir, loaded
	}
	h := &testHub{memory: centraltest.NewMemory()}
	h.certs, _ = keys("a", pki.Host)
	_, own := keys("central", pki.Central)
	served := hub.New(h.memory, admin.IdentifyHost, slog.New(slog.DiscardHandler))
	server := grpc.NewServer(grpc.ForceServerCodecV2(hub.Codec()), grpc.Creds(credentials.NewTLS(own.Server())))
	wire.RegisterHubServer(server, served)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.address = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- served.Run(ctx) }()
	go func() { _ = server.Serve(l) }()
	stopped := false
	h.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			server.Stop()
			<-done
		}
	}
	t.Cleanup(h.stop)
	return h
}

func (h *testHub) declare() {
	port := func(n byte, id, name string) *wire.Port {
		return &wire.Port{Id: id, Name: name, Net: "n", Mac: []byte{2, 0, 0, 0, 0, n}, Addresses: [][]byte{{10, 0, 0, n}}}
	}
	h.memory.Put(
		store.Object{Kind: store.KindNet, ID: "n", Message: &wire.Net{Id: "n", Name: "blue", Vni: 7}},
		store.Object{Kind: store.KindHost, ID: "a-id", Message: &wire.Host{Id: "a-id", Name: "a", Endpoint: []byte{192, 0, 2, 1}}},
		store.Object{Kind: store.KindHost, ID: "b-id", Message: &wire.Host{Id: "b-id", Name: "b", Endpoint: []byte{192, 0, 2, 2}}},
		store.Object{Kind: store.KindPort, ID: "vm1-id", Message: port(1, "vm1-id", "vm1")},
		store.Object{Kind: store.KindPort, ID: "vm2-id", Message: port(2, "vm2-id", "vm2")},
		store.Object{Kind: store.KindBind, ID: "vm2-id", Message: &wire.Bind{Port: "vm2-id", Host: "b-id", Endpoint: []byte{192, 0, 2, 2}}})
}

func (f *fakes) metrics() string {
	f.t.Helper()
	resp, err := overSocket(f.config.Socket).Get("http://weft/metrics")
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return string(text)
}

// A switch follows weft-central only if it is configured. If weft-central is down, a
// restart restores the agent's saved state and keeps the megaflows.
func TestFollowsCentral(t *testing.T) {
	central := newTestHub(t)
	central.declare()
	h := &fleetHost{newFakes(t), 1}
	h.addGuest("vm", "id=vm1-id")
	if h.d.central != nil || h.d.rest.Show().Central != nil || strings.Contains(h.metrics(), "weft_central_") {
		t.Error("a switch without addresses of centrals follows one")
	}
	h.end()
	h.config.Central, h.config.CentralCerts = []string{central.address}, central.certs
	h.begin()
	key := workertest.UDPKey(h.port("vm").Number, 1, 2, 9)
	waitfor.True(t, "the other guest has a place", func() bool { return strings.HasPrefix(h.sentTo(2), "behind 192.0.2.2") })
	was := h.run(key)
	if s := h.d.rest.Show().Central; s == nil || !s.Connected || s.Revision == 0 || s.Nets != 1 || s.Address != central.address || s.Trouble != "" {
		t.Errorf("%+v", s)
	}
	if text := h.metrics(); !strings.Contains(text, "\nweft_central_connected 1\n") || !strings.Contains(text, "\nweft_central_networks 1\n") {
		t.Error(text)
	}
	bound := central.memory.Declaration().Binds["vm1-id"]
	if bound.GetHost() != "a-id" {
		t.Errorf("bound to %v", bound)
	}

	central.stop()
	h.die()
	h.begin()
	if now := h.actionsOf(&key); !slices.Equal(now, was) {
		t.Errorf("after a restart without central: %+v, before %+v", now, was)
	}
	if got := h.sentTo(2); !strings.HasPrefix(got, "behind 192.0.2.2") {
		t.Error(got)
	}
	waitfor.True(t, "trouble is shown", func() bool { return h.d.rest.Show().Central.Trouble != "" })
	if s := h.d.rest.Show().Central; s.Connected || s.Revision == 0 || s.Nets != 1 || strings.Contains(s.Trouble, "rpc error") {
		t.Errorf("%+v", s)
	}
	if text := h.metrics(); !strings.Contains(text, "\nweft_central_connected 0\n") || !strings.Contains(text, "\nweft_central_trouble 1\n") {
		t.Error(text)
	}
}

// A switch keeps the address bindings of its ports when its control process stops.
func TestStopKeepsBindings(t *testing.T) {
	central := newTestHub(t)
	central.declare()
	h := &fleetHost{newFakes(t), 1}
	h.addGuest("vm1")
	h.end()
	h.config.Central, h.config.CentralCerts = []string{central.address}, central.certs
	h.begin()
	waitfor.True(t, "the port is bound", func() bool { return central.memory.Declaration().Binds["vm1-id"].GetHost() == "a-id" })
	h.end()
	central.stop() // when stop returns, the hub has handled all messages of the host
	if b := central.memory.Declaration().Binds["vm1-id"]; b.GetHost() != "a-id" {
		t.Errorf("after a stop bound to %v", b)
	}
}

// Wrong settings for weft-central make the start fail with an error of one line.
func TestWrongCentral(t *testing.T) {
	f := newFakes(t)
	f.end()
	for _, c := range []struct{ address, certs, want string }{
		{"10.0.0.1", "/nosuchdir", `central "10.0.0.1": expected HOST:PORT`},
		{"10.0.0.1:1", "/nosuchdir", "central-certs /nosuchdir"},
	} {
		config := f.config
		config.Central, config.CentralCerts = []string{c.address}, c.certs
		_, err := newDaemon(config)
		var input *usererr.Error
		if !errors.As(err, &input) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, expected %q", err, c.want)
		}
	}
	f.begin()
}
