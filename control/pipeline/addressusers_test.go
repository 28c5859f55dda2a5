// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"weft/control/addresses"
	"weft/datapath"
	"weft/flowtable"
	"weft/openflow"
)

// The index of megaflows by address equals a linear search.
func TestUsersAgainstASearch(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	f := newMegaflows(testSizes.Cache)
	f.reserve(40)
	refs := func() (list []openflow.AddressRef) {
		for ref := range openflow.AddressRef(6) {
			if r.IntN(3) == 0 {
				list = append(list, ref)
			}
		}
		return list
	}
	for step := range 5000 {
		slot := uint32(r.IntN(40))
		switch m := f.slots[slot]; {
		case m == nil:
			m = &megaflow{slot: slot}
			m.setUses(refs())
			f.slots[slot] = m
			f.users.add(m)
		case r.IntN(2) == 0:
			f.slots[slot] = nil
			f.users.remove(m)
		default:
			f.reuse(m, refs())
		}
		table := openflow.NewMACTable(0, 0)
		changed := refs()
		table.Touch(changed)
		changes := table.TakeChanges()
		var want []*megaflow
		for _, m := range f.slots {
			if m != nil && slices.ContainsFunc(m.uses, func(use addressUse) bool { return slices.Contains(changed, use.ref) }) {
				want = append(want, m)
			}
		}
		if got := f.using(&changes); !slices.Equal(got, want) {
			t.Fatalf("step %d: %d megaflows use %v, want %d", step, len(got), changed, len(want))
		}
	}
}

// centralNetwork is network 1, with guests behind port 1 and hosts behind the tunnel.
func (f *rig) centralNetwork(local, remote int) {
	f.t.Helper()
	f.change.Lock()
	defer f.change.Unlock()
	f.infos = []openflow.PortInfo{
		{No: 1, Name: "vm", Central: true, InVNI: true, VNI: 1},
		{No: 2, Name: "central", Kind: openflow.PortTunnel, Central: true, FlowVNI: true, FlowRemote: true},
	}
	c := addresses.Change{Networks: map[openflow.Segment]*openflow.Network{openflow.SegmentOf(1): {}}}
	for i := range local {
		c.Addresses = append(c.Addresses, netAddress(uint32(i), openflow.Place{Port: 1}))
	}
	for i := range remote {
		c.Addresses = append(c.Addresses, netAddress(uint32(local+i), openflow.Place{Remote: endpointOf(i)}))
	}
	f.p.ChangeNetworks(&c)
	f.setView()
	f.p.PortsChanged()
}

func endpointOf(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i % 100)}) }

// netAddress returns the declared address of a host in network 1. udpKey uses the
// same MAC address.
func netAddress(host uint32, place openflow.Place) openflow.NetAddress {
	return openflow.NetAddress{Segment: openflow.SegmentOf(1), MAC: 0x020000000000 | uint64(host), Place: place}
}

// A changed address removes exactly the megaflows that use it, before
// RevalidateNetworks returns.
func TestOneAddressChanges(t *testing.T) {
	f := newRig(t)
	f.centralNetwork(2, 3)
	moves, stays := udpKey(1, 0, 2, 9), udpKey(1, 1, 3, 9)
	f.worker().Frame(moves, 100)
	f.worker().Frame(stays, 100)
	f.settle()
	installed := func(key *flowtable.Key) (ok bool) {
		f.worker().On(func() { _, ok = f.worker().Lookup(key) })
		return ok
	}
	if !installed(&moves) || !installed(&stays) {
		t.Fatal("no megaflows")
	}
	f.change.Lock()
	f.p.ChangeNetworks(&addresses.Change{Addresses: []openflow.NetAddress{netAddress(2, openflow.Place{Remote: endpointOf(99)})}})
	before := f.p.macs.Generation()
	f.p.RevalidateNetworks()
	f.change.Unlock()
	if installed(&moves) || !installed(&stays) || before == 0 {
		t.Errorf("the address that moved: %v, the other: %v", installed(&moves), installed(&stays))
	}
}

// noAgent answers no question.
type noAgent struct{ asked chan uint64 }

func (a noAgent) Seen(string) {}
func (a noAgent) Ask(_ string, _ uint32, mac uint64, _ netip.Addr) bool {
	a.asked <- mac
	return true
}

// A megaflow for an address that nobody has expires, and the next frame asks again. A
// network that starts to ask keeps no such megaflow.
func TestUnknownAddressesAreAskedForAgain(t *testing.T) {
	f := newRig(t)
	agent := noAgent{make(chan uint64, 10)}
	f.p.AttachDeclared(agent)
	f.centralNetwork(2, 0)
	key := udpKey(1, 0, 9, 9)
	installed := func() (ok bool) {
		f.worker().On(func() { _, ok = f.worker().Lookup(&key) })
		return ok
	}
	nobody := func() {
		f.worker().Frame(key, 100)
		mac := <-agent.asked
		f.change.Lock()
		f.p.AnswerQuestions([]openflow.Question{{Segment: openflow.SegmentOf(1), MAC: mac}})
		f.change.Unlock()
		f.settle()
	}
	nobody()
	f.p.sweep()
	if !installed() {
		t.Fatal("in a network that is told: no megaflow for an address that nobody has")
	}
	f.change.Lock()
	f.p.ChangeNetworks(&addresses.Change{Networks: map[openflow.Segment]*openflow.Network{openflow.SegmentOf(1): {Asked: true}}})
	f.p.RevalidateNetworks()
	f.change.Unlock()
	if installed() {
		t.Fatal("in a network that is asked the megaflow stays")
	}
	nobody()
	f.p.sweep()
	if !installed() {
		t.Fatal("no megaflow for an address that nobody has")
	}
	f.p.mu.Lock()
	for _, m := range f.p.megaflows.list() {
		m.madeNS -= uint64(askAgain) + 1
	}
	f.p.mu.Unlock()
	f.p.sweep()
	if installed() {
		t.Error("a megaflow for an address that nobody has stays")
	}
}

// BenchmarkOneAddressChanges moves one declared address, which 100 of 100,000
// megaflows use.
func BenchmarkOneAddressChanges(b *testing.B) {
	sizes := testSizes
	defer func() { testSizes = sizes }()
	testSizes = datapath.DefaultSizes
	const local, remote = 100, 1000
	f := newRig(b)
	f.centralNetwork(local, remote)
	f.fill(local, remote)
	move := func(i int) {
		f.p.ChangeNetworks(&addresses.Change{Addresses: []openflow.NetAddress{netAddress(local, openflow.Place{Remote: endpointOf(i % 2)})}})
	}
	for _, all := range []bool{false, true} {
		b.Run(fmt.Sprintf("all=%v", all), func(b *testing.B) {
			for i := range b.N {
				b.StopTimer()
				f.fill(local, 1)
				f.change.Lock()
				move(i + 1)
				b.StartTimer()
				if all {
					_ = f.p.macs.TakeChanges()
					f.p.revalidate(func(m *megaflow) bool { return len(m.uses) > 0 })
				} else {
					f.p.RevalidateNetworks()
				}
				f.change.Unlock()
			}
			b.ReportMetric(float64(f.p.megaflows.len()), "megaflows")
		})
	}
}

func (f *rig) fill(local, remote int) {
	for i := range remote {
		var ups []datapath.Upcall
		for j := range local {
			up := datapath.Upcall{Op: datapath.UpMiss, Arg: uint32(j % 64)}
			up.Key = udpKey(1, uint32(j), uint32(local+i), 9)
			ups = append(ups, up)
		}
		f.p.answer(f.p.workers, 0, ups, false)
	}
}
