package openflow

import (
	"testing"
	"time"
)

// moveRig is a table, a clock and a victim's address.
type moveRig struct {
	t   *testing.T
	tab *MACTable
	now uint64
}

func newMoveRig(t *testing.T) *moveRig {
	return &moveRig{t, NewMACTable(0, 0), uint64(time.Hour)}
}

// heard is a frame from the address on the port; it returns where the address is then.
func (m *moveRig) heard(port uint32, s Segment, mac uint64) uint32 {
	m.now++
	m.tab.Learn(Learn{Valid: true, Segment: s, Port: port, MAC: mac}, m.now)
	no, _ := m.tab.Lookup(s, 0, mac)
	return no
}

func (m *moveRig) pass(d time.Duration) { m.now += uint64(d) }

func (m *moveRig) refused(port uint32) (r MACRefusals) {
	for _, s := range m.tab.Shares() {
		if s.Port == port {
			r = s.Refused
		}
	}
	return r
}

// A guest that has moved is followed with its first frame, and back again.
func TestAMigrationIsFollowedAtOnce(t *testing.T) {
	m := newMoveRig(t)
	m.heard(1, 5, 7)
	m.pass(time.Millisecond)
	if at := m.heard(2, 5, 7); at != 2 {
		t.Errorf("the address is at %d", at)
	}
	m.pass(time.Millisecond)
	if at := m.heard(1, 5, 7); at != 1 {
		t.Errorf("after it has come back, the address is at %d", at)
	}
}

// A machine without a VNI of its own moves to another host, and is behind a tunnel with
// one from then on; and comes back.
func TestAMigrationThroughATunnelIsFollowedAtOnce(t *testing.T) {
	m := newMoveRig(t)
	m.heard(1, 0, 7)
	m.pass(time.Millisecond)
	m.tab.Learn(Learn{Valid: true, Segment: 9, Port: 41, MAC: 7, Tunnel: true}, m.now)
	if no, _ := m.tab.Lookup(0, 0, 7); no != 41 || m.tab.Len() != 1 {
		t.Errorf("gone to another host, the address is at %d", no)
	}
	m.pass(time.Millisecond)
	if at := m.heard(1, 0, 7); at != 1 || m.tab.Len() != 1 {
		t.Errorf("back again, the address is at %d", at)
	}
	// A remote thief is bounded as one of the same VNI.
	stolen := 0
	for range 100 {
		m.pass(time.Millisecond)
		m.tab.Learn(Learn{Valid: true, Segment: 9, Port: 41, MAC: 7, Tunnel: true}, m.now)
		if no, _ := m.tab.Lookup(0, 0, 7); no == 41 {
			stolen++
		}
		m.heard(1, 0, 7)
	}
	if stolen >= maxMoves || m.refused(41).Moves == 0 {
		t.Errorf("the address moved %d times more, %+v", stolen, m.refused(41))
	}
}

// An address that two ports send from stays with the one that had it.
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
			t.Fatalf("the address is at %d after its owner was heard", at)
		}
	}
	if got := m.refused(2).Moves; stolen != maxMoves || got != uint64(1000-stolen) || m.refused(1) != (MACRefusals{}) {
		t.Errorf("moved %d times, want %d; refused %d times, the owner's port %+v", stolen, maxMoves, got, m.refused(1))
	}
	m.pass(moveQuiet)
	if at := m.heard(2, 5, 7); at != 2 {
		t.Error("an address whose owner is silent does not move")
	}
}

// One port takes few addresses that are alive, and gets silent ones.
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
		t.Errorf("%d addresses moved, %+v", stolen, m.refused(2))
	}
	if at := m.heard(3, 5, hosts-1); at != 3 {
		t.Error("another port's address does not move")
	}
	m.pass(moveQuiet)
	for mac := range uint64(hosts) {
		if at := m.heard(2, 5, mac); at != 2 {
			t.Fatalf("address %d of a port that has failed is at %d", mac, at)
		}
	}
}

// Attack 6: a frame of VNI 5 with an address of VNI 7 changes nothing for a port
// without a VNI, whether or not the address is declared.
func TestVNIsDoNotTakeAddresses(t *testing.T) {
	m := newMoveRig(t)
	m.heard(7, 7, 1)
	m.heard(5, 5, 1)
	if no, ok := m.tab.Lookup(0, 0, 1); !ok || no != 7 {
		t.Errorf("for a port without a VNI the address is at %d, %v", no, ok)
	}
	m.heard(9, 0, 2)
	m.heard(5, 5, 2)
	for _, s := range []Segment{0, 5, 7} {
		if no, ok := m.tab.Lookup(s, 0, 2); !ok || no != 9 {
			t.Errorf("the address of a port without a VNI is at %d, %v for %d", no, ok, s)
		}
	}
	if got := m.refused(5).OtherVNI; got != 1 {
		t.Errorf("%d refusals", got)
	}
	m.pass(vniQuiet)
	if at := m.heard(5, 5, 2); at != 5 {
		t.Error("a silent address is not learnt in another VNI")
	}
}

func TestDeclaredAddressesStay(t *testing.T) {
	m := newMoveRig(t)
	m.heard(3, 5, 1)
	env := &fakeEnv{ports: []PortInfo{
		{No: 1, InVNI: true, VNI: 4, Binding: bindingOf(t, "", "00:00:00:00:00:01 10.0.0.1")},
		{No: 2, InVNI: true, VNI: 4, Binding: bindingOf(t, "00:00:00:00:00:02", "")},
		{No: 4, InVNI: true, VNI: 4, Binding: bindingOf(t, "00:00:00:00:00:02", "")},
	}}
	before := m.tab.Generation()
	m.tab.Declare(Declares(env.ports))
	if m.tab.Generation() == before || m.tab.Len() != 0 {
		t.Error("what another port has learnt of a declared address stays")
	}
	for _, vlan := range []uint16{0, 9} {
		if no, ok := m.tab.Lookup(5, vlan, 1); !ok || no != 1 {
			t.Errorf("VLAN %d: at %d, %v", vlan, no, ok)
		}
	}
	l := Learn{Valid: true, Segment: 5, Port: 3, MAC: 1}
	if m.tab.Learn(l, m.now) || m.tab.Moved(&l) || m.refused(3).Declared != 1 {
		t.Errorf("learnt elsewhere, or a reason to look again; %+v", m.refused(3))
	}
	l.Segment, l.Port = 0, 9 // a trunk
	if m.tab.Learn(l, m.now) {
		t.Error("a port without a VNI learnt it")
	}
	if m.heard(7, 7, 1); m.refused(7) != (MACRefusals{}) {
		t.Error("another VNI's same address is not learnt")
	}
	if no, ok := m.tab.Lookup(0, 0, 1); !ok || no != 1 {
		t.Errorf("a port without a VNI finds it at %d, %v", no, ok)
	}
	m.tab.Expire(m.now + uint64(DefaultMACAge)*2)
	if no, _ := m.tab.Lookup(5, 0, 1); no != 1 {
		t.Error("it has aged")
	}
	// Its IP address is no other's; the port itself says so.
	said := Learn{Valid: true, Segment: 5, Port: 3, MAC: 8, IP: env.ports[0].Binding.Hosts[0].Prefixes[0].Addr()}
	m.tab.Learn(said, m.now)
	if _, ok := m.tab.Neighbour(5, 0, said.IP); ok {
		t.Error("another port's word for the IP address is taken")
	}
	said.Port, said.MAC = 1, 1
	m.tab.Learn(said, m.now)
	if mac, ok := m.tab.Neighbour(5, 0, said.IP); !ok || mac != 1 {
		t.Error("the port's own word is not taken")
	}
	// Two ports share an address: it is where it was heard, of the two.
	if _, ok := m.tab.Lookup(5, 0, 2); ok {
		t.Error("a shared address is somewhere without being heard")
	}
	if m.heard(2, 5, 2) != 2 || m.heard(4, 5, 2) != 4 || m.heard(3, 5, 2) != 4 {
		t.Error("a shared address does not move among its ports, or does to others")
	}
	m.tab.Declare(nil)
	if at := m.heard(3, 5, 0xff); at != 3 {
		t.Error("nothing is learnt any more")
	}
}
