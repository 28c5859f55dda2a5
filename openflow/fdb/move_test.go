// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"net/netip"
	"testing"
	"time"
)

// moveRig is a table of addresses with a clock of its own, and the MAC address of the machine
// that an attacker wants to impersonate.
type moveRig struct {
	t   *testing.T
	tab *Table
	now uint64
}

func newMoveRig(t *testing.T) *moveRig {
	return &moveRig{t, New(0, 0), uint64(time.Hour)}
}

// heard makes the table learn a frame that the port received. It returns the port that the
// table then has for the address.
func (m *moveRig) heard(port uint32, s Segment, mac uint64) uint32 {
	m.now++
	m.tab.Learn(Learn{Valid: true, Segment: s, Port: port, MAC: mac}, m.now)
	no, _ := m.tab.Locate(s, 0, mac)
	return no
}

func (m *moveRig) pass(d time.Duration) { m.now += uint64(d) }

func (m *moveRig) refused(port uint32) (r Refusals) {
	for _, s := range m.tab.Shares() {
		if s.Port == port {
			r = s.Refused
		}
	}
	return r
}

// The first frame after a guest's migration moves the guest's MAC address to the new host. The
// first frame after the migration back moves it back.
func TestAMigrationIsFollowedAtOnce(t *testing.T) {
	m := newMoveRig(t)
	m.heard(1, 5, 7)
	m.pass(time.Millisecond)
	if at := m.heard(2, 5, 7); at != 2 {
		t.Errorf("after the migration the address is at port %d", at)
	}
	m.pass(time.Millisecond)
	if at := m.heard(1, 5, 7); at != 1 {
		t.Errorf("after the migration back the address is at port %d", at)
	}
}

// A machine without a VNI migrates to a host behind a tunnel with a VNI, and back.
// Its first frame moves its address.
func TestAMigrationThroughATunnelIsFollowedAtOnce(t *testing.T) {
	m := newMoveRig(t)
	m.heard(1, 0, 7)
	m.pass(time.Millisecond)
	m.tab.Learn(Learn{Valid: true, Segment: 9, Port: 41, MAC: 7, Tunnel: true}, m.now)
	if no, _ := m.tab.Locate(0, 0, 7); no != 41 || m.tab.Len() != 1 {
		t.Errorf("after the migration to another host the address is at port %d", no)
	}
	m.pass(time.Millisecond)
	if at := m.heard(1, 0, 7); at != 1 || m.tab.Len() != 1 {
		t.Errorf("after the migration back the address is at port %d", at)
	}
	// An attacker behind a tunnel has the same limits as one in the victim's VNI.
	stolen := 0
	for range 100 {
		m.pass(time.Millisecond)
		m.tab.Learn(Learn{Valid: true, Segment: 9, Port: 41, MAC: 7, Tunnel: true}, m.now)
		if no, _ := m.tab.Locate(0, 0, 7); no == 41 {
			stolen++
		}
		m.heard(1, 0, 7)
	}
	if stolen >= maxMoves || m.refused(41).Moves == 0 {
		t.Errorf("the address was stolen %d more times; refusals %+v", stolen, m.refused(41))
	}
}

// An address that two ports use at the same time stays at the port that had it first.
func TestAStolenAddressGoesBackAndStays(t *testing.T) {
	m := newMoveRig(t)
	m.heard(1, 5, 7)
	stolen := 0
	for range 1000 {
		m.pass(time.Millisecond)
		if m.heard(2, 5, 7) == 2 {
			stolen++
		}
		if at := m.heard(1, 5, 7); at != 1 {
			t.Fatalf("the address is at port %d after a frame of its owner", at)
		}
	}
	if got := m.refused(2).Moves; stolen != maxMoves || got != uint64(1000-stolen) || m.refused(1) != (Refusals{}) {
		t.Errorf("the address was stolen %d times, want %d; refused %d times; refusals on the owner's port %+v", stolen, maxMoves, got, m.refused(1))
	}
	m.pass(moveQuiet)
	if at := m.heard(2, 5, 7); at != 2 {
		t.Error("an address whose owner is silent does not move")
	}
}

// A port can take over only a few addresses in use from other ports, but any number of silent
// addresses.
func TestMovesOfAPortAreLimited(t *testing.T) {
	m := newMoveRig(t)
	const hosts = 1000
	for mac := range uint64(hosts) {
		m.heard(1, 5, mac)
	}
	stolen := 0
	for mac := range uint64(hosts) {
		if m.heard(2, 5, mac) == 2 {
			stolen++
		}
	}
	if stolen != movesBurst || m.refused(2).Moves != hosts-movesBurst {
		t.Errorf("%d addresses moved; refusals %+v", stolen, m.refused(2))
	}
	if at := m.heard(3, 5, hosts-1); at != 3 {
		t.Error("another port's address does not move")
	}
	m.pass(moveQuiet)
	for mac := range uint64(hosts) {
		if at := m.heard(2, 5, mac); at != 2 {
			t.Fatalf("address %d of a failed port is at port %d", mac, at)
		}
	}
}

// If a guest of VNI 5 uses an address of VNI 7, frames from a port without a VNI still reach
// VNI 7.
func TestVNIsDoNotTakeAddresses(t *testing.T) {
	m := newMoveRig(t)
	m.heard(7, 7, 1)
	m.heard(5, 5, 1)
	if no, ok := m.tab.Locate(0, 0, 1); !ok || no != 7 {
		t.Errorf("for a port without a VNI the address is at port %d, %v", no, ok)
	}
	m.heard(9, 0, 2)
	m.heard(5, 5, 2)
	for _, s := range []Segment{0, 5, 7} {
		if no, ok := m.tab.Locate(s, 0, 2); !ok || no != 9 {
			t.Errorf("the address of a port without a VNI is at port %d, %v for segment %d", no, ok, s)
		}
	}
	if got := m.refused(5).OtherVNI; got != 1 {
		t.Errorf("unexpected number of refusals: %d", got)
	}
	m.pass(vniQuiet)
	if at := m.heard(5, 5, 2); at != 5 {
		t.Error("a silent address is not learned in another VNI")
	}
}

func TestDeclaredAddressesStay(t *testing.T) {
	m := newMoveRig(t)
	m.heard(3, 5, 1)
	ip := netip.MustParseAddr("10.0.0.1")
	before := m.tab.Generation()
	m.tab.Declare([]Declared{{Segment: 5, Port: 1, MAC: 1, IPs: []netip.Addr{ip}}, {Segment: 5, Port: 2, MAC: 2}, {Segment: 5, Port: 4, MAC: 2}})
	if m.tab.Generation() == before || m.tab.Len() != 0 {
		t.Error("an entry that another port has learned for a declared address stays")
	}
	for _, vlan := range []uint16{0, 9} {
		if no, ok := m.tab.Locate(5, vlan, 1); !ok || no != 1 {
			t.Errorf("VLAN %d: the declared address is at port %d, %v", vlan, no, ok)
		}
	}
	l := Learn{Valid: true, Segment: 5, Port: 3, MAC: 1}
	if m.tab.Learn(l, m.now) || m.tab.Moved(&l) || m.refused(3).Declared != 1 {
		t.Errorf("another port learned the declared address, or Moved reports true; refusals %+v", m.refused(3))
	}
	l.Segment, l.Port = 0, 9 // a trunk port, without a VNI
	if m.tab.Learn(l, m.now) {
		t.Error("a port without a VNI learned the declared address")
	}
	if m.heard(7, 7, 1); m.refused(7) != (Refusals{}) {
		t.Error("the same address in another VNI is not learned")
	}
	if no, ok := m.tab.Locate(0, 0, 1); !ok || no != 1 {
		t.Errorf("a port without a VNI finds the declared address at port %d, %v", no, ok)
	}
	m.tab.Expire(m.now + uint64(DefaultAge)*2)
	if no, _ := m.tab.Locate(5, 0, 1); no != 1 {
		t.Error("the declared address has expired")
	}
	// Only the port that declares an IP address can announce it.
	said := Learn{Valid: true, Segment: 5, Port: 3, MAC: 8, IP: ip}
	m.tab.Learn(said, m.now)
	if _, ok := m.tab.Neighbour(5, 0, said.IP); ok {
		t.Error("another port's announcement of the declared IP address is learned")
	}
	said.Port, said.MAC = 1, 1
	m.tab.Learn(said, m.now)
	if mac, ok := m.tab.Neighbour(5, 0, said.IP); !ok || mac != 1 {
		t.Error("the port's own announcement is not learned")
	}
	// Of two ports that declare an address, Lookup returns the latest sender.
	if _, ok := m.tab.Locate(5, 0, 2); ok {
		t.Error("a shared address has a place before it was heard")
	}
	if m.heard(2, 5, 2) != 2 || m.heard(4, 5, 2) != 4 || m.heard(3, 5, 2) != 4 {
		t.Error("a shared address does not move between its ports, or moves to another port")
	}
	m.tab.Declare(nil)
	if at := m.heard(3, 5, 0xff); at != 3 {
		t.Error("an undeclared address is not learned")
	}
}

// While two hosts announce one IP address, Weft does not answer for it. After one of
// them was silent for the ageing time of addresses, the other one has the address.
func TestContestedIPIsNotAnswered(t *testing.T) {
	tab := New(0, time.Minute)
	ip := netip.MustParseAddr("10.0.0.1")
	now := uint64(1e12)
	announce := func(port uint32, mac uint64, delay time.Duration) {
		now += uint64(delay)
		tab.Expire(now)
		tab.Learn(Learn{Valid: true, Segment: 5, Port: port, MAC: mac, IP: ip}, now)
	}
	expect := func(name string, want uint64) {
		t.Helper()
		mac, ok := tab.Neighbour(5, 0, ip)
		if !ok {
			mac = 0
		}
		if mac != want {
			t.Errorf("%s: Weft answers with %d, want %d (0: not at all)", name, mac, want)
		}
	}
	announce(1, 1, 0)
	expect("the victim alone", 1)
	before := tab.Generation()
	announce(2, 2, 30*time.Second)
	expect("the thief once", 0)
	if tab.Generation() == before {
		t.Error("the generation stays although the answer has changed")
	}
	announce(1, 1, 10*time.Second)
	announce(1, 1, 40*time.Second)
	expect("the victim soon after the thief", 0)
	before = tab.Generation()
	announce(1, 1, 20*time.Second)
	expect("the victim alone for the table's age", 1)
	if tab.Generation() == before {
		t.Error("the generation stays although Weft answers again")
	}
	announce(2, 2, 59*time.Second)
	expect("the thief again", 0)
	announce(2, 2, time.Second)
	expect("the second host after the first was silent", 2)
	if n := tab.Shares()[1].Refused.Moves; n != 2 {
		t.Errorf("%d refusals of the second port, want 2", n)
	}
}

// An IP address is also contested between a VNI and a port without one.
func TestIPContestedAcrossSegments(t *testing.T) {
	ip := netip.MustParseAddr("10.0.0.1")
	for _, order := range [][2]Segment{{0, 5}, {5, 0}} {
		tab := New(0, time.Minute)
		for i, s := range order {
			tab.Learn(Learn{Valid: true, Segment: s, Port: uint32(i + 1), MAC: uint64(i + 1), IP: ip}, 1)
		}
		for _, s := range order {
			if mac, ok := tab.Neighbour(s, 0, ip); ok {
				t.Errorf("announced in segments %d: Weft answers with %d in segment %d", order, mac, s)
			}
		}
		if mac, ok := tab.Neighbour(6, 0, ip); ok != (order[0] == 0 || order[1] == 0) || mac == 0 {
			t.Errorf("segment 6, which has one host only: %d, %v", mac, ok)
		}
	}
}
