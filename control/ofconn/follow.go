// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"context"
	"crypto/tls"
	"slices"
	"sync"
	"time"

	"weft/openflow"
	"weft/openflow/ofproto"
)

const (
	// standaloneDelay is the time without a controller after which a standalone switch forwards as
	// a learning switch.
	standaloneDelay = 3 * probeInterval
	// standaloneCookie is the cookie of the flow with which a standalone switch forwards as a
	// learning switch.
	standaloneCookie = 0x7765667473610001
)

// Following has the controllers to which the switch connects, and its behaviour without them.
type Following struct {
	Controllers []string // tcp:HOST:PORT and ssl:HOST:PORT
	// TLS returns the certificates for targets with ssl:. It is called for each connection.
	TLS        func() (*tls.Config, error)
	Standalone bool // while no controller is connected, the switch forwards as a learning switch
	Bare       bool // without controllers a standalone switch gets no flow of its own
}

// Follow replaces the list of controllers. Connections to controllers that are also in the new list
// stay open.
func (s *Service) Follow(f Following) {
	s.mu.Lock()
	s.following = f
	s.mu.Unlock()
	s.signal()
}

// Following returns the argument of the last call of Follow, or the one in Setup.
func (s *Service) Following() Following {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.following
}

// signal makes followControllers compare its connections with the configured controllers.
func (s *Service) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// followControllers keeps a connection to each controller. If the fail mode is standalone and no
// controller is connected, it makes the switch forward as a learning switch. It returns when ctx
// ends.
func (s *Service) followControllers(ctx context.Context) {
	var done sync.WaitGroup
	defer done.Wait()
	running := map[string]*controller{} // by target
	defer s.showControllers(nil)
	normal := s.setup.normalAtStart()
	alone, last := s.isStandalone(), time.Now()
	if alone { // the control process before this one had no controller for longer than standaloneDelay
		last = last.Add(-2 * standaloneDelay)
	}
	for {
		f := s.Following()
		if now := f.alwaysAlone(); now != normal {
			normal = now
			s.setNormal(normal)
		}
		for target, c := range running {
			if !slices.Contains(f.Controllers, target) {
				c.stop()
				delete(running, target)
			}
		}
		for _, target := range f.Controllers {
			if running[target] == nil {
				c := &controller{service: s, target: target, config: f.TLS}
				var dialing context.Context
				dialing, c.stop = context.WithCancel(ctx)
				running[target] = c
				done.Go(func() { c.run(dialing) })
			}
		}
		s.showControllers(running)
		for _, c := range running {
			if c.connected.Load() {
				last = time.Now()
			}
		}
		var tick <-chan time.Time
		mayBeAlone := f.Standalone && len(f.Controllers) > 0
		if mayBeAlone {
			tick = time.After(time.Second)
		}
		if now := mayBeAlone && time.Since(last) > standaloneDelay; now != alone {
			alone = now
			s.setStandalone(alone)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		case <-tick:
		}
	}
}

// alwaysAlone reports whether the switch always forwards as a learning switch. It does if its fail
// mode is standalone and no controller is configured, unless Bare is set.
func (f *Following) alwaysAlone() bool { return f.Standalone && !f.Bare && len(f.Controllers) == 0 }

// normalAtStart reports whether the tables have the flow that setNormal adds, when the service
// starts. A new bridge does not have the flow yet. Nothing adds the flow again if a user has deleted
// it.
func (s *Setup) normalAtStart() bool { return !s.Fresh && s.alwaysAlone() }

// setNormal adds or removes a flow of priority 0 with the action normal, as Open vSwitch has it on a
// standalone switch without controllers. If a user deletes the flow, nothing adds it again.
func (s *Service) setNormal(enabled bool) {
	mod := openflow.FlowMod{Command: openflow.Add,
		Actions: []openflow.Action{{Kind: openflow.ActOutput, Port: openflow.PortNORMAL}}}
	if !enabled {
		mod = openflow.FlowMod{Command: openflow.DeleteStrict, CookieMask: ^uint64(0), ByOutPort: true, OutPort: openflow.PortNORMAL}
	}
	for _, err := range s.setup.Switch.ApplyEach([]openflow.FlowMod{mod}, nobody{}) {
		if err != nil {
			s.log.Error("flow of a switch without controllers", "error", err)
		}
	}
}

// isStandalone reports whether the tables have a flow with standaloneCookie. A standalone switch
// adds this flow when it has lost its controllers. The flow outlives the control process.
func (s *Service) isStandalone() bool {
	filter := openflow.FlowMod{Cookie: standaloneCookie, CookieMask: ^uint64(0)}
	var rules []ofproto.Rule
	for from, more := uint32(0), true; more; {
		if rules, from, more = s.setup.Switch.ScanRules(&filter, from, rules); len(rules) > 0 {
			return true
		}
	}
	return false
}

func (s *Service) setStandalone(enabled bool) {
	mod := openflow.FlowMod{Command: openflow.Add, Priority: 0xffff, NewCookie: standaloneCookie, ModifyCookie: true,
		Actions: []openflow.Action{{Kind: openflow.ActOutput, Port: openflow.PortNORMAL}}}
	if !enabled {
		mod = openflow.FlowMod{Command: openflow.DeleteStrict, Priority: 0xffff, Cookie: standaloneCookie, CookieMask: ^uint64(0)}
	}
	for _, err := range s.setup.Switch.ApplyEach([]openflow.FlowMod{mod}, nobody{}) {
		if err != nil {
			s.log.Error("standalone switch", "error", err)
		}
	}
	s.log.Info("standalone switch", "forwards_by_itself", enabled)
}
