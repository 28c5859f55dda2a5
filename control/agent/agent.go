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
	// Centrals lists the addresses of the weft-central servers (hubs) as HOST:PORT. The agent is connected
	// to one of them at a time.
	Centrals []string
	// Credentials has the host's certificates.
	Credentials credentials.TransportCredentials
	// File is the path of the file that keeps the agent's state across restarts; "": no file.
	File    string
	Version string
	Log     *slog.Logger
}

// Agent follows a hub of weft-central (the server that sends the declared state) and
// programs a switch. Run does the work.
type Agent struct {
	config Config
	sw     Switch

	// mu guards the fields down to stats. The callers of take, apply, send, finish, updatePorts, ask,
	// pull, keepUnsettled and askUnsettled hold it.
	mu        sync.Mutex
	state     *state
	pending   *batch          // changes for the switch, which wait until a revision is complete
	attached  map[string]bool // ports reported to the hub in this session, by name or id
	heard     map[string]bool // names of the ports that have sent a frame
	questions questions
	// unsettled has the questions of earlier sessions (which host has this address?) that the next session
	// repeats. The value is the time after which it does not repeat the question any more.
	unsettled map[question]time.Time
	pulls     pulls
	rechecks  rechecks
	decoder   decoder
	backlog   backlog
	opening   bool                // true until the first Revision message of the session
	outbox    chan *wire.FromHost // queue of messages to the hub; nil: no session
	stats     Stats

	portsChanged chan struct{}
	save         chan struct{}
	patience     int // see silence; only Run uses it
}

// Stats has counters for metrics and status.
type Stats struct {
	Connected bool
	Central   string // address of the hub
	Revision  int64  // newest revision of the hub's state that the switch has applied
	Nets      int
	Places    int
	Asked     uint64 // number of questions sent to the hub
	// Refused counts the look-ups of addresses that the agent refused, because too many look-ups for one
	// port were unanswered or the host sent too many Pull messages.
	Refused uint64
	Pulls   uint64 // number of pulls sent to the hub
	// PullsRefused counts the look-ups that were refused because too many waited for one Pull message, or
	// because the host sent too many Pull messages. Refused includes them.
	PullsRefused  uint64
	PullsAnswered uint64
	Rechecks      uint64 // number of known places about which the agent has asked again
	// Stale counts the recorded locations of addresses that the agent has removed after it asked the hub
	// again: nobody has the address any more, or another port has it.
	Stale    uint64
	Received uint64 // size of the hub's messages in bytes
	Trouble  string // last error in one line; "": no error
}

const (
	// outbox limits the messages that wait to be sent to the hub. At the limit the
	// agent starts a new session.
	outbox = 4096
	// The pause before a new connection doubles with each failure. It has a random
	// part, so that all hosts of a restarted hub do not connect at the same moment.
	leastPause = 100 * time.Millisecond
	mostPause  = 5 * time.Second
	// savePause is the time from a change to its save. All changes in this time are
	// saved together.
	savePause = time.Second
)

// New returns an agent that programs the switch sw. It has no state before Restore and Run.
func New(config Config, sw Switch) *Agent {
	return &Agent{config: config, sw: sw, state: newState(), pending: newBatch(), attached: map[string]bool{}, heard: map[string]bool{},
		questions: newQuestions(), unsettled: map[question]time.Time{}, rechecks: newRechecks(), patience: 1,
		portsChanged: make(chan struct{}, 1), save: make(chan struct{}, 1)}
}

// Restore programs the switch with the saved state. The caller calls it before Run, when Switch.Ports
// already returns the stored ports.
func (a *Agent) Restore() error {
	kept, err := readState(a.config.File)
	if err != nil || kept == nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state = stateOf(kept, a.local)
	a.stats.Revision = a.state.revision
	a.state.fill(a.pending)
	c := a.pending.changes()
	a.pending = newBatch()
	return a.sw.Apply(c)
}

// Run follows a hub until ctx ends. When it returns, weft-central still regards the ports of this host as
// being on this host.
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

// watchPorts reacts to changes of the switch's ports until ctx ends, also while no
// session exists.
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

// local returns the switch's port to which the declaration p applies. That is the port whose option id=
// has the declared id or name. A port without this option is found by its name. If there is no such port,
// the returned Name is "".
func (a *Agent) local(p *wire.Port) LocalPort {
	for _, l := range a.sw.Ports() {
		if key := l.key(); key == p.GetId() || key == p.GetName() {
			return l
		}
	}
	return LocalPort{}
}

// key returns the identifier by which the hub knows the port: its option id= or, without this option, its
// name.
func (l *LocalPort) key() string {
	if l.ID != "" {
		return l.ID
	}
	return l.Name
}

// PortsChanged implements Events. It wakes up watchPorts.
func (a *Agent) PortsChanged() { loop.Notify(a.portsChanged) }

// Seen implements Events. It reports the first frame of a port to the hub, which completes the port's move
// to this host.
func (a *Agent) Seen(port string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard[port] = true
	for _, l := range a.state.ports {
		if l.name == port && !l.declared.GetBound() {
			a.send(attachOf(a.keyOf(l), true))
		}
	}
}

// keyOf returns the identifier by which the hub knows a port of this switch: the option id= or the name.
// When the port is gone, the Detach message to the hub names it by this identifier only.
func (a *Agent) keyOf(l *localPort) string {
	for _, local := range a.sw.Ports() {
		if local.Name == l.name {
			return local.key()
		}
	}
	return l.declared.GetPort().GetId()
}

func attachOf(port string, heard bool) *wire.FromHost {
	return &wire.FromHost{Message: &wire.FromHost_Attach{Attach: &wire.Attach{Port: port, Seen: heard}}}
}

// Ask implements Events: it asks the hub for the location of an address. It returns false if no answer
// will come, for example because the agent knows no network with this VNI.
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

// updatePorts tells the hub which ports the switch has got and lost. It also adds the hub's declarations
// of these ports to the pending changes for the switch.
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
			delete(a.heard, l.name)
			if l.name != "" {
				a.state.release(id, l, c)
				// the switch may still have the declaration of the port
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
// queue is full.
func (a *Agent) send(m *wire.FromHost) bool {
	if a.outbox == nil {
		return false
	}
	select {
	case a.outbox <- m:
		return true
	default:
		close(a.outbox) // the closed channel makes the sending goroutine end the session
		a.outbox = nil
		return false
	}
}

func (a *Agent) keys() []string {
	var list []string
	for _, l := range a.sw.Ports() {
		list = append(list, l.key())
	}
	slices.Sort(list)
	return list
}
