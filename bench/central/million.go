// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"weft/bench"
	"weft/central/wire"
)

// The functions below measure one hub, the part of weft-central that hosts are clients of. It has a
// million ports in one network. Hosts do not receive all addresses of such a large network, but ask the
// hub for those that they need.
//
// Only the hub is real. Its store is in the memory of the hub's process. If a host already has a port
// when the port is declared, the store binds the port to the host in the same transaction, as
// weft-central does.
//
// A host is a plain client of the hub's gRPC stream, without TLS. It reports its ports, asks for some
// addresses, and notes when the hub sends a changed address.
const (
	millionBatch = 10_000 // ports of one request
	// millionInFlight limits the requests without an answer. With two, neither this process nor the hub
	// waits for the other.
	millionInFlight = 2
	// questions is the number of addresses for which each host asks the hub. The host chooses them at
	// random among the first "popular" ports, so many hosts ask for the same port.
	questions = 50
	popular   = 10_000
	// millionChanges is the number of changed ports, and millionEvery the time between
	// two changes.
	millionChanges = 500
	millionEvery   = 20 * time.Millisecond
)

// million is one run of Million.
type million struct {
	Options
	rows  []Row
	hub   *exec.Cmd
	admin wire.AdminClient
	conns []*grpc.ClientConn
	hosts []*millionHost

	bound    atomic.Int64 // number of ports of which a host has learned that it is bound to it
	answered atomic.Int64

	mu        sync.Mutex // guards the fields below
	changed   map[string]time.Duration
	durations []time.Duration
}

// millionHost is a simulated host.
type millionHost struct {
	m      *million
	n      int
	stream wire.Hub_FollowClient
	own    map[string]bool // ids of the ports bound to the host; only the receiving goroutine uses it
	mu     sync.Mutex      // held while a message is sent
}

func (h *millionHost) send(message *wire.FromHost) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stream.Send(message)
}

// Million runs the test and returns the measured values.
func Million(ctx context.Context, o Options) (rows []Row, err error) {
	m := &million{Options: o, changed: map[string]time.Duration{}}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Limit, errTime)
	defer cancel()
	defer m.end()
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{m.start, m.load, m.interest, m.change} {
		if err := step(ctx); err != nil {
			return m.rows, err
		}
	}
	return m.rows, nil
}

func (m *million) add(name string, value float64, unit string) {
	m.rows = append(m.rows, Row{"million", name, value, unit})
	m.Log("  %-58s %12.3f %s", name, value, unit)
}

func (m *million) end() {
	for _, c := range m.conns {
		_ = c.Close()
	}
	if m.hub != nil && m.hub.Process != nil {
		_ = m.hub.Process.Kill()
		_ = m.hub.Wait()
	}
}

func (m *million) dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		m.conns = append(m.conns, conn)
	}
	return conn, err
}

func (m *million) start(ctx context.Context) error {
	socket := filepath.Join(m.Dir, "hub.sock")
	m.hub = exec.Command("/proc/self/exe", os.Args[1:]...)
	m.hub.Env = append(os.Environ(), hubVariable+"="+socket, hubProfileVariable+"="+m.Profile)
	m.hub.Stderr = os.Stderr
	if err := bench.StartWithParent(m.hub); err != nil {
		return err
	}
	if _, err := await(ctx, "the hub starts", func() bool { _, err := os.Stat(socket); return err == nil }); err != nil {
		return err
	}
	conn, err := m.dial(socket)
	if err != nil {
		return err
	}
	m.admin = wire.NewAdminClient(conn)
	first := &wire.ChangeRequest{Changes: []*wire.Change{{Change: &wire.Change_SetNet{SetNet: &wire.Net{Id: "n0", Name: "net0", Vni: 1000}}}}}
	for n := range m.Hosts {
		first.Changes = append(first.Changes, &wire.Change{Change: &wire.Change_SetHost{SetHost: &wire.Host{Id: fmt.Sprint("h", n), Name: hostName(n), Endpoint: endpointOf(n).AsSlice()}}})
	}
	if _, err := m.admin.Apply(ctx, first); err != nil {
		return err
	}
	var shared *grpc.ClientConn
	for n := range m.Hosts {
		if n%maxMillionStreams == 0 {
			if shared, err = m.dial(socket); err != nil {
				return err
			}
		}
		h := &millionHost{m: m, n: n, own: map[string]bool{}}
		if h.stream, err = wire.NewHubClient(shared).Follow(metadata.AppendToOutgoingContext(ctx, hostHeader, hostName(n))); err != nil {
			return err
		}
		m.hosts = append(m.hosts, h)
	}
	return nil
}

// port returns port number i. The port is on host i modulo the number of hosts. Each value of turn
// gives it another address.
func (m *million) port(i, turn int) *wire.Port {
	var mac [8]byte
	binary.BigEndian.PutUint64(mac[:], 0x020000000000|uint64(i))
	return &wire.Port{Id: fmt.Sprint("p", i), Name: fmt.Sprint("port", i), Net: "n0", Mac: mac[2:],
		Addresses: [][]byte{{byte(16 + turn), byte(i >> 16), byte(i >> 8), byte(i)}}}
}

// load declares all ports. The hosts report their ports before that. load returns when every host has
// learned that all its ports are bound to it.
func (m *million) load(ctx context.Context) error {
	began := clock()
	for _, h := range m.hosts {
		hello := &wire.Hello{Version: "bench"}
		for i := h.n; i < m.Ports; i += m.Hosts {
			hello.Ports = append(hello.Ports, fmt.Sprint("port", i))
		}
		if err := h.send(&wire.FromHost{Message: &wire.FromHost_Hello{Hello: hello}}); err != nil {
			return err
		}
		go h.receive()
	}
	requests, requestCtx := errgroup.WithContext(ctx)
	requests.SetLimit(millionInFlight)
	for i := 0; i < m.Ports; i += millionBatch {
		requests.Go(func() error {
			request := &wire.ChangeRequest{}
			for j := i; j < min(i+millionBatch, m.Ports); j++ {
				request.Changes = append(request.Changes, &wire.Change{Change: &wire.Change_SetPort{SetPort: m.port(j, 0)}})
			}
			_, err := m.admin.Apply(requestCtx, request)
			return err
		})
	}
	if err := requests.Wait(); err != nil {
		return err
	}
	m.add("ports written", (clock() - began).Seconds(), "s")
	at, err := await(ctx, "hosts get their ports", func() bool { return m.bound.Load() == int64(m.Ports) })
	if err != nil {
		return fmt.Errorf("%w: %d of %d", err, m.bound.Load(), m.Ports)
	}
	m.add("load", (at - began).Seconds(), "s")
	m.add("CPU time of the hub", CPUOf(m.hub.Process.Pid).Seconds(), "s")
	m.add("CPU time of the simulated hosts and the driver", CPUOf(os.Getpid()).Seconds(), "s")
	return nil
}

// interest makes each host ask the hub for the addresses of some popular ports, and waits for the
// answers.
func (m *million) interest(ctx context.Context) error {
	began := clock()
	for _, h := range m.hosts {
		random := rand.New(rand.NewPCG(m.Seed, uint64(h.n)))
		for q := range questions {
			p := m.port(random.IntN(min(popular, m.Ports)), 0)
			if err := h.send(&wire.FromHost{Message: &wire.FromHost_Question{Question: &wire.Question{Number: uint64(q + 1), Net: "n0",
				Of: &wire.Question_Mac{Mac: p.Mac}}}}); err != nil {
				return err
			}
		}
	}
	at, err := await(ctx, "questions are answered", func() bool { return m.answered.Load() == int64(m.Hosts*questions) })
	if err != nil {
		return fmt.Errorf("%w: %d of %d", err, m.answered.Load(), m.Hosts*questions)
	}
	m.add("questions answered", float64(m.Hosts*questions)/(at-began).Seconds(), "questions/s")
	if stream, err := m.admin.Save(ctx, &wire.SaveRequest{}); err == nil {
		_, _ = stream.Recv() // the end of the stream
	}
	now, most := MemoryOf(m.hub.Process.Pid)
	m.add("resident memory of the hub", float64(now), "B")
	m.add("highest resident memory of the hub", float64(most), "B")
	return nil
}

// change changes the addresses of popular ports at a fixed rate. It measures how long each change takes
// to arrive at each host that has asked for the port.
func (m *million) change(ctx context.Context) error {
	interested := make([]int, min(popular, m.Ports))
	for n := range m.hosts {
		random := rand.New(rand.NewPCG(m.Seed, uint64(n)))
		seen := map[int]bool{}
		for range questions {
			// the hub sends the change to the port's own host in any case
			if i := random.IntN(len(interested)); !seen[i] && i%m.Hosts != n {
				seen[i] = true
				interested[i]++
			}
		}
	}
	want := 0
	var done sync.WaitGroup
	var failed atomic.Pointer[error]
	for c, next := 0, clock(); c < millionChanges; c, next = c+1, next+millionEvery {
		time.Sleep(next - clock())
		i := c * len(interested) / millionChanges
		want += interested[i] + 1
		p := m.port(i, 1)
		m.mu.Lock()
		m.changed[p.Id] = clock()
		m.mu.Unlock()
		done.Go(func() {
			if _, err := m.admin.Apply(ctx, &wire.ChangeRequest{Changes: []*wire.Change{{Change: &wire.Change_SetPort{SetPort: p}}}}); err != nil {
				failed.Store(&err)
			}
		})
	}
	done.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	count := func() int { m.mu.Lock(); defer m.mu.Unlock(); return len(m.durations) }
	if _, err := await(ctx, "hosts receive changes", func() bool { return count() >= want }); err != nil {
		return fmt.Errorf("%w: %d of %d", err, count(), want)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.durations) != want {
		return fmt.Errorf("%d changes arrived, expected %d", len(m.durations), want)
	}
	slices.Sort(m.durations)
	m.add("change to interested hosts, median", Quantile(m.durations, 0.5).Seconds(), "s")
	m.add("change to interested hosts, 99 %", Quantile(m.durations, 0.99).Seconds(), "s")
	m.add("change to interested hosts, longest", Quantile(m.durations, 1).Seconds(), "s")
	m.add("changes that hosts received", float64(want), "changes")
	return nil
}

func (h *millionHost) receive() {
	for {
		message, err := h.stream.Recv()
		if err != nil {
			return
		}
		for _, one := range message.GetBatch().GetMessages() {
			h.take(one)
		}
		h.take(message)
	}
}

func (h *millionHost) take(message *wire.ToHost) {
	m := h.m
	switch t := message.GetMessage().(type) {
	case *wire.ToHost_Port:
		for _, l := range t.Port.GetPorts() {
			if id := l.GetPort().GetId(); l.GetBound() && !h.own[id] {
				h.own[id] = true
				m.bound.Add(1)
			}
		}
	case *wire.ToHost_Answer:
		if t.Answer.GetPlace() != nil {
			m.answered.Add(1)
		}
	case *wire.ToHost_Update:
		for _, p := range t.Update.GetPlaces() {
			if a := p.GetAddresses(); len(a) == 1 && a[0][0] == 17 {
				h.changed(p.GetPort())
			}
		}
	case *wire.ToHost_Revision:
		if t.Revision.GetReport() {
			_ = h.send(&wire.FromHost{Message: &wire.FromHost_Applied{Applied: &wire.Applied{Revision: t.Revision.GetRevision()}}})
		}
	}
}

func (h *millionHost) changed(port string) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if h.own[port+" changed"] {
		return // the hub sends the addresses of a port twice to the port's own host
	}
	h.own[port+" changed"] = true
	h.m.durations = append(h.m.durations, clock()-h.m.changed[port])
}
