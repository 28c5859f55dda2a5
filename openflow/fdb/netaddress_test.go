// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// slowNets is a reference implementation of declared networks: a list.
type slowNets struct {
	nets    []Segment
	list    []NetAddress
	limit   int
	refused int
}

func (n *slowNets) indexOf(s Segment, mac uint64) int {
	return slices.IndexFunc(n.list, func(a NetAddress) bool { return a.Segment == s && a.MAC == mac })
}

func (n *slowNets) set(list []NetAddress, removed []RemovedNetAddress) {
	for _, r := range removed {
		if i := n.indexOf(r.Segment, r.MAC); i >= 0 && n.list[i].Generation <= r.Generation {
			n.list = slices.Delete(n.list, i, i+1)
		}
	}
	for _, a := range list {
		i := n.indexOf(a.Segment, a.MAC)
		switch {
		case !slices.Contains(n.nets, a.Segment):
		case i >= 0 && a.Generation < n.list[i].Generation:
		case i >= 0:
			n.list[i] = a
		case len(n.list) == n.limit:
			n.refused++
		default:
			n.list = append(n.list, a)
		}
	}
}

func (n *slowNets) hostOf(s Segment, ip netip.Addr) (mac uint64, ok bool) {
	generation := int64(math.MinInt64)
	for _, a := range n.list {
		if a.Segment != s || !slices.Contains(a.IPs, ip) {
			continue
		}
		if a.Generation > generation || a.Generation == generation && a.MAC < mac {
			mac, generation, ok = a.MAC, a.Generation, true
		}
	}
	return mac, ok
}

func testIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }

func testEndpoint(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }

func randomNetAddress(r *rand.Rand, generation int64) NetAddress {
	a := NetAddress{Segment: Segment(1 + r.IntN(3)), MAC: uint64(r.IntN(8)), Generation: generation - int64(r.IntN(20))}
	for range r.IntN(3) {
		a.IPs = append(a.IPs, testIP(r.IntN(6)))
	}
	if r.IntN(2) == 0 {
		a.Port = uint32(1 + r.IntN(4))
	} else {
		a.Remote = testEndpoint(r.IntN(3))
	}
	return a
}

// TestNetAddressesAgainstAList compares Table with slowNets, while frames use the
// declared addresses.
func TestNetAddressesAgainstAList(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 5))
		tab, slow := New(1000, 0), &slowNets{limit: 9}
		tab.netLimit = slow.limit
		for step := range 500 {
			switch s := Segment(1 + r.IntN(3)); r.IntN(10) {
			case 0:
				tab.setNetwork(s, nil)
				slow.nets = slices.DeleteFunc(slow.nets, func(o Segment) bool { return o == s })
				slow.list = slices.DeleteFunc(slow.list, func(a NetAddress) bool { return a.Segment == s })
			case 1, 2:
				tab.setNetwork(s, &Network{Flood: r.IntN(2) == 0})
				if !slices.Contains(slow.nets, s) {
					slow.nets = append(slow.nets, s)
				}
			case 3, 4, 5, 6:
				var list []NetAddress
				var removed []RemovedNetAddress
				for range r.IntN(4) {
					list = append(list, randomNetAddress(r, int64(step)))
				}
				for range r.IntN(3) {
					a := randomNetAddress(r, int64(step))
					removed = append(removed, RemovedNetAddress{a.Segment, a.MAC, a.Generation})
				}
				slow.set(list, removed)
				tab.setNetAddresses(list, removed)
			default:
				tab.Learn(Learn{Valid: true, Segment: Segment(r.IntN(4)), VLAN: uint16(r.IntN(2)), MAC: uint64(r.IntN(8)),
					Port: uint32(1 + r.IntN(4)), IP: testIP(r.IntN(6))}, uint64(step)*uint64(vniQuiet))
			}
			compareNets(t, tab, slow, fmt.Sprintf("seed %d, step %d", seed, step))
			if t.Failed() {
				return
			}
		}
	}
}

func compareNets(t *testing.T, tab *Table, slow *slowNets, moment string) {
	t.Helper()
	if tab.NetAddresses() != len(slow.list) || tab.RefusedNetAddresses() != uint64(slow.refused) {
		t.Errorf("%s: %d addresses, %d left out; want %d, %d", moment, tab.NetAddresses(), tab.RefusedNetAddresses(), len(slow.list), slow.refused)
	}
	for s := Segment(1); s < 4; s++ {
		if got := tab.Network(s) != nil; got != slices.Contains(slow.nets, s) {
			t.Errorf("%s: segment %d is a network: %v", moment, s, got)
		}
		for mac := range uint64(8) {
			place, ok := tab.Place(s, mac)
			if i := slow.indexOf(s, mac); ok != (i >= 0) || ok && place != slow.list[i].Place {
				t.Errorf("%s: segment %d, MAC %d is at %v, %v; the list has %d", moment, s, mac, place, ok, i)
			}
		}
		for i := range 6 {
			mac, ok := tab.HostOf(s, testIP(i))
			if want, known := slow.hostOf(s, testIP(i)); ok != known || mac != want {
				t.Errorf("%s: segment %d, %v belongs to %d, %v; want %d, %v", moment, s, testIP(i), mac, ok, want, known)
			}
		}
	}
	for _, e := range tab.Entries() {
		if !e.Declared && slow.indexOf(e.Segment, e.MAC) >= 0 {
			t.Errorf("%s: the declared address %+v is learned", moment, e)
		}
	}
	for key := range tab.neighbours.entries {
		if _, declared := slow.hostOf(key.segment, key.ip); declared {
			t.Errorf("%s: the declared %v is learned", moment, key)
		}
	}
}

// A declaration removes a learned address and prevents learning it, also in VLANs.
func TestDeclaredAddressesDoNotMove(t *testing.T) {
	for vlan := range uint16(2) {
		tab := New(0, 0)
		tab.setNetwork(5, &Network{})
		learn := Learn{Valid: true, Segment: 5, VLAN: vlan, Port: 3, MAC: 0xa, IP: testIP(1)}
		if !tab.Learn(learn, 1) {
			t.Fatal("an address of a declared network that is not declared is not learned")
		}
		tab.setNetAddresses([]NetAddress{{Segment: 5, MAC: 0xa, IPs: []netip.Addr{testIP(1)}, Place: Place{Port: 2}}}, nil)
		if tab.Len() != 0 || tab.neighbours.len() != 0 {
			t.Errorf("VLAN %d: the declared address is still learned", vlan)
		}
		if tab.Learn(learn, 2) || tab.Moved(&learn) || tab.Len() != 0 {
			t.Errorf("VLAN %d: the declared address moved with a frame", vlan)
		}
		if s := tab.Shares(); len(s) != 1 || s[0].Refused.Declared != 1 {
			t.Errorf("VLAN %d: the refusal is not counted: %+v", vlan, s)
		}
		learn.MAC = 0xb // a frame from another host announces the declared IP address
		tab.Learn(learn, 3)
		if mac, ok := tab.Neighbour(5, vlan, testIP(1)); ok {
			t.Errorf("VLAN %d: host %x took a declared IP address", vlan, mac)
		}
	}
}

// A port without a VNI can neither learn nor reach the addresses of a declared network.
func TestPortsWithoutVNIDoNotMeetNetworks(t *testing.T) {
	tab := New(0, 0)
	tab.setNetwork(5, &Network{})
	tab.Learn(Learn{Valid: true, Segment: 5, Port: 3, MAC: 0xa}, 1)
	tab.Learn(Learn{Valid: true, Port: 9, MAC: 0xa, IP: testIP(1)}, 2)
	if no, ok := tab.Locate(5, 0, 0xa); !ok || no != 3 {
		t.Errorf("the network has the address at %d, %v", no, ok)
	}
	if no, ok := tab.Locate(0, 0, 0xa); !ok || no != 9 {
		t.Errorf("ports without a VNI have the address at %d, %v", no, ok)
	}
	if _, ok := tab.Neighbour(5, 0, testIP(1)); ok {
		t.Error("an announcement of a port without a VNI is known in the network")
	}
}

func BenchmarkSetNetAddresses(b *testing.B) {
	const batch = 10_000
	list := make([]NetAddress, batch)
	for i := range list {
		list[i] = NetAddress{Segment: 5, MAC: uint64(i), IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})},
			Place: Place{Remote: testEndpoint(i % 200)}}
	}
	for b.Loop() {
		tab := New(0, 0)
		tab.setNetwork(5, &Network{})
		tab.setNetAddresses(list, nil)
	}
}
