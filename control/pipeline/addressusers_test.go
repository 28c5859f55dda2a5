// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"fmt"
	"net/netip"
	"testing"

	"weft/control/megaflows"
	"weft/control/pipeline"
	"weft/control/pipeline/pipelinetest"
	"weft/control/workers/workertest"
	"weft/datapath"
	"weft/flowtable"
	"weft/openflow/fdb"
	"weft/openflow/xlate"
)

// centralNetwork declares network 1, with guests behind port 1 and hosts behind the
// tunnel.
func (f *rig) centralNetwork(local, remote int) {
	f.T.Helper()
	tx := f.Configuration.Begin()
	defer tx.Commit()
	f.Infos = []xlate.PortInfo{
		{No: 1, Name: "vm", Central: true, InVNI: true, VNI: 1},
		{No: 2, Name: "central", Kind: xlate.PortTunnel, Central: true, FlowVNI: true, FlowRemote: true},
	}
	c := fdb.Change{Networks: map[fdb.Segment]*fdb.Network{fdb.SegmentOf(1): {}}}
	for i := range local {
		c.Addresses = append(c.Addresses, netAddress(uint32(i), fdb.Place{Port: 1}))
	}
	for i := range remote {
		c.Addresses = append(c.Addresses, netAddress(uint32(local+i), fdb.Place{Remote: endpointOf(i)}))
	}
	f.P.Addresses().Change(&c)
	f.SetView(tx)
	f.P.PortsChanged(tx)
}

func endpointOf(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i % 100)}) }

// netAddress returns the declared address of a host in network 1, at this place. workertest.UDPKey
// uses the same MAC address for the host.
func netAddress(host uint32, place fdb.Place) fdb.NetAddress {
	return fdb.NetAddress{Segment: fdb.SegmentOf(1), MAC: 0x020000000000 | uint64(host), Place: place}
}

// When an address changes, exactly the megaflows that depend on it are removed by the commit after
// RevalidateAddresses.
func TestOneAddressChanges(t *testing.T) {
	f := newRig(t)
	f.centralNetwork(2, 3)
	moves, stays := workertest.UDPKey(1, 0, 2, 9), workertest.UDPKey(1, 1, 3, 9)
	f.Worker().Frame(moves, 100)
	f.Worker().Frame(stays, 100)
	f.Settle()
	installed := func(key *flowtable.Key) (ok bool) {
		f.Worker().On(func() { _, ok = f.Worker().Lookup(key) })
		return ok
	}
	if !installed(&moves) || !installed(&stays) {
		t.Fatal("no megaflows")
	}
	tx := f.Configuration.Begin()
	f.P.Addresses().Change(&fdb.Change{Addresses: []fdb.NetAddress{netAddress(2, fdb.Place{Remote: endpointOf(99)})}})
	before := f.P.Addresses().Generation()
	f.P.RevalidateAddresses(tx)
	tx.Commit()
	if installed(&moves) || !installed(&stays) || before == 0 {
		t.Errorf("the address that moved: %v, the other: %v", installed(&moves), installed(&stays))
	}
}

// noAgent is a pipeline.Declared that never answers questions.
type noAgent struct{ requests chan uint64 }

func (a noAgent) Seen(string) {}
func (a noAgent) Ask(_ string, _ uint32, mac uint64, _ netip.Addr) bool {
	a.requests <- mac
	return true
}

// A megaflow for an address that nobody has expires, and the next frame asks for the
// address again. If a network's Asked is switched on, such megaflows are removed.
func TestUnknownAddressesAreAskedForAgain(t *testing.T) {
	agent := noAgent{make(chan uint64, 10)}
	f := &rig{pipelinetest.NewDeclared(t, agent)}
	f.centralNetwork(2, 0)
	key := workertest.UDPKey(1, 0, 9, 9)
	installed := func() (ok bool) {
		f.Worker().On(func() { _, ok = f.Worker().Lookup(&key) })
		return ok
	}
	nobody := func() {
		f.Worker().Frame(key, 100)
		mac := <-agent.requests
		tx := f.Configuration.Begin()
		f.P.AnswerQuestions([]fdb.Question{{Segment: fdb.SegmentOf(1), MAC: mac}})
		tx.Commit()
		f.Settle()
	}
	nobody()
	f.P.Sweep()
	if !installed() {
		t.Fatal("in a network that is told: no megaflow for an address that nobody has")
	}
	tx := f.Configuration.Begin()
	f.P.Addresses().Change(&fdb.Change{Networks: map[fdb.Segment]*fdb.Network{fdb.SegmentOf(1): {Asked: true}}})
	f.P.RevalidateAddresses(tx)
	tx.Commit()
	if installed() {
		t.Fatal("in a network that is asked the megaflow stays")
	}
	nobody()
	f.P.Sweep()
	if !installed() {
		t.Fatal("no megaflow for an address that nobody has")
	}
	f.P.Mu().Lock()
	for _, m := range f.P.Index().List() {
		m.MadeNS -= uint64(pipeline.AskAgain) + 1
	}
	f.P.Mu().Unlock()
	f.P.Sweep()
	if installed() {
		t.Error("a megaflow for an address that nobody has stays")
	}
}

// BenchmarkOneAddressChanges moves one declared address, which 100 of 100,000
// megaflows use.
func BenchmarkOneAddressChanges(b *testing.B) {
	sizes := pipelinetest.Sizes
	defer func() { pipelinetest.Sizes = sizes }()
	pipelinetest.Sizes = datapath.DefaultSizes
	const local, remote = 100, 1000
	f := newRig(b)
	f.centralNetwork(local, remote)
	f.fill(local, remote)
	move := func(i int) {
		f.P.Addresses().Change(&fdb.Change{Addresses: []fdb.NetAddress{netAddress(local, fdb.Place{Remote: endpointOf(i % 2)})}})
	}
	for _, all := range []bool{false, true} {
		b.Run(fmt.Sprintf("all=%v", all), func(b *testing.B) {
			for i := range b.N {
				b.StopTimer()
				f.fill(local, 1)
				tx := f.Configuration.Begin()
				move(i + 1)
				b.StartTimer()
				if all {
					_ = f.P.Addresses().TakeChanges()
					f.P.Revalidate(tx, func(m *megaflows.Megaflow) bool { return m.Addresses() })
				} else {
					f.P.RevalidateAddresses(tx)
				}
				tx.Commit()
			}
			b.ReportMetric(float64(f.P.Counts().Megaflows), "megaflows")
		})
	}
}

func (f *rig) fill(local, remote int) {
	for i := range remote {
		var ups []datapath.Upcall
		for j := range local {
			up := datapath.Upcall{Op: datapath.UpMiss, Arg: uint32(j % 64)}
			up.Key = workertest.UDPKey(1, uint32(j), uint32(local+i), 9)
			ups = append(ups, up)
		}
		f.P.Answer(f.P.Workers(), ups)
	}
}

// Frames of declared ports are forwarded although the ports have other numbers in flows,
// which are too large for the data path.
func TestDeclaredPortsWithLargeNumbers(t *testing.T) {
	f := newRig(t)
	f.centralNetwork(1, 3)
	tx := f.Configuration.Begin()
	f.P.Addresses().Change(&fdb.Change{Addresses: []fdb.NetAddress{netAddress(0, fdb.Place{Port: 900}), netAddress(1, fdb.Place{Port: 899})}})
	f.Infos = append(f.Infos[1:], xlate.PortInfo{No: 50000, Datapath: 900, Name: "a", Central: true, InVNI: true, VNI: 1},
		xlate.PortInfo{No: 50001, Datapath: 899, Name: "b", Central: true, InVNI: true, VNI: 1})
	for range 2 { // the second change changes no port
		f.SetView(tx)
		f.P.PortsChanged(tx)
	}
	tx.Commit()
	for host, port := range []uint32{900, 899} {
		f.Worker().Frame(workertest.UDPKey(port, uint32(host), 2, 9), 100)
	}
	f.Worker().Frame(workertest.UDPKey(900, 0, 1, 9), 100)
	f.Settle()
	list := f.P.Megaflows().List()
	for _, m := range list {
		if m.Actions[0].Op == flowtable.OpDrop {
			t.Errorf("frames of port %d are dropped: %+v", m.Owner, m.Actions)
		}
	}
	if len(list) != 3 {
		t.Errorf("%d megaflows", len(list))
	}
}
