// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"weft/central/centraltest"
	"weft/central/declare"
	"weft/central/pki"
	"weft/central/wire"
	"weft/cmd/exit"
)

// fakeCentral is a central for tests, which keeps a declaration in memory.
type fakeCentral struct {
	wire.UnimplementedAdminServer
	mu       sync.Mutex
	revision int64
	nets     map[string]*wire.Net
	hosts    map[string]*wire.Host
	ports    map[string]*wire.Port
	groups   map[string]*wire.Group
	requests map[string]int64
	lose     int // number of further requests that take effect but get no answer
	// meddle, if set, runs once, before the next Apply. It changes the declaration as another administrator
	// would.
	meddle func(*fakeCentral)
	seen   []*wire.ChangeRequest
}

func (f *fakeCentral) Apply(_ context.Context, r *wire.ChangeRequest) (*wire.ChangeReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, r)
	if done, ok := f.requests[r.Id]; ok {
		return &wire.ChangeReply{Revision: done}, nil
	}
	if m := f.meddle; m != nil {
		f.meddle = nil
		m(f)
		f.revision++
	}
	if r.Expected != 0 && r.Expected < f.revision {
		return nil, status.Errorf(codes.Aborted, "the intent has changed since revision %d, in revision %d; read it again and repeat", r.Expected, f.revision)
	}
	for _, c := range r.Changes {
		if p := c.GetSetPort(); p != nil {
			for _, q := range f.ports {
				if q.Name == p.Name && q.Id != p.Id {
					return nil, status.Errorf(codes.AlreadyExists, "port %s: the name belongs to the port of id %s; choose another", p.Name, q.Id)
				}
			}
		}
	}
	for _, c := range r.Changes {
		switch c := c.Change.(type) {
		case *wire.Change_SetNet:
			f.nets[c.SetNet.Id] = c.SetNet
		case *wire.Change_SetHost:
			f.hosts[c.SetHost.Id] = c.SetHost
		case *wire.Change_SetPort:
			f.ports[c.SetPort.Id] = c.SetPort
		case *wire.Change_SetGroup:
			f.groups[c.SetGroup.Id] = c.SetGroup
		case *wire.Change_DeleteGroup:
			delete(f.groups, c.DeleteGroup)
		case *wire.Change_DeleteNet:
			delete(f.nets, c.DeleteNet)
		case *wire.Change_DeleteHost:
			delete(f.hosts, c.DeleteHost)
		case *wire.Change_DeletePort:
			delete(f.ports, c.DeletePort)
		}
	}
	f.revision++
	f.requests[r.Id] = f.revision
	if f.lose > 0 {
		f.lose--
		return nil, status.Error(codes.Unavailable, "the answer is lost")
	}
	return &wire.ChangeReply{Revision: f.revision}, nil
}

func (f *fakeCentral) List(r *wire.ListRequest, stream wire.Admin_ListServer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	parts := []*wire.ListReply{{}}
	for _, n := range f.nets {
		if r.Nets {
			parts = append(parts, &wire.ListReply{Nets: []*wire.Net{n}})
		}
	}
	for _, g := range f.groups {
		if r.Groups {
			parts = append(parts, &wire.ListReply{Groups: []*wire.Group{g}})
		}
	}
	for _, h := range f.hosts {
		if r.Hosts {
			parts = append(parts, &wire.ListReply{Hosts: []*wire.Host{h}})
		}
		if r.Status {
			parts = append(parts, &wire.ListReply{Status: []*wire.HostReport{{Status: &wire.HostStatus{Host: h.Id, Applied: 7, Version: "1.2"}, Connected: true, Hub: "c1"}}})
		}
	}
	for _, p := range f.ports {
		if r.Ports && (r.Net == "" || r.Net == p.Net) {
			parts = append(parts, &wire.ListReply{Ports: []*wire.Port{p}})
		}
		if r.Binds && p.Host != "" {
			parts = append(parts, &wire.ListReply{Binds: []*wire.BoundPort{{Bind: &wire.Bind{Port: p.Id, Host: p.Host}, Generation: 5}}})
		}
	}
	for _, p := range parts {
		p.Revision = f.revision
		if err := stream.Send(p); err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeCentral) Why(_ context.Context, r *wire.WhyRequest) (*wire.WhyReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.ports {
		if p.Name == r.Port || p.Id == r.Port {
			return &wire.WhyReply{Port: p, Net: f.nets[p.Net], Missing: []string{"no host has the port"},
				Programmed: []*wire.HostRevision{{Host: "h1", Applied: 3}, {Host: "h2", Applied: 9, Current: true}}}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "there is no declared port %s; list the ports", r.Port)
}

func (f *fakeCentral) Sync(_ context.Context, r *wire.SyncRequest) (*wire.SyncReply, error) {
	if r.Revision == 0 {
		r.Revision = f.revision
	}
	return &wire.SyncReply{Revision: r.Revision, Hosts: 2, Missing: []string{"h3"}}, nil
}

func (f *fakeCentral) Status(context.Context, *wire.StatusRequest) (*wire.StatusReply, error) {
	return &wire.StatusReply{Revision: 9, Ports: 3, StoreBytes: 1 << 20, StoreLimit: 2 << 30, Centrals: []*wire.Central{
		{Name: "c1", Address: "10.0.0.1:1", Leader: true, Healthy: true, Sessions: 2}, {Name: "c2", Address: "10.0.0.2:1", Trouble: "rpc error: code = Unavailable desc = no connection"}}}, nil
}

func (f *fakeCentral) Save(_ *wire.SaveRequest, stream wire.Admin_SaveServer) error {
	for _, part := range []string{"snap", "shot"} {
		if err := stream.Send(&wire.SaveChunk{Data: []byte(part)}); err != nil {
			return err
		}
	}
	return nil
}

// startCentral serves a fakeCentral over TLS. It sets WEFT_CENTRAL to two addresses,
// one of them without a server.
func startCentral(t *testing.T) (f *fakeCentral, certs string) {
	t.Helper()
	ca, err := pki.NewCA("test")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(certificate(t, ca, filepath.Join(t.TempDir(), "server"), pki.Central).Server())))
	certs = filepath.Join(t.TempDir(), "admin")
	certificate(t, ca, certs, pki.Admin)
	f = &fakeCentral{revision: 1, nets: map[string]*wire.Net{}, hosts: map[string]*wire.Host{}, ports: map[string]*wire.Port{}, groups: map[string]*wire.Group{}, requests: map[string]int64{}}
	wire.RegisterAdminServer(server, f)
	l := listen(t)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	dead := listen(t)
	dead.Close()
	t.Setenv("WEFT_CENTRAL", dead.Addr().String()+","+l.Addr().String())
	return f, certs
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func certificate(t *testing.T, ca *pki.CA, dir string, role pki.Role) *pki.Keys {
	t.Helper()
	return centraltest.Keys(t, ca, dir, "test", role, pki.DefaultLife, "127.0.0.1")
}

type fleetShell struct {
	t     *testing.T
	f     *fakeCentral
	certs string
}

func newFleetShell(t *testing.T) *fleetShell {
	f, certs := startCentral(t)
	return &fleetShell{t, f, certs}
}

func (s *fleetShell) do(code int, args ...string) string {
	s.t.Helper()
	out, errs, got := weft("", append([]string{"--central-certs", s.certs}, args...)...)
	if got != code || strings.Count(errs, "\n") != min(code, 1) {
		s.t.Fatalf("weft %q: %d %s%s", args, got, errs, out)
	}
	return out + errs
}

func (s *fleetShell) ok(line string) string {
	s.t.Helper()
	return s.do(0, strings.Fields(line)...)
}

func (s *fleetShell) refused(line, want string) {
	s.t.Helper()
	if got := s.do(exit.Input, strings.Fields(line)...); !strings.Contains(got, want) {
		s.t.Errorf("weft %s: %q, expected %q", line, got, want)
	}
}

func (s *fleetShell) example() {
	s.t.Helper()
	s.ok("net add blue vni=100 flood=on id=n-blue")
	s.ok("host add h1 endpoint=172.16.0.1 id=i-h1")
	s.ok("host add h2 endpoint=172.16.0.2 id=i-h2")
	s.ok("port add web1 net=blue mac=02:00:00:00:00:01 addresses=10.0.0.1,fd00::1 host=h1 id=p-web1")
}

func (s *fleetShell) export() string {
	s.t.Helper()
	file, err := declare.ParseFile([]byte(s.ok("export")))
	if err != nil {
		s.t.Fatal(err)
	}
	d, err := declare.NewFleet(nil).Diff(file, false)
	if err != nil {
		s.t.Fatal(err)
	}
	return d.Text()
}

func (s *fleetShell) expect(want string) {
	s.t.Helper()
	if got := s.export(); got != want {
		s.t.Errorf("declared:\n%swant:\n%s", got, want)
	}
}

// Verbs accept the names and the ids of objects. They work although the first of the two addresses in
// WEFT_CENTRAL does not answer.
func TestDeclareObjects(t *testing.T) {
	s := newFleetShell(t)
	s.example()
	const hosts = "+ host h1 endpoint=172.16.0.1\n+ host h2 endpoint=172.16.0.2\n"
	s.expect("+ net blue vni=100 flood=on\n" + hosts + "+ port web1 net=blue mac=02:00:00:00:00:01 addresses=10.0.0.1,fd00::1 host=h1\n")
	s.ok("port set p-web1 move-to=i-h2 addresses= spoof-check=off name=www")
	s.ok("net set n-blue name=green mtu=1400 flood=off")
	s.expect("+ net green vni=100 mtu=1400\n" + hosts + "+ port www net=green mac=02:00:00:00:00:01 host=h1 move-to=h2 spoof-check=off\n")
	for line, want := range map[string]string{
		"net list":                         "green  100  1400  off    n-blue",
		"net show green":                   "net green vni=100 mtu=1400 id=n-blue",
		"host list":                        "h1    172.16.0.1  connected  c1       7        1.2      i-h1  -",
		"host show i-h2":                   "h2    172.16.0.2",
		"port list":                        "www   green  02:00:00:00:00:01  -          h1 or h2  h1     off          -       p-web1",
		"port list n-blue":                 "www",
		"port show www":                    "www   green",
		"port why www":                     "programmed: on 1 of 2 hosts that need it\n  h1 has applied revision 3\nmissing: no host has the port\n",
		"central status":                   "c2       10.0.0.2:1  follower  down    0      no connection",
		"sync":                             ": 2 hosts have applied it; not connected: h3",
		"sync --revision 4 --wait central": "revision 4; not connected: h3",
		"net add blue":                     "vni=1\n",
		"port add web2 net=n-blue":         "mac=02:",
		"--json net show green":            `"name": "www"`,
		"--json port show www":             `"spoof_check": false`,
		"--json port why www":              `"missing": [`,
		"--json sync":                      `"not_connected": [`,
		"--json central status":            `"leader": true`,
		"--json host list":                 `"hub": "c1"`,
	} {
		if got := s.ok(line); !strings.Contains(got, want) {
			t.Errorf("weft %s:\n%swant %q", line, got, want)
		}
	}
	s.ok("port del www")
	s.ok("port del www --if-exists")
	s.ok("net del green --ports")
	s.ok("net del blue --wait hosts")
	s.ok("host del h1")
	s.expect("+ host h2 endpoint=172.16.0.2\n")
}

func TestDeclareRefuses(t *testing.T) {
	s := newFleetShell(t)
	s.example()
	before := s.export()
	for line, want := range map[string]string{
		"net add blue":                        "blue: the name is declared already",
		"net add red id=n-blue":               "red: the id n-blue belongs to blue",
		"net add a/b":                         "name a/b",
		"net add red vni=x":                   "vni=x",
		"net set red vni=5":                   "red: no such net; expected one of blue",
		"net del red":                         "red: no such net",
		"host add h3 id=x":                    "endpoint= is missing",
		"host add h1 endpoint=172.16.0.9":     "h1: the name is declared already",
		"port add web1 net=blue":              "the name belongs to the port of id p-web1",
		"port add web2 net=red":               "red: no such net",
		"port add web2 mac=02:00:00:00:00:02": "net= is missing",
		"port add web2 net=blue id=p-web1":    "the id p-web1 belongs to web1",
		"port set web9 host=h1":               "there is no declared port web9",
		"port del web9":                       "there is no declared port web9",
		"port frob":                           "frob: no such verb; expected one of add, del, list, set, show, why",
		"lsp-set-addresses web1 unknown":      "spoof-check=off",
		"sync --wait all":                     "--wait all: expected central or hosts",
		"net set blue vni=7 --wait all":       "expected none or hosts",
		"net set blue":                        "a word is missing",
		"apply /nosuchfile":                   "/nosuchfile",
		"--central-certs /nosuchdir net list": "/nosuchdir",
		"--central nonsense net list":         `central "nonsense": expected HOST:PORT`,
	} {
		s.refused(line, want)
	}
	s.expect(before)
}

// The verbs with the names of ovn-nbctl's, such as ls-add, do the same as the verbs of weft.
func TestOVNVerbs(t *testing.T) {
	s := newFleetShell(t)
	s.ok("ls-add blue")
	s.ok("ls-add blue --may-exist")
	s.ok("lsp-add blue web1")
	s.ok("lsp-add blue web1 --may-exist")
	s.do(0, "lsp-set-addresses", "web1", "02:00:00:00:00:07 10.0.0.7 fd00::7")
	s.expect("+ net blue vni=1\n+ port web1 net=blue mac=02:00:00:00:00:07 addresses=10.0.0.7,fd00::7\n")
	if out := s.ok("lsp-list blue") + s.ok("ls-list"); !strings.Contains(out, "web1") || !strings.Contains(out, "VNI") {
		t.Error(out)
	}
	s.ok("lsp-add blue web2")
	s.ok("lsp-del web1")
	s.ok("lsp-del web1 --if-exists")
	s.ok("ls-del blue")
	s.ok("ls-del blue --if-exists")
	s.expect("")
}

const fleetFile = "[[net]]\nname='blue'\nvni=100\n[[host]]\nname='h1'\nendpoint='172.16.0.1'\n[[port]]\nname='web1'\nnet='blue'\nmac='02:00:00:00:00:01'\n"

func (s *fleetShell) file(text string) string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "fleet.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// The verb apply sends all differences in one request. A second apply of the file finds no differences.
func TestApplyFile(t *testing.T) {
	s := newFleetShell(t)
	path := s.file(fleetFile)
	const diff = "+ net blue vni=100\n+ host h1 endpoint=172.16.0.1\n+ port web1 net=blue mac=02:00:00:00:00:01\n"
	if got := s.ok("apply --dry-run " + path); got != diff+"3 differences, nothing applied\n" || len(s.f.seen) != 0 {
		t.Error(got)
	}
	if got := s.ok("apply " + path); got != diff+"3 changes applied, revision 2\n" || len(s.f.seen) != 1 || s.f.seen[0].Expected != 1 {
		t.Error(got)
	}
	if got := s.ok("apply " + path); got != "no differences at revision 2\n" || len(s.f.seen) != 1 {
		t.Error(got)
	}
	less := s.file(strings.Split(fleetFile, "[[host]]")[0])
	if got := s.ok("apply " + less); got != "no differences at revision 2\n" {
		t.Error(got)
	}
	var result applied
	if err := json.Unmarshal([]byte(s.ok("--json apply --prune "+less)), &result); err != nil || !result.Applied || len(result.Changes) != 2 || result.Changes[1].Op != "delete" {
		t.Errorf("%+v %v", result, err)
	}
	s.expect("+ net blue vni=100\n")
	s.refused("apply "+s.file("[[net]]\nname='x'\n"), "fleet.toml: net x: vni 0")
	out, errs, code := weft(fleetFile, "--central-certs", s.certs, "apply", "-")
	if code != 0 || !strings.Contains(out, "2 changes applied") {
		t.Error(out, errs, code)
	}
}

// If a change gets no answer, weft sends it again with the same id. Changes that somebody else makes at the
// same time are not lost.
func TestChangesRace(t *testing.T) {
	s := newFleetShell(t)
	s.example()
	s.f.lose = 1
	s.ok("port add web2 net=blue mac=02:00:00:00:00:02")
	if n := len(s.f.seen); s.f.seen[n-1].Id != s.f.seen[n-2].Id {
		t.Error("the second attempt has another id")
	}
	s.f.meddle = func(f *fakeCentral) { f.ports["p-web1"].Addresses = nil }
	s.ok("port set web1 host=")
	if p := s.f.ports["p-web1"]; p.Host != "" || len(p.Addresses) != 0 {
		t.Errorf("%v", p)
	}
	path := s.file("[[net]]\nname='blue'\nvni=101\nflood=true\n")
	s.f.meddle = func(f *fakeCentral) { f.hosts["x"] = &wire.Host{Id: "x", Name: "x", Endpoint: []byte{172, 16, 0, 9}} }
	s.ok("apply " + path)
	if s.f.nets["n-blue"].Vni != 101 {
		t.Error("not applied after an unrelated change")
	}
	s.f.meddle = func(f *fakeCentral) { f.nets["n-blue"].Mtu = 1400 }
	if got := s.do(exit.Failed, "apply", s.file("[[net]]\nname='blue'\nvni=102\nflood=true\n")); !strings.Contains(got, "somebody else changed") || s.f.nets["n-blue"].Vni != 101 {
		t.Error(got, s.f.nets["n-blue"])
	}
}

func TestCentralSave(t *testing.T) {
	s := newFleetShell(t)
	path := filepath.Join(t.TempDir(), "backup")
	if got := s.ok("central save " + path); got != "8 bytes saved\n" {
		t.Error(got)
	}
	text, err := os.ReadFile(path)
	info, _ := os.Stat(path)
	if err != nil || string(text) != "snapshot" || info.Mode().Perm() != 0o600 {
		t.Error(string(text), err, info)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Error("a temporary file is left", left)
	}
}

// If no central answers, the error names every address. If no address is given, the
// error says how to give one.
func TestNoCentral(t *testing.T) {
	s := newFleetShell(t)
	dead := listen(t)
	dead.Close()
	address := dead.Addr().String()
	if got := s.do(exit.Failed, "--central", address, "net", "list"); !strings.Contains(got, "no central answers: "+address) || !strings.Contains(got, "refused") {
		t.Error(got)
	}
	t.Setenv("WEFT_CENTRAL", "")
	s.refused("net list", "expected --central")
}

// weft refuses a central whose certificate is from another certificate authority.
func TestStrangeCentral(t *testing.T) {
	s := newFleetShell(t)
	other, err := pki.NewCA("other")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "other")
	certificate(t, other, dir, pki.Admin)
	addresses := strings.Split(os.Getenv("WEFT_CENTRAL"), ",")
	if got := s.do(exit.Failed, "--central", addresses[1], "--central-certs", dir, "net", "list"); !strings.Contains(got, "unknown authority") {
		t.Error(got)
	}
}

// weft prints all objects of a list that needs several messages.
func TestLongList(t *testing.T) {
	s := newFleetShell(t)
	s.example()
	for i := range 300 {
		id := fmt.Sprint("p", i)
		s.f.ports[id] = &wire.Port{Id: id, Name: id, Net: "n-blue", Mac: []byte{2, 0, 0, 1, byte(i >> 8), byte(i)}}
	}
	var list []listedPort
	if err := json.Unmarshal([]byte(s.ok("--json port list blue")), &list); err != nil || len(list) != 301 {
		t.Fatal(len(list), err)
	}
	if !slices.IsSortedFunc(list, func(a, b listedPort) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("not sorted by name")
	}
}

// centralLines has a valid command line for each verb of weft-central. Each line needs the effects of the
// ones before.
var centralLines = []string{
	"net add blue vni=100", "host add h1 endpoint=172.16.0.1", "port add web1 net=blue host=h1", "net set blue mtu=1400", "host set h1 endpoint=172.16.0.9",
	"port set web1 host=", "net show blue", "host show h1", "port show web1", "port why web1", "net list", "host list", "port list", "export", "sync",
	"secgroup add web", "secgroup add web --may-exist", "secgroup set web name=www", "secgroup show www", "secgroup list", "secgroup del www", "secgroup del www --if-exists",
	"apply -", "apply - --dry-run", "apply - --prune", "central status", "central save FILE",
	"ls-add red", "ls-add red --may-exist", "lsp-add red web2", "lsp-add red web2 --may-exist", "lsp-set-addresses web2 02:00:00:00:00:05", "ls-list", "lsp-list red",
	"lsp-del web2", "lsp-del web2 --if-exists", "ls-del red", "ls-del red --if-exists", "port del web1", "host del h1", "host del h1 --if-exists", "net del blue",
}

func centralJSON(verb string) bool {
	return slices.Contains([]string{"central invite", "central enrol", "central revoke", "central revocations"}, verb) || slices.ContainsFunc(centralLines, func(line string) bool { return strings.HasPrefix(line+" ", verb+" ") })
}

// With --json, every verb of weft-central prints one JSON value.
func TestCentralVerbsHaveJSON(t *testing.T) {
	for _, first := range []bool{true, false} {
		s := newFleetShell(t)
		for _, line := range centralLines {
			args := strings.Fields(strings.Replace(line, "FILE", filepath.Join(t.TempDir(), "f"), 1))
			if first {
				args = append([]string{"--json"}, args...)
			} else {
				args = append(args, "--json")
			}
			out, errs, code := weft(fleetFile, append([]string{"--central-certs", s.certs}, args...)...)
			if n, err := values(out); code != 0 || errs != "" || n != 1 || err != nil {
				t.Errorf("weft %s: %d %s, %d values, %v: %s", strings.Join(args, " "), code, errs, n, err, out)
			}
		}
	}
}
