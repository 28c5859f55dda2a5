// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"errors"
	"strings"
	"testing"
	"time"

	"weft/control/change"
	"weft/control/lacp"
)

// wire is the link of a member in the tests. It has the frames in both directions.
type wire struct {
	address [6]byte
	arrived [][]byte   // frames that wait for the member
	sent    []lacp.PDU // PDUs that the member has sent
	broken  bool
	closed  bool
}

func (w *wire) receive([]byte) (payload []byte) {
	if len(w.arrived) > 0 {
		payload, w.arrived = w.arrived[0], w.arrived[1:]
	}
	return payload
}

func (w *wire) send(pdu *lacp.PDU) error {
	if w.broken {
		return errors.New("no buffer space")
	}
	w.sent = append(w.sent, *pdu)
	return nil
}

func (w *wire) mac() [6]byte { return w.address }
func (w *wire) close()       { w.closed = true }

// slowDevice is the driver of a device with an interface index.
type slowDevice struct {
	virtualPort
	index int
}

func (d *slowDevice) linkIndex() int { return d.index }

// lacpRig is a bond of two devices. The other ends of their links belong to one peer with LACP. Its
// clock stands still between steps.
type lacpRig struct {
	t             *testing.T
	ports         *Ports
	configuration *change.Configuration
	now           time.Time
	devices       map[string]*slowDevice
	wires         map[int]*wire // by interface index of the device
	peer          lacp.Aggregator
	peerConfig    lacp.Config
	silent        map[int]bool
}

func newLACPRig(t *testing.T) *lacpRig {
	r := &lacpRig{t: t, now: time.Unix(5000, 0), devices: map[string]*slowDevice{}, wires: map[int]*wire{}, silent: map[int]bool{},
		peerConfig: lacp.Config{System: [6]byte{2, 9}, SystemPriority: 7, Fast: true}}
	device := portKinds[kindDevice]
	t.Cleanup(func() { portKinds[kindDevice] = device })
	portKinds[kindDevice] = portKind{kind: device.kind, options: device.options, make: func(c portContext) portDriver {
		if r.devices[c.name] == nil {
			r.devices[c.name] = &slowDevice{index: len(r.devices) + 11}
		}
		return r.devices[c.name]
	}}
	r.ports, r.configuration = newTestPorts(t)
	r.ports.aggregations.now = func() time.Time { return r.now }
	r.ports.aggregations.open = func(index int) (slowLink, error) {
		r.wires[index] = &wire{address: [6]byte{2, 0, 0, 0, 0, byte(index)}}
		return r.wires[index], nil
	}
	return r
}

func (r *lacpRig) add(name, words string) {
	r.t.Helper()
	if _, err := r.ports.Add(name, strings.Fields(words)); err != nil {
		r.t.Fatal(err)
	}
}

// run lets the bond and the peer exchange PDUs for a time.
func (r *lacpRig) run(duration time.Duration) {
	for end := r.now.Add(duration); r.now.Before(end); r.now = r.now.Add(lacpInterval) {
		r.ports.aggregations.tick()
		var links []lacp.Link
		for index, w := range r.wires {
			if w.closed {
				continue
			}
			links = append(links, lacp.Link{Number: uint32(index), Up: true, Port: uint16(index), Key: 3})
		}
		frames := r.peer.Step(r.now, r.peerConfig, links)
		for index, w := range r.wires {
			for _, pdu := range w.sent {
				r.peer.Receive(r.now, uint32(index), pdu.Append(nil))
			}
			w.sent = nil
		}
		for _, f := range frames {
			if w := r.wires[int(f.Number)]; !r.silent[int(f.Number)] {
				w.arrived = append(w.arrived, f.PDU.Append(nil))
			}
		}
		r.configuration.Do(func(tx *change.Tx) { r.ports.updateLiveness(tx) })
	}
}

// expect fails unless the bond uses these members and its port has this state.
func (r *lacpRig) expect(used, state string) {
	r.t.Helper()
	list, err := r.ports.List("bond0")
	if err != nil {
		r.t.Fatal(err)
	}
	got := ""
	for _, m := range list[0].Bond.Members {
		number, _ := r.ports.pipeline.View().DatapathByName(m.Name)
		p, _ := r.ports.pipeline.View().PortAt(number)
		if m.Enabled {
			got += m.Name
		}
		if p.Standby == m.Enabled {
			r.t.Errorf("translations see %+v, but %+v", p, m)
		}
	}
	if got != used || !strings.Contains(list[0].State+" "+list[0].Detail, state) {
		r.t.Errorf("members %q, %s %s, want %q and %s: %+v", got, list[0].State, list[0].Detail, used, state, list[0].Bond)
	}
}

// A bond with LACP uses the members whose partner agrees. If it uses none, its port's state has the
// reason.
func TestLACPBond(t *testing.T) {
	r := newLACPRig(t)
	r.add("bond0", "type=bond bond_mode=balance-tcp lacp=active lacp_time=fast lacp_system_priority=5")
	r.add("a", "type=device bond=bond0 lacp_port_id=40 lacp_port_priority=41 lacp_aggregation_key=42")
	r.add("b", "type=device bond=bond0 lacp_aggregation_key=42")
	r.expect("", "down no member has a partner")
	r.run(time.Second)
	r.expect("ab", "up")
	list, _ := r.ports.List("bond0")
	l, m := list[0].Bond.LACP, list[0].Bond.Members[0].LACP
	if l == nil || !l.Active || !l.Fast || !l.Negotiated || l.System != "02:00:00:00:00:0b" || l.SystemPriority != 5 {
		t.Fatalf("%+v", l)
	}
	if a := m.Actor; a.Port != 40 || a.PortPriority != 41 || a.Key != 42 || m.Partner.System != "02:09:00:00:00:00" || m.Partner.Key != 3 ||
		strings.Join(a.State, " ") != "activity timeout aggregation synchronized collecting distributing" {
		t.Errorf("%+v", m)
	}
	p, _ := r.ports.pipeline.View().PortAt(list[0].Number)
	if !p.Members.Aggregated || p.Members.Spread == 0 {
		t.Errorf("translations see %+v", p.Members)
	}
	r.silent[11] = true
	r.run(3200 * time.Millisecond)
	r.expect("b", "up")
	r.silent[11] = false
	r.devices["b"].setTrouble("no carrier")
	r.run(2 * time.Second)
	r.expect("a", "up")
	r.devices["b"].setTrouble("")
	r.devices["b"].index = 99 // the device is replaced by another
	r.run(2 * time.Second)
	r.expect("ab", "up")
	if !r.wires[12].closed {
		t.Error("the link of the former device is open")
	}
	r.wires[11].broken = true
	r.run(4 * time.Second)
	r.expect("b", "up")
	if _, err := r.ports.Modify("bond0", []string{"lacp=", "bond_mode="}); err != nil {
		t.Fatal(err)
	}
	r.run(100 * time.Millisecond)
	r.expect("ab", "up")
	if list, _ = r.ports.List("bond0"); list[0].Bond.LACP != nil || list[0].Bond.Members[0].LACP != nil || !r.wires[99].closed || r.ports.aggregations.tick() {
		t.Errorf("LACP after it was turned off: %+v", list[0].Bond)
	}
}

// With lacp_fallback_ab=on, a bond without a partner sends through one member, as in mode active-backup.
func TestLACPFallback(t *testing.T) {
	r := newLACPRig(t)
	r.silent[11], r.silent[12] = true, true
	r.add("bond0", "type=bond bond_mode=balance-tcp lacp=passive lacp_fallback_ab=on lacp_system_id=02:00:00:00:00:77")
	r.add("a", "type=device bond=bond0")
	r.add("b", "type=device bond=bond0")
	r.run(4 * time.Second)
	r.expect("ab", "up")
	list, _ := r.ports.List("bond0")
	if p, _ := r.ports.pipeline.View().PortAt(list[0].Number); p.Members.Aggregated || p.Members.Spread != 0 || list[0].Bond.LACP.System != "02:00:00:00:00:77" {
		t.Errorf("translations see %+v, LACP is %+v", p.Members, list[0].Bond.LACP)
	}
	r.devices["c"] = &slowDevice{} // the port has no device now
	r.add("c", "type=device bond=bond0")
	r.run(time.Second)
	r.expect("ab", "up")
}
