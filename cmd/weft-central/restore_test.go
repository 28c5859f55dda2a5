// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"weft/central/centraltest"
	"weft/central/pki"
	"weft/central/store"
	"weft/central/wire"
	"weft/control/agent"
)

// lone is a test fleet: one central, which is a process on 127.0.0.1, and agents in
// this process.
type lone struct {
	t       *testing.T
	dir     string
	address string
	ca      *pki.CA
	admin   wire.AdminClient
	cmd     *exec.Cmd
	hosts   map[string]*loneHost
}

type loneHost struct {
	name     string
	recorder *centraltest.Recorder
	agent    *agent.Agent
	local    []agent.LocalPort
	added    uint64
}

// freeAddress returns an address of this machine on which nobody listens now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func newLone(t *testing.T, args ...string) *lone {
	t.Helper()
	l := &lone{t: t, dir: t.TempDir(), address: freeAddress(t), hosts: map[string]*loneHost{}}
	l.mustRun(append([]string{"init", "--name", "a", "--address", l.address, "--peer", freeAddress(t), "--data", l.dir}, args...)...)
	l.begin()
	return l
}

// begin starts the central for the first time, and connects the administrator.
func (l *lone) begin() {
	l.t.Helper()
	var err error
	if l.ca, err = pki.LoadCA(filepath.Join(l.dir, "ca.pem"), filepath.Join(l.dir, "ca-key.pem")); err != nil {
		l.t.Fatal(err)
	}
	l.run()
	l.t.Cleanup(l.kill)
	l.admin = l.dial(pki.FilesIn(filepath.Join(l.dir, "admin")))
}

func (l *lone) command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), centralEnv+"=1")
	return cmd
}

func (l *lone) mustRun(args ...string) {
	l.t.Helper()
	if out, err := l.command(args...).CombinedOutput(); err != nil {
		l.t.Fatalf("%v: %v: %s", args, err, out)
	}
}

func (l *lone) run() {
	l.t.Helper()
	l.cmd = l.command("run", "--data", l.dir)
	l.cmd.Stderr = os.Stderr
	if err := l.cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lone) kill() {
	_ = l.cmd.Process.Signal(syscall.SIGKILL)
	_ = l.cmd.Wait()
}

// dial returns a client of the central that uses the certificate in files.
func (l *lone) dial(files pki.Files) wire.AdminClient {
	l.t.Helper()
	keys, err := pki.Load(files)
	if err != nil {
		l.t.Fatal(err)
	}
	conn, err := grpc.NewClient(l.address, grpc.WithTransportCredentials(credentials.NewTLS(keys.Client())))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = conn.Close() })
	return wire.NewAdminClient(conn)
}

// retry calls f until f succeeds.
func (l *lone) retry(f func(context.Context) error) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		if status.Code(err) != codes.Unavailable || ctx.Err() != nil {
			l.t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (l *lone) apply(changes ...*wire.Change) {
	l.t.Helper()
	l.retry(func(ctx context.Context) error {
		_, err := l.admin.Apply(ctx, &wire.ChangeRequest{Changes: changes})
		return err
	})
}

// host starts a host's agent.
func (l *lone) host(name string) *loneHost {
	l.t.Helper()
	keys := centraltest.Keys(l.t, l.ca, l.t.TempDir(), name, pki.Host, pki.DefaultLife)
	h := &loneHost{name: name, recorder: centraltest.NewRecorder()}
	h.agent = agent.New(agent.Config{Centrals: []string{l.address}, Credentials: credentials.NewTLS(keys.Client()), Version: "test", Log: discard}, h.recorder)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.agent.Run(ctx)
	}()
	l.t.Cleanup(func() { cancel(); <-ended })
	l.hosts[name] = h
	return h
}

// plug sets the list of ports that are plugged into the host.
func (h *loneHost) plug(names ...string) {
	local := slices.DeleteFunc(slices.Clone(h.local), func(l agent.LocalPort) bool { return !slices.Contains(names, l.Name) })
	for _, name := range names {
		if !slices.ContainsFunc(local, func(l agent.LocalPort) bool { return l.Name == name }) {
			h.added++
			local = append(local, agent.LocalPort{Name: name, Up: true, Added: h.added})
		}
	}
	h.local = local
	h.recorder.SetPorts(local...)
	h.agent.PortsChanged()
}

// settle waits until all hosts are programmed as the store demands, and each port is
// bound to its host in the map hosts.
func (l *lone) settle(hosts map[string]string) {
	l.t.Helper()
	client, err := store.Dial([]string{"unix://" + filepath.Join(l.dir, "etcd.sock")}, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	defer client.Close()
	last := ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(l.t.Context(), 5*time.Second)
		_, objects, err := store.New(client).Objects(ctx, store.KindNet, store.KindHost, store.KindPort, store.KindBind)
		cancel()
		if err != nil {
			last = err.Error()
			continue
		}
		if last = l.difference(centraltest.DeclarationOf(slices.Values(objects)), hosts); last == "" {
			return
		}
	}
	l.t.Errorf("not as expected: %s", last)
}

func (l *lone) difference(d *centraltest.Declaration, hosts map[string]string) string {
	if len(d.Ports) != len(hosts) {
		return fmt.Sprintf("%d ports, expected %d", len(d.Ports), len(hosts))
	}
	for port, host := range hosts {
		if got := d.Binds[port].GetHost(); got != host {
			return fmt.Sprintf("port %s is bound to %q, expected %q", port, got, host)
		}
	}
	for _, h := range l.hosts {
		if got := d.Expect(h.name, h.local, func(string) bool { return false }).Difference(h.recorder); got != "" {
			return h.name + ": " + got
		}
	}
	return ""
}

func setHost(id string, last byte) *wire.Change {
	return &wire.Change{Change: &wire.Change_SetHost{SetHost: &wire.Host{Id: id, Name: id, Endpoint: []byte{192, 0, 2, last}}}}
}

// A store is restored from a backup while hosts know a newer declaration and newer
// bindings. The hosts then take the restored declaration and bindings over, even those
// with smaller generations.
func TestRestoreBehindHosts(t *testing.T) {
	l := newLone(t)
	pinned := func(host string) *wire.Port {
		p := blue("pinned", 6)
		p.Host = host
		return p
	}
	l.apply(setNet("blue", 100), setHost("h1", 1), setHost("h2", 2), setPort(blue("stays", 1)), setPort(blue("goes", 2)),
		setPort(blue("changes", 3)), setPort(blue("deleted", 4)), setPort(pinned("h1")))
	h1, h2 := l.host("h1"), l.host("h2")
	h1.plug("stays", "goes", "changes", "deleted", "pinned")
	l.settle(map[string]string{"stays": "h1", "goes": "h1", "changes": "h1", "deleted": "h1", "pinned": "h1"})
	h2.plug("pinned", "new")
	backup := filepath.Join(t.TempDir(), "backup")
	l.retry(func(ctx context.Context) error { return save(ctx, l.admin, backup) })

	changed := proto.CloneOf(blue("changes", 3))
	changed.Mac[5] = 33
	l.apply(setPort(changed), deletePort("deleted"), setPort(blue("new", 5)), setPort(pinned("h2")))
	// the port named "pinned" is not on h1, because it would stay bound to h1 for a while after
	// its move
	h1.plug("stays", "changes", "deleted")
	h2.plug("goes", "pinned", "new")
	l.settle(map[string]string{"stays": "h1", "goes": "h2", "changes": "h1", "new": "h2", "pinned": "h2"})

	l.kill()
	h1.plug("stays", "changes", "deleted", "pinned")
	l.mustRun("restore", "--data", l.dir, backup)
	l.run()
	l.settle(map[string]string{"stays": "h1", "goes": "h2", "changes": "h1", "deleted": "h1", "pinned": "h1"})
}
