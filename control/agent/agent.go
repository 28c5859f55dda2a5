// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"weft/central/wire"
)

// Config has the settings of an Agent.
type Config struct {
	// Centrals are the addresses of the hubs, HOST:PORT. A session uses one of them.
	Centrals []string
	// Credentials authenticate the host to the hub and the hub to the host.
	Credentials credentials.TransportCredentials
	// File keeps the state over restarts; "": nothing is kept.
	File    string
	Version string
	Log     *slog.Logger
}

// Agent follows a hub and programs a switch. Run does both.
type Agent struct {
	config Config
	sw     Switch

	mu        sync.Mutex // guards what follows
	state     *state
	pending   *batch          // what the switch lacks of state; a session may end in the middle of a revision
	attached  map[string]bool // names or ids of ports that the hub knows of in this session
	seen      map[string]bool // names of ports that sent a frame
	questions questions
	first     bool                // the session's first Revision has not come
	out       chan *wire.FromHost // of the session; nil: there is none
	stats     Stats

	portsChanged chan struct{}
	save         chan struct{}
}

// Stats are the agent's figures, for metrics and status.
type Stats struct {
	Connected bool
	Central   string // address of the hub
	Revision  int64  // newest applied revision
	Nets      int
	Places    int
	Asked     uint64 // questions sent to the hub
	Refused   uint64 // questions refused because a port asks too much
	Received  uint64 // bytes of messages from the hub
	Trouble   string // one line; "": none
}

const (
	// outbox bounds the messages that wait for the connection. At the limit the session
	// ends, and the next one begins with what matters.
	outbox = 4096
	// leastPause and mostPause are the shortest and longest pause before the next
	// connection. The pause doubles with each failure and is random, so that the hosts
	// of a restarted hub do not come at once.
	leastPause = 100 * time.Millisecond
	mostPause  = 5 * time.Second
	// savePause is the time from a change to the file: further changes are written
	// together.
	savePause = time.Second
)

// New returns an agent that programs sw.
func New(config Config, sw Switch) *Agent {
	return &Agent{config: config, sw: sw, state: newState(), pending: newBatch(), attached: map[string]bool{}, seen: map[string]bool{},
		questions:    newQuestions(),
		portsChanged: make(chan struct{}, 1), save: make(chan struct{}, 1)}
}

// Restore programs the switch with the state on disk, as it was at the last session. The
// switch then forwards as before, whether or not a hub answers. Restore is called
// before Run, once the switch has its ports.
func (a *Agent) Restore() error {
	kept, err := readState(a.config.File)
	if err != nil || kept == nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state = stateOf(kept, a.local)
	a.stats.Revision = a.state.revision
	a.state.everything(a.pending)
	c := a.pending.changes()
	a.pending = newBatch()
	return a.sw.Apply(c)
}

// Run follows a hub until ctx ends. Bindings stay when it returns.
func (a *Agent) Run(ctx context.Context) {
	var done sync.WaitGroup
	done.Go(func() { a.keep(ctx) })
	pause := leastPause
	for n := rand.Int(); ctx.Err() == nil; n++ {
		began := time.Now()
		err := a.session(ctx, a.config.Centrals[n%len(a.config.Centrals)])
		a.note(err)
		if time.Since(began) > mostPause {
			pause = leastPause
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
		pause = min(2*pause, mostPause)
	}
	done.Wait()
}

// note records why a session ended.
func (a *Agent) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.Connected = false
	if err != nil && a.stats.Trouble != err.Error() {
		a.stats.Trouble = err.Error()
		a.config.Log.Warn("no session with central", "error", err)
	}
}

// Stats returns the present figures.
func (a *Agent) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.stats
	s.Nets, s.Places = len(a.state.nets), 0
	for _, n := range a.state.nets {
		s.Places += len(n.places)
	}
	return s
}

// local returns the switch's port that a declaration means: the one with its id or name
// as id=, or else the one with its name. Its name is "" if there is none.
func (a *Agent) local(p *wire.Port) LocalPort {
	for _, l := range a.sw.Ports() {
		if key := l.key(); key == p.GetId() || key == p.GetName() {
			return l
		}
	}
	return LocalPort{}
}

// key is the word by which the hub finds the declaration of a port.
func (l *LocalPort) key() string {
	if l.ID != "" {
		return l.ID
	}
	return l.Name
}

// PortsChanged implements Events.
func (a *Agent) PortsChanged() { notify(a.portsChanged) }

// Seen implements Events. The frame of a port that another host has completes a move.
func (a *Agent) Seen(port string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen[port] = true
	for _, l := range a.state.ports {
		if l.name == port && !l.declared.GetBound() {
			a.send(attachOf(l.declared.GetPort().GetId(), true))
		}
	}
}

func attachOf(port string, seen bool) *wire.FromHost {
	return &wire.FromHost{Message: &wire.FromHost_Attach{Attach: &wire.Attach{Port: port, Seen: seen}}}
}

// Ask implements Events.
func (a *Agent) Ask(port string, vni uint32, mac uint64, ip netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, n := range a.state.nets {
		if n.vni() == vni {
			return a.ask(port, question{id, mac, ip})
		}
	}
	return false
}

// updatePorts compares the switch's ports with those that the hub knows. The caller
// holds mu.
func (a *Agent) updatePorts() {
	c := a.pending
	present := map[string]LocalPort{}
	for _, l := range a.sw.Ports() {
		present[l.key()] = l
	}
	for key := range a.attached {
		if _, ok := present[key]; !ok {
			delete(a.attached, key)
			a.send(&wire.FromHost{Message: &wire.FromHost_Detach{Detach: &wire.Detach{Port: key}}})
		}
	}
	for key := range present {
		if !a.attached[key] {
			a.attached[key] = true
			a.send(attachOf(key, false))
		}
	}
	for id, l := range a.state.ports {
		p := l.declared.GetPort()
		local, ok := present[p.GetId()]
		if !ok {
			local = present[p.GetName()]
		}
		if local.Name != l.name || local.Added != l.added {
			delete(a.seen, l.name)
			if l.name != "" {
				a.state.release(id, l, c)
				l.name = "" // the switch has removed the port itself
			}
			if local.Name != "" {
				a.state.setPort(a.state.ports[id].declared, local, c)
			}
		}
	}
}

// send queues a message of the session, if there is one. The caller holds mu.
func (a *Agent) send(m *wire.FromHost) bool {
	if a.out == nil {
		return false
	}
	select {
	case a.out <- m:
		return true
	default:
		close(a.out) // the session ends
		a.out = nil
		return false
	}
}

// keys returns the words of the switch's ports, sorted.
func (a *Agent) keys() []string {
	var list []string
	for _, l := range a.sw.Ports() {
		list = append(list, l.key())
	}
	slices.Sort(list)
	return list
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
