// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"weft/central/centraltest"
	"weft/central/pki"
	"weft/central/wire"
	"weft/control/agent"
)

// The declaration of TestHistory has the networks blue and bulk. All hosts want the
// ports s0, s1, ... of blue, which never change. Writer 0 moves the ports m0, m1, ...
// of blue between hosts. Each writer sets and deletes its own ports w<writer>-<n> of
// blue. Writer 1 changes all ports of bulk in one request, which is larger than a
// transaction of etcd.
const (
	historyHosts, historyWriters             = 5, 3
	sharedPorts, movedPorts, ownPorts        = 6, 4, 5
	bulkPorts                                = 1200
	historyVNI                        uint32 = 100
)

// answerTimeout is how long a writer waits for the answer of one central.
const answerTimeout = 1500 * time.Millisecond

func blue(id string, mac byte) *wire.Port {
	return &wire.Port{Id: id, Name: id, Net: "blue", Mac: []byte{2, 0, 0, 0, 0, mac}, Addresses: [][]byte{{10, 0, 0, mac}}}
}

// bulk returns port number n of the network bulk. Its addresses depend on the variant.
func bulk(n, variant int) *wire.Port {
	return &wire.Port{Id: fmt.Sprint("bulk", n), Name: fmt.Sprint("bulk", n), Net: "bulk",
		Mac: []byte{2, 0, 1, byte(variant), byte(n >> 8), byte(n)}, Addresses: [][]byte{{10, byte(variant + 1), byte(n >> 8), byte(n)}}}
}

func setNet(id string, vni uint32) *wire.Change {
	return &wire.Change{Change: &wire.Change_SetNet{SetNet: &wire.Net{Id: id, Name: id, Vni: vni}}}
}

func setPort(p *wire.Port) *wire.Change {
	return &wire.Change{Change: &wire.Change_SetPort{SetPort: p}}
}

func deletePort(id string) *wire.Change {
	return &wire.Change{Change: &wire.Change_DeletePort{DeletePort: id}}
}

// ack records an acknowledged write of a port.
type ack struct {
	revision int64
	port     *wire.Port // nil: deleted
}

// historyWriter is an administrator of the test. Nobody else changes its ports, except
// that a binding completes a move.
type historyWriter struct {
	s       *historySite
	number  int
	random  *rand.Rand
	admins  []wire.AdminClient
	variant int // of the ports of network bulk
	// acks has the acknowledged writes of this writer's ports, by port id.
	acks     map[string][]ack
	requests int
	refused  int
}

func newHistoryWriter(s *historySite, number int) *historyWriter {
	s.t.Helper()
	w := &historyWriter{s: s, number: number, random: rand.New(rand.NewPCG(s.seed, uint64(200+number))), acks: map[string][]ack{}}
	w.admins = s.dial(fmt.Sprint("admin", number), pki.Admin)
	return w
}

// dial returns a client of each central.
func (s *historySite) dial(name string, role pki.Role) (list []wire.AdminClient) {
	s.t.Helper()
	keys := s.keys(filepath.Join(s.dir, name), name, role)
	for _, c := range s.centrals {
		conn, err := grpc.NewClient(c.address(), grpc.WithTransportCredentials(credentials.NewTLS(keys.Client())))
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = conn.Close() })
		list = append(list, wire.NewAdminClient(conn))
	}
	return list
}

// apply sends a request with the changes to one central after the other. It uses the
// same request id each time, and ends when a central acknowledges or refuses the
// request.
func (w *historyWriter) apply(changes ...*wire.Change) (acknowledged bool) {
	w.requests++
	request := &wire.ChangeRequest{Id: fmt.Sprintf("writer%d-%d", w.number, w.requests), Changes: changes}
	for {
		ctx, cancel := context.WithTimeout(w.s.t.Context(), answerTimeout+time.Duration(len(changes))*2*time.Millisecond)
		reply, err := w.admins[w.random.IntN(len(w.admins))].Apply(ctx, request)
		cancel()
		switch status.Code(err) {
		case codes.OK:
			w.note(reply.GetRevision(), changes)
			return true
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
			if w.s.t.Context().Err() != nil {
				return false
			}
			time.Sleep(10 * time.Millisecond)
		case codes.PermissionDenied, codes.Unauthenticated, codes.Internal, codes.Unknown:
			w.s.t.Errorf("%s: %v", request.Id, err)
			return false
		default:
			w.refused++
			return false
		}
	}
}

// note records an acknowledged request.
func (w *historyWriter) note(revision int64, changes []*wire.Change) {
	for _, c := range changes {
		if p := c.GetSetPort(); p != nil {
			w.acks[p.Id] = append(w.acks[p.Id], ack{revision, p})
		} else if id := c.GetDeletePort(); id != "" {
			w.acks[id] = append(w.acks[id], ack{revision, nil})
		}
	}
	w.s.seen.acknowledge(revision, len(changes) == bulkPorts)
}

// declare declares the networks and the hosts, and the ports that writers and hosts share.
func (w *historyWriter) declare() {
	changes := []*wire.Change{setNet("blue", historyVNI), setNet("bulk", historyVNI+1)}
	for i := range historyHosts {
		name := fmt.Sprint("h", i)
		changes = append(changes, &wire.Change{Change: &wire.Change_SetHost{SetHost: &wire.Host{Id: name, Name: name, Endpoint: []byte{192, 0, 2, byte(i + 1)}}}})
	}
	for i := range sharedPorts {
		changes = append(changes, setPort(blue(fmt.Sprint("s", i), byte(0xa0+i))))
	}
	for i := range movedPorts {
		changes = append(changes, setPort(blue(fmt.Sprint("m", i), byte(0xb0+i))))
	}
	if !w.apply(changes...) {
		w.s.t.Fatal("the declaration is refused")
	}
}

func (w *historyWriter) work(stop chan struct{}) {
	for sleepUntil(stop, time.Duration(w.random.IntN(60))*time.Millisecond) {
		switch n := w.random.IntN(12); {
		case w.number == 0 && n < 6:
			w.move()
		case w.number == 1 && n < 2:
			w.changeBulk()
		default:
			w.changeOwn()
		}
	}
}

// changeOwn sets or deletes one of the writer's ports. The ports share a few addresses
// and names, so that many requests are refused.
func (w *historyWriter) changeOwn() {
	id := fmt.Sprintf("w%d-%d", w.number, w.random.IntN(ownPorts))
	p := blue(id, byte(1+w.random.IntN(12)))
	p.Addresses[0][3] = byte(1 + w.random.IntN(12))
	if w.random.IntN(3) == 0 {
		p.Name = fmt.Sprint("name", w.random.IntN(6))
	}
	known := w.acks[id]
	if len(known) > 0 && known[len(known)-1].port != nil && w.random.IntN(3) == 0 {
		w.apply(deletePort(id))
	} else {
		w.apply(setPort(p))
	}
}

// move changes the declaration of a port: it restricts the port to a host, lets it move
// to another host, or removes the restriction.
func (w *historyWriter) move() {
	n := w.random.IntN(movedPorts)
	p := blue(fmt.Sprint("m", n), byte(0xb0+n))
	if w.random.IntN(4) > 0 {
		p.Host = fmt.Sprint("h", w.random.IntN(historyHosts))
		if to := fmt.Sprint("h", w.random.IntN(historyHosts)); to != p.Host && w.random.IntN(2) == 0 {
			p.MoveTo = to
		}
	}
	w.apply(setPort(p))
}

func (w *historyWriter) changeBulk() {
	changes := make([]*wire.Change, bulkPorts)
	w.variant = (w.variant + 1) % 3
	for n := range changes {
		if changes[n] = setPort(bulk(n, w.variant)); w.variant == 0 {
			changes[n] = deletePort(fmt.Sprint("bulk", n))
		}
	}
	if !w.apply(changes...) && w.s.t.Context().Err() == nil {
		w.s.t.Errorf("the ports of variant %d are refused", w.variant)
	}
}

// historyHost is a simulated host: an agent, and a recorder in place of the switch.
type historyHost struct {
	s           *historySite
	number      int
	name        string
	endpoint    netip.Addr
	credentials credentials.TransportCredentials
	random      *rand.Rand
	added       uint64
	local       []agent.LocalPort

	recorder *centraltest.Recorder
	agent    *agent.Agent
	stop     func()
}

// start starts the host's agent, and a recorder that has no addresses yet.
func (h *historyHost) start() {
	h.recorder = centraltest.NewRecorder(h.local...)
	h.recorder.OnApply(func(c *agent.Changes) { h.s.seen.applied(h, c) })
	h.agent = agent.New(agent.Config{Centrals: h.s.addresses(h.number), Credentials: h.credentials,
		File: filepath.Join(h.s.dir, h.name+".state"), Version: "test", Log: discard}, h.recorder)
	if err := h.agent.Restore(); err != nil {
		h.s.t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	run := h.agent
	running.Go(func() { run.Run(ctx) })
	h.stop = func() { cancel(); running.Wait() }
}

func (h *historyHost) halt() { h.stop() }

// names returns the names of the ports that hosts plug in.
func (h *historyHost) names() (list []string) {
	for i := range sharedPorts {
		list = append(list, fmt.Sprint("s", i))
	}
	for i := range movedPorts {
		list = append(list, fmt.Sprint("m", i))
	}
	for i := range historyWriters {
		for n := range ownPorts {
			list = append(list, fmt.Sprintf("w%d-%d", i, n))
		}
	}
	return list
}

// work plugs ports in and out, lets them send a first frame, and restarts the agent.
func (h *historyHost) work(stop chan struct{}) {
	names := h.names()
	for sleepUntil(stop, time.Duration(20+h.random.IntN(200))*time.Millisecond) {
		name := names[h.random.IntN(len(names))]
		at := slices.IndexFunc(h.local, func(l agent.LocalPort) bool { return l.Name == name })
		switch {
		case h.random.IntN(60) == 0:
			h.stop()
			h.start()
		case at < 0:
			h.added++
			h.plug(append(slices.Clone(h.local), agent.LocalPort{Name: name, Up: true, Added: h.added}))
		case h.random.IntN(2) == 0:
			h.agent.Seen(name)
		default:
			h.plug(slices.Delete(slices.Clone(h.local), at, at+1))
		}
	}
}

func (h *historyHost) plug(local []agent.LocalPort) {
	h.local = local
	h.recorder.SetPorts(local...)
	h.agent.PortsChanged()
}

// read repeatedly lists the declaration at random centrals.
func (s *historySite) read(stop chan struct{}) {
	admins, r := s.dial("reader", pki.Reader), rand.New(rand.NewPCG(s.seed, 300))
	for sleepUntil(stop, 100*time.Millisecond) {
		least := s.seen.acknowledged()
		ctx, cancel := context.WithTimeout(s.t.Context(), answerTimeout)
		revision, ports, err := list(ctx, admins[r.IntN(len(admins))])
		cancel()
		if err == nil {
			s.seen.listed(least, revision, ports)
		}
	}
}

func list(ctx context.Context, a wire.AdminClient) (revision int64, ports map[string]*wire.Port, err error) {
	stream, err := a.List(ctx, &wire.ListRequest{Ports: true})
	if err != nil {
		return 0, nil, err
	}
	ports = map[string]*wire.Port{}
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return revision, ports, nil
		}
		if err != nil {
			return 0, nil, err
		}
		revision = r.GetRevision()
		for _, p := range r.GetPorts() {
			ports[p.Id] = p
		}
	}
}

// observations records what clients and agents have seen.
type observations struct {
	mu     sync.Mutex
	newest int64 // newest acknowledged revision
	writes int   // number of acknowledged requests
	bulks  int   // number of acknowledged requests that change the network bulk
	lists  []listing
	// places has the places that agents have programmed in network blue. The outer key is a MAC address
	// with its generation. The inner key is the name of the host that has the port. The value is a host
	// whose agent has programmed this place.
	places map[placeKey]map[string]string
}

type listing struct {
	oldest   int64 // newest revision that had been acknowledged when the list was requested
	revision int64
	ports    map[string]*wire.Port
}

type placeKey struct {
	mac        uint64
	generation int64
}

func (o *observations) acknowledge(revision int64, bulk bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.newest = max(o.newest, revision)
	if o.writes++; bulk {
		o.bulks++
	}
}

// enough reports whether the history is long enough to test something. On a busy machine this
// takes longer than historyTime. Each binding makes at least one place.
func (o *observations) enough() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.writes >= historyLeast && o.bulks > 0 && len(o.places) >= 2*historyLeast
}

func (o *observations) acknowledged() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.newest
}

func (o *observations) listed(oldest, revision int64, ports map[string]*wire.Port) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lists = append(o.lists, listing{oldest, revision, ports})
}

// applied notes the changes that an agent makes to the switch of its host.
func (o *observations) applied(h *historyHost, c *agent.Changes) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, a := range c.Addresses {
		host := h.name
		if a.Port == "" {
			host = fmt.Sprint("h", int(a.Remote.As4()[3])-1)
		}
		if o.places == nil {
			o.places = map[placeKey]map[string]string{}
		}
		k := placeKey{a.MAC, a.Generation}
		if o.places[k] == nil {
			o.places[k] = map[string]string{}
		}
		o.places[k][host] = h.name
	}
}

// equalPorts compares two declarations.
func equalPorts(a, b map[string]*wire.Port) string {
	for id := range maps.Keys(a) {
		if !proto.Equal(a[id], b[id]) {
			return fmt.Sprintf("%s: %v and %v", id, a[id], b[id])
		}
	}
	if len(a) != len(b) {
		return fmt.Sprintf("%d and %d ports", len(a), len(b))
	}
	return ""
}
