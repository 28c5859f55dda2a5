// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"weft/central/store"
	"weft/central/wire"
)

const (
	// maxQueue is the limit of bytes in the queue of a session. At the limit the session ends, because
	// the host reads too slowly. The host then connects again, and gets only the networks whose digests
	// differ.
	maxQueue = 32 << 20
	// maxPorts is the limit of ports that one host may report. Beyond it the session ends.
	maxPorts = 4096
	// maxQuestion and maxPull limit the lengths of these messages in bytes, because they may
	// wait for the store. A host's session ends with a longer one.
	maxQuestion = 1 << 10
	maxPull     = 1 << 20
	// maxTrouble limits the bytes that the hub keeps of the error text in a host's report, and
	// maxVersion those of the host's version. The hub cuts off the rest.
	maxTrouble = 4 << 10
	maxVersion = 128
	// maxInterests is the limit of addresses for which one host may ask. The hub sends the host the
	// changes of these addresses.
	maxInterests = 65536
	// maxLate is the limit of addresses that one host waits for with a Pull, because no port has them
	// yet. At the limit, the hub forgets the oldest one. When a port gets this address, the host gets
	// it with its next batch.
	maxLate = 1024
)

var (
	errSlow     = errors.New("the host reads too slowly")
	errReplaced = errors.New("the host has opened another session")
	errNoHost   = errors.New("the host is not declared any more")
	errStopping = errors.New("this central stops")
)

// session is one host's call of the gRPC method Follow. Hub.mu guards its fields, except for the
// message queue.
type session struct {
	host    string // id
	name    string
	version string
	groups  bool // the host obeys the rules of groups
	// names or ids of the host's ports; the value is true if the host has seen a frame
	// of the port
	// ports of the host, by name or id; the value is true if the host has received a frame from the
	// port
	keys      map[string]bool
	own       map[*port]ownPort
	nets      map[*network]int  // number of the host's ports in each network
	known     map[string]uint64 // digests by network id from the host's Hello; nil once the session is open
	interests map[*port]struct{}
	interest  map[want]struct{}
	// addresses that no port had when the host sent a Pull for them, oldest first; some may have been
	// sent to the host in the meantime
	overdue []want
	// ports that have moved to another host and of which this host still has a record; the value is the
	// time at which the record is to be deleted
	moved map[*port]time.Time
	// ports whose binding another central has changed. The hub binds such a port, or deletes its
	// binding, when the host has reported the revision in the value; see the function doubt.
	doubts   map[*port]int64
	applied  int64
	trouble  string
	reported int64 // newest revision for which the hub has asked for a report
	sent     int64 // hub's revision in the last message Revision
	ask      bool  // true if the next Revision asks for a report
	behind   bool  // true if messages were queued after the last Revision
	urgent   bool  // true if the messages queued after the last Revision need not wait in the pacer
	inLine   bool  // true if the session waits in the queue of the pacer
	number   int   // number of sessions that the hub has opened before this one
	fed      int64 // Hub.tick when the last message was sent
	listed   bool  // true if the session is in Hub.queued
	hub      *Hub

	mu     sync.Mutex // mutex of the message queue (the fields below); may be taken while holding Hub.mu
	queued rawBatch
	bytes  int
	empty  bool // an empty batch is due
	err    error
	wake   chan struct{}
}

// ownPort is what the hub has last sent a host about one of the host's ports.
type ownPort struct {
	net   *network
	bound bool // the port is bound to the host, or was and has moved away
}

// want is an address that a host has asked for and that no port has yet.
type want struct {
	net     *network
	address address
}

// Follow implements wire.HubServer. It serves the session of one host, whose first message must be a
// Hello, until the stream ends or the hub ends the session.
func (h *Hub) Follow(stream wire.Hub_FollowServer) error {
	ctx := stream.Context()
	name, err := h.identify(ctx)
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	select {
	case <-h.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetHello() == nil {
		return status.Error(codes.InvalidArgument, "expected Hello as the first message")
	}
	s, err := h.open(name, first.GetHello())
	if err != nil {
		return err
	}
	defer h.end(s)
	go func() {
		for {
			m, err := stream.Recv()
			if err == nil {
				err = h.receive(s, m)
			}
			if err != nil {
				s.close(err)
				return
			}
		}
	}()
	return s.write(ctx, stream)
}

// open begins a session. It sends the host the declarations of its ports, and the networks of these
// ports.
func (h *Hub) open(name string, hello *wire.Hello) (*session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.fleet.hostNames[name]
	if known == nil {
		return nil, status.Errorf(codes.PermissionDenied, "host %s is not declared: weft host add %s", name, name)
	}
	if len(hello.GetPorts()) > maxPorts {
		return nil, status.Errorf(codes.ResourceExhausted, "%d ports: expected at most %d", len(hello.GetPorts()), maxPorts)
	}
	s := &session{host: known.declared.GetId(), name: name, version: cut(hello.GetVersion(), maxVersion), groups: hello.GetGroups(), keys: map[string]bool{},
		own: map[*port]ownPort{}, nets: map[*network]int{}, known: map[string]uint64{}, interests: map[*port]struct{}{},
		interest: map[want]struct{}{}, moved: map[*port]time.Time{}, wake: make(chan struct{}, 1), hub: h,
		number: h.opened, fed: h.tick}
	h.opened++
	if old := h.sessions[s.host]; old != nil {
		old.close(errReplaced)
		h.detachAll(old)
	}
	h.sessions[s.host] = s
	for _, d := range hello.GetKnown() {
		s.known[d.GetNet()] = d.GetDigest()
	}
	s.queue(h.encode(&wire.ToHost{Message: &wire.ToHost_Welcome{Welcome: &wire.Welcome{Host: s.host,
		Endpoint: known.declared.GetEndpoint(), BeatMs: uint32(beatWithin.Milliseconds())}}}))
	for _, key := range hello.GetPorts() {
		h.attach(s, key, false)
	}
	for p := range known.bound {
		h.releaseAbsent(p)
	}
	h.forgetUnused(s, hello)
	s.known = nil
	h.endRevision(s, true)
	return s, nil
}

// forgetUnused makes the host delete what it has saved of networks in which it has no port. The message
// Hello lists the saved networks.
func (h *Hub) forgetUnused(s *session, hello *wire.Hello) {
	for _, d := range hello.GetKnown() {
		if n := h.fleet.nets[d.GetNet()]; n == nil || s.nets[n] == 0 {
			s.queue(h.encode(&wire.ToHost{Message: &wire.ToHost_Update{Update: &wire.NetUpdate{Net: d.GetNet(), Gone: true}}}))
		}
	}
}

func (h *Hub) end(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.detachAll(s)
	if h.sessions[s.host] == s {
		delete(h.sessions, s.host)
	}
	h.checkWaiting()
}

// detachAll removes a session from everything that refers to it. The host's ports stay bound.
func (h *Hub) detachAll(s *session) {
	s.behind = false // the pacer sends the session nothing more
	for key := range s.keys {
		h.announce(key, s, true)
		h.unindex(s, key)
	}
	for p := range s.own {
		p.owners.remove(s)
	}
	for n := range s.nets {
		delete(n.subscribers, s)
	}
	for p := range s.interests {
		p.interested.remove(s)
	}
	for w := range s.interest {
		h.unwant(s, w)
	}
	s.doubts = nil
	s.keys, s.own, s.nets, s.interests, s.interest = map[string]bool{}, map[*port]ownPort{}, map[*network]int{}, map[*port]struct{}{}, map[want]struct{}{}
}

func (h *Hub) unindex(s *session, key string) {
	set := h.attached[key]
	if set.remove(s); set.empty() {
		delete(h.attached, key)
	} else {
		h.attached[key] = set
	}
}

// receive handles one message of a host.
func (h *Hub) receive(s *session, message *wire.FromHost) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sessions[s.host] != s {
		return errReplaced
	}
	switch m := message.GetMessage().(type) {
	case *wire.FromHost_Attach:
		if len(s.keys) >= maxPorts {
			return status.Errorf(codes.ResourceExhausted, "more than %d ports", maxPorts)
		}
		h.attach(s, m.Attach.GetPort(), m.Attach.GetSeen())
	case *wire.FromHost_Detach:
		h.detach(s, m.Detach.GetPort())
	case *wire.FromHost_Applied:
		if applied := m.Applied.GetRevision(); applied <= s.sent { // a higher revision is from before a restore of etcd
			s.applied = max(s.applied, applied)
		}
		s.trouble = cut(m.Applied.GetTrouble(), maxTrouble)
		h.settle(s)
		h.endWaits()
		return nil
	case *wire.FromHost_Question:
		if n := proto.Size(m.Question); n > maxQuestion {
			return status.Errorf(codes.InvalidArgument, "a question of %d bytes: expected at most %d", n, maxQuestion)
		}
		h.question(s, m.Question)
		return nil
	case *wire.FromHost_Pull:
		if n := proto.Size(m.Pull); n > maxPull {
			return status.Errorf(codes.InvalidArgument, "a pull of %d bytes: expected at most %d", n, maxPull)
		}
		h.pull(s, m.Pull)
		return nil
	default: // a message of a later version; its host does not rely on an answer
		h.stats.Unknown++
		return nil
	}
	if s.behind {
		h.wake()
	}
	return nil
}

// cut returns the first n bytes of a text. It copies a longer text, so that the whole text does not
// stay in memory.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(strings.Clone(text[:n]), "")
}

// attach records that the host has a port. key is the port's name or id. "heard" is true if the host
// has received a frame from the port. If the name is too long for a declared port, attach only counts
// it.
func (h *Hub) attach(s *session, key string, heard bool) {
	if len(key) > store.MaxName {
		h.stats.LongNames++
		return
	}
	key = h.presentKey(s, key)
	if _, known := s.keys[key]; !known {
		h.announce(key, s, false)
	}
	s.keys[key] = s.keys[key] || heard
	set := h.attached[key]
	set.add(s)
	h.attached[key] = set
	if p := h.portBy(key); p != nil {
		p.left = ""
		h.updateOwn(s, p)
	}
}

// presentKey returns the name or id under which the session already has the port of a message Attach.
// If it does not have the port, presentKey returns key. Hosts before version 0.3 report a port under
// its name, the port's first frame under its id, and the end of the port only under its name.
func (h *Hub) presentKey(s *session, key string) string {
	if p := h.fleet.ports[key]; p != nil && p.declared != nil {
		if _, present := s.keys[p.declared.GetName()]; present {
			return p.declared.GetName()
		}
	}
	return key
}

func (h *Hub) detach(s *session, key string) {
	p := h.portBy(key)
	if _, known := s.keys[key]; known {
		h.announce(key, s, true)
	}
	delete(s.keys, key)
	h.unindex(s, key)
	if p == nil {
		return
	}
	if !s.attached(p) {
		h.updateOwn(s, p)
		h.releaseAbsent(p)
	}
}

// portBy returns the declared port whose name or id is key.
func (h *Hub) portBy(key string) *port {
	if p := h.fleet.portNames[key]; p != nil {
		return p
	}
	if p := h.fleet.ports[key]; p != nil && p.declared != nil {
		return p
	}
	return nil
}

// attached reports whether the session's host has reported the port as its own.
func (s *session) attached(p *port) bool {
	if _, ok := s.keys[p.id]; ok {
		return true
	}
	_, ok := s.keys[p.declared.GetName()]
	return ok && p.declared != nil
}

// heard reports whether the host has received a frame from the port.
func (s *session) heard(p *port) bool { return s.keys[p.id] || s.keys[p.declared.GetName()] }

// join counts one more port of a session's host in a network. With the first port, the hub sends the
// host the whole network, and from then on its changes. It does not send the network if the digest of
// what the host has saved is still right.
func (h *Hub) join(s *session, n *network) {
	if s.nets[n]++; s.nets[n] > 1 {
		return
	}
	if _, changed := h.fleet.dirty[n]; changed {
		// The other hosts get the changes of this round now. The new host gets them with the whole
		// network.
		h.updateNetwork(n)
	}
	n.subscribers[s] = struct{}{}
	if kept, ok := s.known[n.id]; ok && !n.onDemand && kept == n.digest() {
		return
	}
	s.queue(h.resetOf(n))
}

// leave counts one port less of a session's host in a network. After the last one, the hub sends the
// host no more changes of the network.
func (h *Hub) leave(s *session, n *network) {
	if n == nil || s.nets[n] == 0 { // the network is gone
		return
	}
	if s.nets[n]--; s.nets[n] > 0 {
		return
	}
	delete(s.nets, n)
	delete(n.subscribers, s)
	h.forgetQuestions(s, n)
	s.queue(h.encode(&wire.ToHost{Message: &wire.ToHost_Update{Update: &wire.NetUpdate{Net: n.id, Gone: true}}}))
}

// bind asks the binder to store that the port is on the session's host.
func (h *Hub) bind(s *session, p *port) {
	h.binder.add(job{session: s, request: bindOf(p, s.host, h.endpointOf(s))})
}

// refuse tells a session's host that the store has refused to bind one of the host's
// ports, and why.
func (h *Hub) refuse(s *session, port string, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Refused++
	s.queue(h.encode(&wire.ToHost{Message: &wire.ToHost_Refused{Refused: &wire.Refused{Port: port, Why: reason}}}))
	s.flush()
}

// sayRefused tells a host why one of its ports cannot be bound to this host.
func (h *Hub) sayRefused(s *session, p *port) {
	reason := fmt.Sprintf("port %s: its network is not declared", p.declared.GetName())
	if !s.enforces(p) {
		reason = fmt.Sprintf("port %s has groups, and weftd %s of this host does not know groups: upgrade weftd, or weft port set %s groups=", p.declared.GetName(), s.version, p.declared.GetName())
	} else if !p.bindable(s.host) {
		where := p.declared.GetHost()
		if where == "" {
			where = p.bind.GetHost()
		}
		if at := h.fleet.hosts[where]; !at.deleted() {
			where = at.declared.GetName()
		}
		reason = fmt.Sprintf("port %s belongs to host %s: weft port set %s move-to=%s allows it here", p.declared.GetName(), where, p.declared.GetName(), s.name)
	}
	h.stats.Refused++
	s.queue(h.encode(&wire.ToHost{Message: &wire.ToHost_Refused{Refused: &wire.Refused{Port: p.id, Why: reason}}}))
}

// queue adds a message to the session's queue. The hub sends the queue, followed by a Revision message,
// at the end of the next round or when the pacer allows a batch. The caller holds Hub.mu.
func (s *session) queue(m rawMessage) {
	s.behind = true
	s.hub.list(s)
	s.put(m)
}

// put adds a message to the queue without a Revision message after it. The next call of flush sends all
// queued messages together, in few packets. The caller holds Hub.mu.
func (s *session) put(m rawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.queued = append(s.queued, m)
	if s.bytes += len(m); s.bytes > maxQueue {
		s.err, s.queued = errSlow, nil
		s.hub.stats.SlowSessions++
		s.notify()
		return
	}
	s.hub.stats.Delivered++
	s.hub.stats.DeliveredBytes += uint64(len(m))
}

// flush wakes up the goroutine of the method write, which sends the queued messages in one batch. The
// caller holds Hub.mu.
func (s *session) flush() {
	s.fed = s.hub.tick
	s.hub.stats.Batches++
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify()
}

// beat wakes up the goroutine of the method write, which sends an empty batch. It shows the host that
// the hub is alive. The caller holds Hub.mu.
func (s *session) beat() {
	s.fed = s.hub.tick
	s.mu.Lock()
	defer s.mu.Unlock()
	s.empty = true
	s.notify()
}

// close ends the session's stream with an error.
func (s *session) close(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.notify()
}

func (s *session) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// write sends the queued messages until the session ends.
func (s *session) write(ctx context.Context, stream wire.Hub_FollowServer) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.wake:
		}
		s.mu.Lock()
		queued, err, empty := s.queued, s.err, s.empty
		s.queued, s.bytes, s.empty = nil, 0, false
		s.mu.Unlock()
		if err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
		for len(queued) > 0 || empty {
			var batch rawBatch
			batch, queued = queued.cut()
			empty = false
			if err := stream.SendMsg(batch); err != nil {
				return err
			}
		}
	}
}
