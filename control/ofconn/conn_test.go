// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofp/ofptest"
	"weft/openflow/ofproto"
)

// closes reports whether the service closes the peer's connection.
func (p *peer) closes() bool {
	_ = p.SetReadDeadline(time.Now().Add(patience))
	_, err := io.Copy(io.Discard, p)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// After the hellos, both ends use the highest version that both support.
func TestNegotiate(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		hello []byte
		want  ofp.Version // 0: none
	}{
		{ofptest.Message(1, 0, 1), 1}, {ofptest.Message(2, 0, 1), 1}, {ofptest.Message(4, 0, 1), 4}, {ofptest.Message(6, 0, 1), 6}, {ofptest.Message(9, 0, 1), 6},
		{ofptest.Message(6, 0, 1, uint16(1), uint16(8), uint32(1<<4)), 4}, {ofptest.Message(6, 0, 1, uint16(1), uint16(8), uint32(1<<2|1<<3)), 0},
		{ofptest.Message(5, 0, 1, uint16(9), uint16(8), uint32(0), uint16(1), uint16(8), uint32(1<<1|1<<5)), 5},
		{ofptest.Message(4, 0, 1, uint16(1), uint16(3)), 4}, // a malformed element counts for nothing
	} {
		p := r.dial()
		p.read()
		p.write(c.hello)
		p.v = c.want
		if c.want == 0 {
			if kind, code, _ := errorOf(t, p.read()); kind != 0 || code != 0 || !p.closes() {
				t.Errorf("% x: error %d.%d", c.hello, kind, code)
			}
			continue
		}
		if extra := p.barrier(); len(extra) != 0 {
			t.Errorf("% x: % x", c.hello, extra)
		}
	}
}

// A peer that sends garbage loses its own connection. Connections of other peers
// continue.
func TestGarbage(t *testing.T) {
	r := newRig(t)
	steady := r.connect(openflow.Version13)
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 200 {
		p := r.connect([]ofp.Version{1, 4, 5, 6}[n%4])
		junk := make([]byte, 8+random.IntN(200))
		for i := range junk {
			junk[i] = byte(random.Uint32())
		}
		if n%2 == 0 { // every second message has a valid header of the version, and a random body
			junk[0], junk[1] = byte(p.v), byte(random.IntN(40))
			junk[2], junk[3] = 0, byte(len(junk))
		}
		_, _ = p.Write(junk)
		p.Close()
	}
	p := r.connect(openflow.Version10)
	p.write([]byte{1, 0, 0, 3, 0, 0, 0, 0}) // a length below 8
	if !p.closes() {
		t.Error("a length below 8 does not end the connection")
	}
	if extra := steady.barrier(); len(extra) != 0 {
		t.Errorf("% x", extra)
	}
}

// Connections that exceed the limit of a peer are closed and counted.
func TestConnectionLimit(t *testing.T) {
	r := newRig(t)
	for range maxPeerConnections {
		r.connect(openflow.Version13).barrier()
	}
	p := r.dial()
	if !p.closes() || r.service.Counts().Refused.Load() != 1 {
		t.Errorf("%d connections refused, want 1", r.service.Counts().Refused.Load())
	}
}

// A peer that does not read its events is disconnected when too many bytes of events
// wait. The change that causes an event never waits for this peer, and another peer
// gets all events.
func TestStalledMonitor(t *testing.T) {
	r := newRig(t)
	monitor := ofptest.Message(openflow.Version13, 18, 5, uint16(0xffff), uint16(0), uint32(0), uint32(0x4f4e4600), uint32(1870),
		uint32(1), uint16(ofp.MonitorAdd|ofp.MonitorActions), uint16(0), uint32(0xffffffff), uint8(0xff), uint8(0), uint16(0),
		uint16(1), uint16(4), uint32(0))
	stalled, reading := r.connect(openflow.Version13), r.connect(openflow.Version13)
	for _, p := range []*peer{stalled, reading} {
		p.write(monitor)
		if m := p.read(); m[1] != 19 {
			t.Fatalf("the monitor is answered by % x", m)
		}
	}
	// Long events fill the queue with few messages.
	const outputs = 1000
	actions := strings.TrimSuffix(strings.Repeat("output:2,", outputs), ",")
	reading.write(flow(t, openflow.Version13, 1, openflow.Add, "table=1,ip,actions="+actions))
	reading.barrier()
	rule, ok := r.sw.rule(0)
	if !ok || r.service.Count() != 2 {
		t.Fatalf("%d peers want events", r.service.Count())
	}
	const size = outputs * 16 // in an event, at least
	told := 0
	for ; r.service.Count() == 2 && told < 4*maxEventBytes/size; told++ {
		r.service.TellFlow(ofp.FlowAdded, &rule)
		if m := reading.read(); m[1] != 19 {
			t.Fatalf("event % x", m)
		}
	}
	for end := time.Now().Add(patience); r.service.Count() == 2 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if r.service.Count() != 1 || r.service.Counts().Stalled.Load() == 0 {
		t.Errorf("after %d events %d peers want events", told, r.service.Count())
	}
	if extra := reading.barrier(); len(extra) != 0 {
		t.Errorf("% x", extra)
	}
}

// A peer with role Read, and a controller with the OpenFlow role slave, may not change
// the switch.
func TestWhoMayChange(t *testing.T) {
	r := newRig(t)
	r.role.Store(int32(Read))
	p := r.connect(openflow.Version13)
	p.write(flow(t, p.v, 9, openflow.Add, "actions=drop"))
	if kind, code, xid := errorOf(t, p.read()); kind != 1 || code != 5 || xid != 9 {
		t.Errorf("role read: error %d.%d of %d", kind, code, xid)
	}
	r.role.Store(int32(Write))
	first, second := r.connect(openflow.Version14), r.connect(openflow.Version14)
	master := func(p *peer, generation uint64) []byte {
		p.write(ofptest.Message(p.v, 24, 3, uint32(ofp.RoleMaster), uint32(0), generation))
		return p.read()
	}
	if m := master(first, 10); m[1] != ofp.TypeRoleReply || m[11] != byte(ofp.RoleMaster) {
		t.Fatalf("% x", m)
	}
	if kind, code, _ := errorOf(t, master(second, 9)); kind != 11 || code != 0 {
		t.Errorf("stale generation: error %d.%d", kind, code)
	}
	if m := master(second, 11); m[11] != byte(ofp.RoleMaster) {
		t.Fatalf("% x", m)
	}
	if m := first.read(); m[1] != 30 {
		t.Errorf("the old master hears % x, want a role_status", m)
	}
	first.write(flow(t, first.v, 4, openflow.Add, "actions=drop"))
	if kind, code, _ := errorOf(t, first.read()); kind != 1 || code != 10 {
		t.Errorf("slave: error %d.%d", kind, code)
	}
	if r.sw.flows() != 0 {
		t.Error("a flow was added")
	}
}

// The switch connects again to a lost controller, and sends it flow_removed for its
// flows. A connection that ends in the middle of a message has no other effect.
func TestController(t *testing.T) {
	l := listener(t)
	r := newRig(t, func(s *Setup) { s.Controllers = []string{"tcp:" + l.Addr().String()} })
	for n := range 2 {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		p := &peer{t: t, Conn: c, v: openflow.Version13}
		p.read()
		p.write(ofptest.Message(p.v, ofp.TypeHello, 1))
		if n == 0 {
			p.write([]byte{4, 14, 0, 99, 1})
			p.Close()
			continue
		}
		p.barrier()
		rule := ofproto.Rule{Flags: openflow.SendFlowRem, Why: ofproto.WhyIdle}
		r.service.TellFlow(ofp.FlowDeleted, &rule)
		if m := p.read(); m[1] != ofp.TypeFlowRemoved || m[18] != 0 {
			t.Errorf("% x", m)
		}
		p.Close()
	}
}

// A standalone switch has one additional flow while no controller is connected.
func TestStandalone(t *testing.T) {
	sw := &fakeSwitch{tables: ofproto.NewTables(ofproto.Limits{Rules: 1 << 16})}
	// The service does not run, because it removes the flow of a standalone switch.
	service := New(Setup{Switch: sw, Log: slog.New(slog.DiscardHandler)})
	for _, step := range []struct {
		enabled bool
		flows   int
	}{{true, 1}, {true, 1}, {false, 0}, {false, 0}} {
		if service.setStandalone(step.enabled); sw.flows() != step.flows {
			t.Errorf("standalone %t: %d flows, want %d", step.enabled, sw.flows(), step.flows)
		}
	}
}

// A standalone switch without controllers is a learning switch: it gets a flow of priority 0
// when the last controller goes, unless it had none at its start, and loses the flow when a
// controller comes. A flow that the user deleted does not come back.
func TestStandaloneWithoutControllers(t *testing.T) {
	l := listener(t)
	for _, fresh := range []bool{true, false} {
		var sw *fakeSwitch
		r := newRig(t, func(s *Setup) {
			s.Standalone, s.Fresh = true, fresh
			sw = s.Switch.(*fakeSwitch)
		})
		wait := func(want int) {
			t.Helper()
			for deadline := time.Now().Add(patience); sw.flows() != want; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("fresh %t: %d flows, want %d", fresh, sw.flows(), want)
				}
			}
		}
		if fresh {
			wait(1)
		}
		r.service.Follow(Following{Standalone: true, Controllers: []string{"tcp:" + l.Addr().String()}})
		c, err := l.Accept() // the service has seen the controllers
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		wait(0)
		r.service.Follow(Following{Standalone: true})
		wait(1)
		r.service.Follow(Following{})
		wait(0)
	}
}

// A switch that an earlier control process left standalone stays so until it reaches a
// controller.
func TestStandaloneAfterRestart(t *testing.T) {
	l := listener(t)
	var sw *fakeSwitch
	newRig(t, func(s *Setup) {
		s.Controllers, s.Standalone = []string{"tcp:" + l.Addr().String()}, true
		sw = s.Switch.(*fakeSwitch)
		New(*s).setStandalone(true)
	})
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(ofptest.Message(openflow.Version13, ofp.TypeHello, 1)); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); sw.flows() != 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d flows beside a controller, want none", sw.flows())
		}
	}
}

// Follow connects to new controllers, closes the connections to removed ones, and keeps the
// connections to the others.
func TestFollow(t *testing.T) {
	var listeners [3]net.Listener
	var targets [3]string
	for i := range listeners {
		listeners[i] = listener(t)
		targets[i] = "tcp:" + listeners[i].Addr().String()
	}
	r := newRig(t, func(s *Setup) { s.Controllers = targets[:2] })
	accept := func(i int) *peer {
		t.Helper()
		c, err := listeners[i].Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		p := &peer{t: t, Conn: c, v: openflow.Version13}
		p.read()
		p.write(ofptest.Message(p.v, ofp.TypeHello, 1))
		p.barrier()
		return p
	}
	leaves, stays := accept(0), accept(1)
	r.service.Follow(Following{Controllers: targets[1:]})
	accept(2)
	if !leaves.closes() {
		t.Error("the connection to a controller that is not followed any more is open")
	}
	stays.barrier()
	r.service.Follow(Following{})
	if !stays.closes() {
		t.Error("without controllers a connection is open")
	}
}

// A port_mod sets PORT_DOWN, and NO_FLOOD in OpenFlow 1.0. Other bits, ports and hardware
// addresses are refused.
func TestPortMod(t *testing.T) {
	for _, v := range []ofp.Version{openflow.Version10, openflow.Version13, openflow.Version15} {
		r := newRig(t)
		r.sw.ports = []Port{{Port: ofp.Port{No: 5, Name: "vm1", MAC: 0x020000000005}}}
		p := r.connect(v)
		mod := func(port uint32, mac byte, config, mask uint32) [][]byte {
			hardware := []byte{2, 0, 0, 0, 0, mac}
			switch v {
			case openflow.Version10:
				p.write(ofptest.Message(v, 15, 9, uint16(port), hardware, config, mask, uint64(0)))
			case openflow.Version13:
				p.write(ofptest.Message(v, 16, 9, port, uint32(0), hardware, uint16(0), config, mask, uint64(0)))
			default:
				p.write(ofptest.Message(v, 16, 9, port, uint32(0), hardware, uint16(0), config, mask))
			}
			return p.barrier()
		}
		for _, c := range []struct {
			port         uint32
			mac          byte
			config, mask uint32
			refused      bool
			now          uint32
		}{
			{5, 5, ofp.ConfigDown, ofp.ConfigDown, false, ofp.ConfigDown},
			{5, 5, 0, ofp.ConfigDown, false, 0},
			{5, 5, ofp.ConfigNoFlood, ofp.ConfigNoFlood, v != openflow.Version10, ofp.ConfigNoFlood},
			{5, 5, ofp.ConfigNoRecv, ofp.ConfigNoRecv, true, 0},
			{5, 6, ofp.ConfigDown, ofp.ConfigDown, true, 0},
			{6, 5, ofp.ConfigDown, ofp.ConfigDown, true, 0},
			{5, 5, 0, 0xffffffff, false, 0},
		} {
			before := r.sw.ports[0].Config
			errs := mod(c.port, c.mac, c.config, c.mask)
			if want := c.now; c.refused && (len(errs) != 1 || errs[0][1] != ofp.TypeError || r.sw.ports[0].Config != before) ||
				!c.refused && (len(errs) != 0 || r.sw.ports[0].Config != want) {
				t.Errorf("version %d, %+v: %d errors, configuration %#x", v, c, len(errs), r.sw.ports[0].Config)
			}
		}
	}
}

// A peer gets an event of a port that is added right after the answer to its request for events.
func TestPortAddedAtOnce(t *testing.T) {
	r := newRig(t)
	p := r.connect(openflow.Version13)
	p.write(ofptest.Message(p.v, 9, 1, uint16(0), uint16(128))) // set_config
	p.barrier()
	r.sw.mu.Lock()
	r.sw.ports = []Port{{Port: ofp.Port{No: 7, Name: "late"}}}
	r.sw.mu.Unlock()
	if m := p.read(); m[1] != ofp.TypePortStatus || m[8] != ofp.PortAdded || m[19] != 7 {
		t.Errorf("message % x, want port_status of port 7", m)
	}
}

// A controller is not connected before its hello. A process that accepts connections and says
// nothing therefore does not keep a standalone switch from forwarding on its own.
func TestConnectedFromTheHelloOn(t *testing.T) {
	l := listener(t)
	r := newRig(t, func(s *Setup) { s.Controllers = []string{"tcp:" + l.Addr().String()} })
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := &peer{t: t, Conn: c, v: openflow.Version13}
	p.read()
	controller := r.service.connections()[0].controller
	if controller.connected.Load() {
		t.Error("the controller is connected before its hello")
	}
	p.write(ofptest.Message(p.v, ofp.TypeHello, 1))
	for deadline := time.Now().Add(patience); !controller.connected.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the controller is not connected after its hello")
		}
	}
}

// A controller is not silent while the switch executes its request, however long this takes.
func TestPeerOfALongRequestIsNotSilent(t *testing.T) {
	r := newRig(t)
	p := r.connect(openflow.Version13)
	p.barrier()
	c, handled := r.service.connections()[0], r.service.Counts().Messages.Load()
	later := time.Now().Add(time.Hour)
	r.sw.mu.Lock() // the change of flows takes long
	p.write(flow(t, p.v, 1, openflow.Add, "actions=drop"))
	deadline := time.Now().Add(patience)
	for r.service.Counts().Messages.Load() == handled && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if c.silent(later) {
		t.Error("the peer is silent during its request")
	}
	r.sw.mu.Unlock()
	p.barrier()
	for !c.silent(later) {
		if time.Now().After(deadline) {
			t.Fatal("the peer is not silent after its request")
		}
		time.Sleep(time.Millisecond)
	}
}

// The service reports for each controller whether it is connected, since when, in which role,
// or why it is not connected.
func TestControllerStates(t *testing.T) {
	l := listener(t)
	target := "tcp:" + l.Addr().String()
	r := newRig(t, func(s *Setup) { s.Controllers = []string{target} })
	state := func(want func(s ControllerState) bool) ControllerState {
		t.Helper()
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			s := r.service.Controllers()[target]
			if want(s) {
				return s
			}
			if time.Now().After(deadline) {
				t.Fatalf("state %+v", s)
			}
		}
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, Conn: c, v: openflow.Version13}
	p.read()
	if s := state(func(ControllerState) bool { return true }); s.Connected || s.Role != "" || !s.Since.IsZero() {
		t.Errorf("before the hello: %+v", s)
	}
	p.write(ofptest.Message(p.v, ofp.TypeHello, 1))
	if s := state(func(s ControllerState) bool { return s.Connected && s.Role != "" }); s.Role != "other" || s.Since.IsZero() || s.Problem != "" {
		t.Errorf("connected: %+v", s)
	}
	if now, _, refused := p.role(ofp.RoleMaster, 1); refused || now != ofp.RoleMaster {
		t.Fatalf("role %d, refused %v", now, refused)
	}
	state(func(s ControllerState) bool { return s.Role == "master" })
	l.Close()
	c.Close()
	if s := state(func(s ControllerState) bool { return !s.Connected && s.Problem != "" && !s.Since.IsZero() }); s.Role != "" {
		t.Errorf("after the end: %+v", s)
	}
	r.service.Follow(Following{})
	for deadline := time.Now().Add(patience); len(r.service.Controllers()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a controller of no configuration is there")
		}
	}
}
