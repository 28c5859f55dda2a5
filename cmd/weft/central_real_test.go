// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
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
	"weft/cmd/exit"
	"weft/control/agent"
	"weft/internal/waitfor"
)

// startRealCentral runs a weft-central with an embedded etcd in this process, with TLS on 127.0.0.1. It
// returns an object that runs weft's verbs as the central's administrator.
func startRealCentral(t *testing.T) *fleetShell {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir) // etcd names its unix sockets relative to this directory
	e, err := store.Embed(t.Context(), store.EmbedConfig{Name: "a", Dir: filepath.Join(dir, "etcd"), PeerURL: "unix://peer:1", ClientURL: "unix://client:1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	ca, err := pki.NewCA("test")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	h := hub.New(e.Store(), admin.IdentifyHost, log)
	gate := admin.NewGate()
	h.OnRevocations = gate.Revocations
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	server := grpc.NewServer(append(gate.Authorize(), grpc.ForceServerCodecV2(hub.Codec()),
		grpc.Creds(credentials.NewTLS(certificate(t, ca, filepath.Join(dir, "central"), pki.Central).Server())))...)
	wire.RegisterHubServer(server, h)
	admin.New(admin.Config{Name: "a", Store: e.Store(), Hub: h, CA: ca, Log: log,
		Save: func(ctx context.Context) (io.ReadCloser, error) { return store.Snapshot(ctx, e.Client()) }}).Register(server)
	l := listen(t)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() {
		cancel()
		server.Stop()
		<-done
	})
	certs := filepath.Join(dir, "admin")
	certificate(t, ca, certs, pki.Admin)
	t.Setenv("WEFT_CENTRAL", l.Addr().String())
	return &fleetShell{t: t, certs: certs}
}

func (s *fleetShell) host(name string, ports ...agent.LocalPort) *centraltest.Recorder {
	s.t.Helper()
	token := s.ok("central invite --role host --name " + name)
	dir := filepath.Join(s.t.TempDir(), name)
	if out, errs, code := weft(token, "central", "enrol", "--token", "-", "--central-certs", dir); code != 0 || !strings.HasPrefix(out, name+" has a certificate") {
		s.t.Fatal(out, errs)
	}
	keys, err := pki.Load(pki.FilesIn(dir))
	if err != nil {
		s.t.Fatal(err)
	}
	r := centraltest.NewRecorder(ports...)
	a := agent.New(agent.Config{Centrals: []string{os.Getenv("WEFT_CENTRAL")}, Credentials: credentials.NewTLS(keys.Client()), Version: "test", Log: slog.New(slog.DiscardHandler)}, r)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Run(ctx)
	}()
	s.t.Cleanup(func() {
		stop()
		<-done
	})
	return r
}

// The verb invite warns if the host is not declared. The verb "host del" warns if ports were bound to the
// host.
func TestWarningsAboutHosts(t *testing.T) {
	s := startRealCentral(t)
	invite := func() string {
		_, errs, code := weft("", "central", "invite", "--role", "host", "--name", "h1", "--central-certs", s.certs)
		if code != 0 {
			t.Fatal(errs)
		}
		return errs
	}
	if errs := invite(); !strings.Contains(errs, "host h1 is not declared: weft host add h1 endpoint=IP") {
		t.Errorf("invite of an undeclared host: %q", errs)
	}
	s.ok("net add blue vni=100")
	s.ok("host add h1 endpoint=172.16.0.1")
	s.ok("port add web1 net=blue mac=02:00:00:00:00:01")
	if errs := invite(); errs != "" {
		t.Errorf("invite of a declared host: %q", errs)
	}
	s.host("h1", agent.LocalPort{Name: "web1", Up: true, Added: 1})
	waitfor.True(t, "the port is bound", func() bool { return strings.Contains(s.ok("port why web1"), "bound: on h1") })
	if _, errs, code := weft("", "host", "del", "h1", "--central-certs", s.certs); code != 0 || !strings.Contains(errs, "bound to host h1 until now: 1 ports") {
		t.Errorf("host del: %q", errs)
	}
}

// The central refuses an administrator whose certificate is revoked. The list of revocations has an entry
// until the revocation is undone.
func TestRevoke(t *testing.T) {
	s := startRealCentral(t)
	other := filepath.Join(t.TempDir(), "other")
	token := s.ok("central invite --role admin --name other")
	if out, errs, code := weft(token, "central", "enrol", "--token", "-", "--central-certs", other); code != 0 {
		t.Fatal(out, errs)
	}
	try := func() (string, int) {
		out, errs, code := weft("", "net", "list", "--central-certs", other)
		return out + errs, code
	}
	if out, code := try(); code != 0 {
		t.Fatal(out)
	}
	const words = "--role admin --name other"
	s.ok("central revoke " + words)
	waitfor.True(t, "the revoked certificate is refused", func() bool {
		out, code := try()
		return code != 0 && strings.Contains(out, "was revoked at") && strings.Contains(out, "enrol again")
	})
	if list := s.ok("central revocations"); !strings.Contains(list, "admin  other") {
		t.Errorf("list:\n%s", list)
	}
	for _, line := range []string{"central revocations --json", "central revoke --json " + words} {
		if n, err := values(s.ok(line)); n != 1 || err != nil {
			t.Errorf("%s: %d values, %v", line, n, err)
		}
	}
	s.ok("central revoke --undo " + words)
	waitfor.True(t, "the revocation is undone", func() bool { _, code := try(); return code == 0 })
	for _, line := range []string{"central revoke", "central revoke --role admin", "central revoke --serial 12 " + words, "central revoke --role central --name a", "central revoke --serial xy", "central revoke --undo --serial 77"} {
		if out, _, code := weft("", append(strings.Fields(line), "--central-certs", s.certs)...); code == 0 {
			t.Errorf("%s: %s", line, out)
		}
	}
}

// Two hosts receive the declared objects. The verb sync waits for the hosts. The verb "port why" lists why a
// port cannot be reached.
func TestFleet(t *testing.T) {
	s := startRealCentral(t)
	file := s.file(`
[[net]]
name = "blue"
vni = 100
[[host]]
name = "h1"
endpoint = "172.16.0.1"
[[host]]
name = "h2"
endpoint = "172.16.0.2"
[[host]]
name = "h3"
endpoint = "172.16.0.3"
[[port]]
name = "web1"
net = "blue"
mac = "02:00:00:00:00:01"
addresses = ["10.0.0.1"]
host = "h1"
`)
	if got := s.ok("apply " + file); !strings.Contains(got, "5 changes applied") {
		t.Fatal(got)
	}
	if got := s.ok("apply " + file); !strings.Contains(got, "no differences") {
		t.Error(got)
	}
	if got := s.ok("port why web1"); !strings.Contains(got, "bound: nowhere") || !strings.Contains(got, "missing: no host has the port") {
		t.Error(got)
	}
	h1 := s.host("h1", agent.LocalPort{Name: "web1", Up: true})
	h2 := s.host("h2", agent.LocalPort{Name: "tap7", ID: "web2-id", Up: true})
	waitfor.True(t, "h1 and h2 are connected", func() bool { return strings.Count(s.ok("--json host list"), `"connected": true`) == 2 })
	s.ok("port add web2 net=blue mac=02:00:00:00:00:02 addresses=10.0.0.2 id=web2-id --wait hosts")
	waitfor.True(t, "both ports are bound", func() bool { return strings.Count(s.ok("--json port list"), `"bound"`) == 2 })
	if got := s.ok("sync"); !strings.Contains(got, "2 hosts have applied it; not connected: h3") {
		t.Error(got)
	}
	for name, h := range map[string]*centraltest.Recorder{"h1": h1, "h2": h2} {
		if !h.Has(100, 0x020000000001) || !h.Has(100, 0x020000000002) {
			t.Errorf("%s has %d addresses after sync", name, h.Addresses())
		}
	}
	if !h1.Here(100, 0x020000000001) || !h2.Here(100, 0x020000000002) {
		t.Error("a port is not at its host")
	}
	if got := s.ok("port why web2"); !strings.Contains(got, "on h2, generation") || !strings.Contains(got, "on 2 of 2 hosts") || !strings.Contains(got, "missing: nothing") {
		t.Error(got)
	}
	s.refused("sync --revision 1000000 --timeout 100ms", "--revision 1000000: the newest is")
	s.refused("net del blue", "uses it")
	s.refused("port add web3 net=blue mac=02:00:00:00:00:02", "mac 02:00:00:00:00:02 belongs")
	s.refused("port add web2 net=blue", "the name belongs")
	s.refused("port show nobody", "nobody")
	s.ok("port del nobody --if-exists")
	s.ok("net add red")
	s.ok("port set web1 net=red")
	if got := s.ok("port list red"); !strings.Contains(got, "web1") {
		t.Errorf("web1 is not in its new network:\n%s", got)
	}
	s.ok("port set web1 net=blue")
	s.ok("port set web1 addresses=10.0.0.9 host=h1 move-to=h2")
	if got := s.ok("port why web1"); !strings.Contains(got, "host=h1 move-to=h2") {
		t.Error(got)
	}
	s.ok("port del web2 --wait hosts")
	if h1.Has(100, 0x020000000002) {
		t.Error("h1 has a deleted port after --wait hosts")
	}
	var state centralState
	if err := json.Unmarshal([]byte(s.ok("--json central status")), &state); err != nil || state.Hosts != 3 || state.Connected != 2 || state.Ports != 1 {
		t.Errorf("%+v %v", state, err)
	}
	backup := filepath.Join(t.TempDir(), "backup")
	s.ok("central save " + backup)
	if info, err := os.Stat(backup); err != nil || info.Size() < 1000 {
		t.Error(info, err)
	}
}

// The central refuses changes by a peer whose certificate has the role reader. An enrolment token works once.
func TestRolesOfPeople(t *testing.T) {
	s := startRealCentral(t)
	var invited struct{ Token string }
	if err := json.Unmarshal([]byte(s.ok("--json central invite --role reader --name rita")), &invited); err != nil {
		t.Fatal(err)
	}
	token := invited.Token
	reader := &fleetShell{t: t, certs: filepath.Join(t.TempDir(), "reader")}
	if got := reader.ok("--json central enrol --token " + token); !strings.Contains(got, `"name": "rita"`) {
		t.Error(got)
	}
	reader.ok("net list")
	if got := reader.do(exit.Failed, "net", "add", "blue"); !strings.Contains(got, "role is reader") {
		t.Error(got)
	}
	reader.refused("central enrol --token "+token, "is there already")
	again := &fleetShell{t: t, certs: filepath.Join(t.TempDir(), "again")}
	again.refused("central enrol --token "+token, "token")
	s.refused("central invite --role boss --name x", "boss")
	s.refused("central invite --role host", "--name is missing")
}
