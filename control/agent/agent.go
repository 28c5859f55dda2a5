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
	"weft/control/loop"
)

// Config has the settings of an Agent.
type Config struct {
	// Centrals are the addresses of the hubs, HOST:PORT. A session uses one of them.
	Centrals []string
	// Credentials has the certificates with which the host and the hub authenticate
	// each other.
	Credentials credentials.TransportCredentials
	// File is the path of the file that keeps the agent's state over restarts; "":
	// the state is not saved.
	File    string
	Version string
	Log     *slog.Logger
}

// Agent follows a hub of weft-central, and programs a switch with what the hub sends.
// The work is done by the method Run.
type Agent struct {
	config Config
	sw     Switch

	mu        sync.Mutex // mutex of all fields below
	state     *state
	pending   *batch          // changes of the field state that the switch has not got yet; a session may end in the middle of a revision
	attached  map[string]bool // names or ids of the ports that the agent has reported to the hub in this session
	seen      map[string]bool // names of the ports that have sent a frame
	questions questions
	pulls     pulls
	decoder   decoder
	first     bool                // true until the session's first Revision has come
	out       chan *wire.FromHost // queue of the session's messages to the hub; nil: there is no session
	stats     Stats

	portsChanged chan struct{}
	save         chan struct{}
	patience     int // see silence; only Run uses it
}

// Stats has counters and the state of the agent, for metrics and status.
type Stats struct {
	Connected bool
	Central   string // address of the hub
	Revision  int64  // newest revision that the switch has applied
	Nets      int
	Places    int
	Asked     uint64 // number of questions sent to the hub
	Pulls     uint64 // number of pulls sent to the hub
	Refused   uint64 // number of questions refused because a port had too many unanswered ones, or the host pulled too often
	Received  uint64 // size of the hub's messages in bytes
	Trouble   string // last error in one line; "": no error
}

const (
	// outbox is the limit of messages in the queue to the hub. At the limit the agent
	// ends the session and opens another one, which begins with the most important
	// messages.
	outbox = 4096
	// leastPause and mostPause are the shortest and the longest pause before the next
	// connection. The pause doubles with each failure. It is random, so that the
	// hosts of a restarted hub do not all connect at once.
	leastPause = 100 * time.Millisecond
	mostPause  = 5 * time.Second
	// savePause is the time between a change of the state and the write of the file.
	// One write saves all changes of this time.
	savePause = time.Second
)

// New returns an agent that programs the switch sw.
func New(config Config, sw Switch) *Agent {
	return &Agent{config: config, sw: sw, state: newState(), pending: newBatch(), attached: map[string]bool{}, seen: map[string]bool{},
		questions: newQuestions(), patience: 1,
		portsChanged: make(chan struct{}, 1), save: make(chan struct{}, 1)}
}

// Restore programs the switch with the state in the file, which the last session
// left. The switch then forwards as before, whether or not a hub answers. The caller
// calls Restore before Run, once the switch has its ports.
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

// Run follows a hub until ctx ends. The ports of this host stay bound to it
// afterwards.
func (a *Agent) Run(ctx context.Context) {
	var done sync.WaitGroup
	done.Go(func() { a.keep(ctx) })
	done.Go(func() { a.watchPorts(ctx) })
	pause := leastPause
	for n := rand.Int(); ctx.Err() == nil; n++ {
		began := time.Now()
		err := a.session(ctx, a.config.Centrals[n%len(a.config.Centrals)])
		a.note(err)
		if time.Since(began) > mostPause {
			pause = leastPause
		}
		if time.Since(began) > calmAfter {
			a.patience = 1
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
		pause = min(2*pause, mostPause)
	}
	done.Wait()
}

// watchPorts follows changes of the switch's ports until ctx ends, with or without a
// session: a guest may restart while no hub answers.
func (a *Agent) watchPorts(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.portsChanged:
			a.mu.Lock()
			a.updatePorts()
			a.apply()
			a.mu.Unlock()
		}
	}
}

// note records the error with which a session ended.
func (a *Agent) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.Connected = false
	if err != nil && a.stats.Trouble != err.Error() {
		a.stats.Trouble = err.Error()
		a.config.Log.Warn("no session with central", "error", err)
	}
}

// Stats returns the present counters and state.
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

// local returns the switch's port that a declaration means: the port whose option id=
// is the declared id or name, or a port without this option whose name is the
// declared id or name. If there is no such port, the Name of the result is "".
func (a *Agent) local(p *wire.Port) LocalPort {
	for _, l := range a.sw.Ports() {
		if key := l.key(); key == p.GetId() || key == p.GetName() {
			return l
		}
	}
	return LocalPort{}
}

// key returns the id or name with which the agent reports a port to the hub: the
// option id= if the port has one, otherwise the port's name.
func (l *LocalPort) key() string {
	if l.ID != "" {
		return l.ID
	}
	return l.Name
}

// PortsChanged implements Events.
func (a *Agent) PortsChanged() { loop.Notify(a.portsChanged) }

// Seen implements Events. If the declared port is not bound to this host, Seen
// reports the frame to the hub, which then completes the port's move to this host.
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

// updatePorts compares the switch's ports with the ports that the hub knows, and
// reports the differences to the hub if there is a session. It collects for the switch
// what the declared ports among them need. The caller holds mu.
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
				// The switch may still have the declaration, although the port was
				// deleted.
				c.ports = append(c.ports, Port{Name: l.name, Gone: true})
				l.name = ""
			}
			if local.Name != "" {
				a.state.setPort(a.state.ports[id].declared, local, c)
			}
		}
	}
}

// send queues a message to the hub. It returns false if there is no session or the
// queue is full. The caller holds mu.
func (a *Agent) send(m *wire.FromHost) bool {
	if a.out == nil {
		return false
	}
	select {
	case a.out <- m:
		return true
	default:
		close(a.out) // the goroutine that sends the messages then ends the session
		a.out = nil
		return false
	}
}

// keys returns the keys of all ports of the switch, sorted.
func (a *Agent) keys() []string {
	var list []string
	for _, l := range a.sw.Ports() {
		list = append(list, l.key())
	}
	slices.Sort(list)
	return list
}
