// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"weft/conntrack"
	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
)

// connection is one direction of a connection in the test, with a frame of it.
type connection struct {
	lease         conntrack.Lease
	first, second flow
	frame         []byte
}

// firstStage is the slot of the first stage of the first connection. The slots of all other stages follow.
const firstStage = 100

const twinConnections = 30

// tcpFlags are the TCP flags from which random segments get theirs. Most are those of established
// connections.
var tcpFlags = []byte{0x10, 0x10, 0x10, 0x10, 0x18, 0x18, 0x11, 0x12, 0x14, 0x02, 0x30, 0}

// changeConnections replaces all connections by new random ones.
func (w *twin) changeConnections() {
	for place := range uint32(MaxConnections) {
		w.counts.ClearLease(place)
	}
	for slot := range uint32(2 * twinConnections) {
		w.table.Remove(firstStage + slot)
	}
	w.connections = nil
	for range 10 * twinConnections {
		i := uint32(len(w.connections))
		if i == twinConnections {
			break
		}
		var k flowtable.Key
		frame := w.drawAny()
		if _, ok := w.extract(frame, &k); !ok || !w.knows(frame, &k) || k.EtherType() != packet.EtherTypeIPv4 && k.EtherType() != packet.EtherTypeIPv6 {
			continue
		}
		proto := uint8(k[flowtable.WIP] >> flowtable.ProtoShift)
		if proto != packet.ProtoTCP && proto != packet.ProtoUDP {
			continue
		}
		w.table.Remove(firstStage + 2*i) // left by an attempt that failed
		w.table.Remove(firstStage + 2*i + 1)
		c := connection{frame: frame, lease: conntrack.Lease{Ref: conntrack.Ref{Number: i, Generation: 1}, Proto: proto, Scope: w.scope(&k), IPv6: k.EtherType() == packet.EtherTypeIPv6,
			Addresses: addressesOf(&k), Ports: uint32(k[flowtable.WL4] >> flowtable.TPDstShift), Translates: w.rng.Intn(3) > 0, NewPorts: w.rng.Uint32()}}
		for at := range c.lease.NewAddresses {
			if c.lease.NewAddresses[at] = c.lease.Addresses[at]; at == 0 || c.lease.IPv6 && w.rng.Intn(2) == 0 {
				c.lease.NewAddresses[at] = w.rng.Uint64()
			}
		}
		if w.connectionOf(&k) != nil || !w.installStages(i, &k, &c) {
			continue
		}
		c.lease.First = conntrack.Stage{Slot: c.first.slot, Serial: w.counts.Serial(c.first.slot)}
		c.lease.Second = conntrack.Stage{Slot: c.second.slot, Serial: w.counts.Serial(c.second.slot)}
		place, ok := w.counts.PutLease(c.lease)
		if !ok {
			continue
		}
		if !w.counts.HasLease(place, c.lease.First, c.lease.Second) {
			w.Fatal("the connection is not in the kernel")
		}
		w.connections = append(w.connections, c)
	}
}

// drawConnected returns a frame of a random connection, perhaps with a change, or any other frame.
func (w *twin) drawConnected() []byte {
	if len(w.connections) == 0 || w.rng.Intn(4) > 0 {
		return w.drawAny()
	}
	frame := slices.Clone(w.connections[w.rng.Intn(len(w.connections))].frame)
	if w.rng.Intn(2) == 0 {
		frame[w.rng.Intn(min(len(frame), 110))] ^= 1 << w.rng.Intn(8)
	}
	return frame
}

// installStages installs both stages of connection c, number i, whose frames have key k. It returns false if
// one of them stays with the worker.
func (w *twin) installStages(i uint32, k *flowtable.Key, c *connection) bool {
	c.first, c.second = w.drawStage(k), w.drawStage(k)
	c.first.slot, c.second.slot = firstStage+2*i, firstStage+2*i+1
	if !w.table.InstallTracking(c.first.slot, &c.first.key, &c.first.mask) {
		return false
	}
	c.second.key[flowtable.WPort] |= 5 // recirc_id
	f := &c.second
	f.out = Output{Port: f.slot, Ifindex: 1 + w.rng.Intn(3), MTU: []int{100, 1500, 9000}[w.rng.Intn(3)], Veth: true}
	f.actions = w.drawActions(f)
	rewrite, _, _ := Plan(f.actions)
	if w.terminations == nil && w.rng.Intn(2) == 0 && rewrite.bits&rewritePush == 0 {
		w.intoTunnel(f, rewrite)
	} else {
		f.installed = w.table.Install(f.slot, &f.key, &f.mask, rewrite, f.out)
	}
	if c.lease.Translates {
		f.ends = &c.lease
	}
	return f.installed
}

// drawStage returns a random megaflow that frames with key k match, before and after a translation of their
// addresses and ports.
func (w *twin) drawStage(k *flowtable.Key) (f flow) {
	f.mask[flowtable.WPort] = ^uint64(0)
	for i := flowtable.WPort + 1; i < keyWords; i++ {
		f.mask[i] = []uint64{0, 0, 0, ^uint64(0), 0xffff << 48, 0xffff}[w.rng.Intn(6)] &^ connectionBits[i]
	}
	for i := range f.key {
		f.key[i] = k[i] & f.mask[i]
	}
	return f
}

// addressesOf returns Lease.Addresses for frames with key k.
func addressesOf(k *flowtable.Key) [4]uint64 {
	if k.EtherType() == packet.EtherTypeIPv6 {
		return [4]uint64(k[flowtable.WIPv6Src : flowtable.WIPv6Dst+2])
	}
	return [4]uint64{k[flowtable.WIPv4]}
}

// scope returns Lease.Scope for frames with key k: the VNI or the VLAN tag.
func (w *twin) scope(k *flowtable.Key) uint32 {
	if w.terminations != nil {
		return uint32(k[flowtable.WTunID])
	}
	return uint32(k[flowtable.WEthSrc] & 0x1fff)
}

// connectionOf returns the connection that the kernel must find for a frame with key k, or nil if there is
// none or if a flow matches the frame.
func (w *twin) connectionOf(k *flowtable.Key) *connection {
	for i := range w.flows {
		if f := &w.flows[i]; f.installed && f.matches(k) {
			return nil
		}
	}
	proto := uint8(k[flowtable.WIP] >> flowtable.ProtoShift)
	if k[flowtable.WIP] == 0 || proto == packet.ProtoTCP && k[flowtable.WIP]&0x17 != 0x10 {
		return nil
	}
	for i := range w.connections {
		l := &w.connections[i].lease
		if l.Proto == proto && l.Scope == w.scope(k) && l.IPv6 == (k.EtherType() == packet.EtherTypeIPv6) && l.Addresses == addressesOf(k) && l.Ports == uint32(k[flowtable.WL4]>>flowtable.TPDstShift) {
			return &w.connections[i]
		}
	}
	return nil
}

// matchesStage reports whether a frame with key k matches f, a stage, whatever the recirc_id of the stage is.
func (f *flow) matchesStage(k *flowtable.Key) bool {
	tracked := *k
	tracked[flowtable.WPort] |= f.key[flowtable.WPort] & 0xffffffff
	return f.matches(&tracked)
}

// checkConnection compares what the programs did with a frame of connection c with what the worker does.
func (w *twin) checkConnection(c *connection, frame []byte, k *flowtable.Key, length int, forwarded bool, out []byte) {
	f := &c.second
	suits := c.first.matchesStage(k) && f.matchesStage(k) && length-tagLen(frame) <= f.out.MTU+ethernetLen
	want := w.perform(frame, f, out)
	if !forwarded {
		if suits && want != nil && !w.leaves(f, k) {
			w.Fatalf("the worker gets a frame of connection %+v: %x", c.lease, frame)
		}
		return
	}
	if !suits || string(out) != string(want) {
		w.Fatalf("the frame %x becomes %x, want %x, by %+v, %v, tunnel %+v", frame, out, want, c.lease, f.actions, f.encap)
	}
	w.hits++
	w.hitsOf["connections"]++
	if c.lease.Translates {
		w.hitsOf["translations"]++
	}
	if c.lease.Translates && c.lease.IPv6 {
		w.hitsOf["translations over IPv6"]++
	}
	for _, slot := range []uint32{c.first.slot, f.slot} {
		n := w.sum[slot]
		if n == nil {
			n = new([2]uint64)
			w.sum[slot] = n
		}
		n[0], n[1] = n[0]+1, n[1]+uint64(length)
		if r := &w.table.memory.rows[slot]; r.packets.Load() != n[0] || r.bytes.Load() != n[1] || r.usedNS.Load() == 0 || (r.ports.Load() == 0) != (slot == c.first.slot) {
			w.Fatalf("slot %d has counted %d frames of %d bytes for ports %#x, want %v", slot, r.packets.Load(), r.bytes.Load(), r.ports.Load(), *n)
		}
	}
}

// connected is a device's table with one connection and a frame of it, which the kernel forwards.
type connected struct {
	*testing.T
	table  *Table
	counts *Counts
	frame  []byte
	lease  conntrack.Lease
	place  uint32
}

func connect(t *testing.T) *connected {
	table := newTable(t)
	counts, err := OpenCounts(table.FDs())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(counts.Close)
	c := &connected{T: t, table: table, counts: counts, frame: make([]byte, 60)}
	c.frame[12], c.frame[14], c.frame[17], c.frame[23], c.frame[29], c.frame[33] = 0x08, 0x45, 46, packet.ProtoUDP, 1, 2
	c.frame[35], c.frame[37], c.frame[39] = 7, 9, 26
	c.install()
	c.lease = conntrack.Lease{Ref: conntrack.Ref{Number: 5, Generation: 3}, Dir: 1, Proto: packet.ProtoUDP, Addresses: [4]uint64{1<<32 | 2}, Ports: 7<<16 | 9}
	c.lend()
	return c
}

// install installs both stages of the connection.
func (c *connected) install() {
	c.Helper()
	mask := flowtable.Key{flowtable.WPort: ^uint64(0)}
	second := flowtable.Key{flowtable.WPort: 5}
	if !c.table.InstallTracking(1, &flowtable.Key{}, &mask) || !c.table.Install(2, &second, &mask, Rewrite{}, Output{Port: 2, Ifindex: 1, MTU: 1500}) {
		c.Fatal("the stages are not installed")
	}
}

func (c *connected) lend() {
	c.Helper()
	c.lease.First, c.lease.Second = conntrack.Stage{Slot: 1, Serial: c.counts.Serial(1)}, conntrack.Stage{Slot: 2, Serial: c.counts.Serial(2)}
	place, ok := c.counts.PutLease(c.lease)
	if !ok {
		c.Fatal("no room")
	}
	c.place = place
}

// forwards fails the test unless the kernel forwards the frame ("want" is true) or leaves it to the worker.
func (c *connected) forwards(want bool) {
	c.Helper()
	taken, err := c.table.filter.Run(&ebpf.RunOptions{Data: append(make([]byte, 14), c.frame...)})
	if err != nil {
		c.Fatal(err)
	}
	if (taken == takeNone) != want {
		c.Errorf("the filter returns %d", taken)
	}
}

// The kernel stops forwarding the frames of a connection when the tracker takes it back, when one of its
// megaflows is removed, and while the table is paused. A later megaflow in the same slot changes nothing.
func TestConnectionsLeave(t *testing.T) {
	c := connect(t)
	c.forwards(true)
	c.table.Pause(true)
	c.forwards(false)
	c.table.Pause(false)
	c.forwards(true)
	for slot := range uint32(2) {
		c.table.Remove(slot + 1)
		c.forwards(false)
		c.install()
		c.forwards(false)
		if c.counts.HasLease(c.place, conntrack.Stage{Slot: 1, Serial: c.counts.Serial(1)}, conntrack.Stage{Slot: 2, Serial: c.counts.Serial(2)}) {
			t.Error("the connection has megaflows that it never had")
		}
		c.counts.ClearLease(c.place)
		c.lend()
		c.forwards(true)
	}
	c.counts.ClearLease(c.place)
	c.forwards(false)
	if n := c.table.Connections(); n != 0 {
		t.Errorf("%d connections", n)
	}
}

// NextLease returns which connections the kernel uses, also those that an earlier engine has lent.
func TestUseOfConnections(t *testing.T) {
	c := connect(t)
	if n := c.table.Connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
	next := func(counts *Counts, seen bool, idle uint32) {
		t.Helper()
		place, l, found := counts.NextLease(0)
		if want := (conntrack.LeaseUse{Ref: c.lease.Ref, Dir: 1, Seen: seen, Idle: idle}); !found || place != c.place || l != want {
			t.Errorf("place %d, %v, %+v, want %d, %+v", place, found, l, c.place, want)
		}
		if _, _, found := counts.NextLease(place + 1); found {
			t.Error("another connection")
		}
	}
	next(c.counts, false, 1)
	next(c.counts, false, 2)
	c.forwards(true)
	next(c.counts, true, 0)
	next(c.counts, false, 1)
	c.forwards(true)
	later, err := OpenCounts(c.table.FDs())
	if err != nil {
		t.Fatal(err)
	}
	defer later.Close()
	next(later, true, 0)
	later.ClearLease(c.place)
	c.forwards(false)
}

// A bucket has as many connections as entries. Further ones stay with the worker.
func TestFullBucket(t *testing.T) {
	c := connect(t)
	seed, bucket := c.table.memory.seed(), c.place/bucketEntries
	stored, refused := 1, false
	for ports := uint32(0); !refused; ports++ {
		l := c.lease
		l.Ports = ports
		if l.Ports == c.lease.Ports || bucketOf(&l, seed)/bucketEntries != bucket {
			continue
		}
		if _, ok := c.counts.PutLease(l); ok {
			stored++
		} else {
			refused = true
		}
	}
	if stored != bucketEntries {
		t.Errorf("the bucket has %d entries", stored)
	}
	c.forwards(true)
}

// When another control process takes a table over, all stages are deleted, so frames of connections go to the
// worker.
func TestAdoptConnections(t *testing.T) {
	c := connect(t)
	adopted, err := Adopt(porttest.Duplicates(t, c.table.FDs()), false)
	if err != nil {
		t.Fatal(err)
	}
	defer adopted.Close()
	c.forwards(false)
	if c.counts.Serial(1) != 0 || c.counts.Serial(2) != 0 {
		t.Error("the engine may lend connections")
	}
}

// Plan accepts the action ct only as the first action, and only without alg and force.
func TestPlanOfTracking(t *testing.T) {
	out := flowtable.Action{Op: flowtable.OpOutput, U32: 1}
	again := flowtable.Action{Op: flowtable.OpRecirc, U32: 1}
	track := func(bits uint32) flowtable.Action { return flowtable.Action{Op: flowtable.OpCT, U32: bits} }
	labelled := flowtable.CTRequest{Bits: flowtable.CTCommit | flowtable.CTLabel}
	for _, c := range []struct {
		list                []flowtable.Action
		known, recirculates bool
	}{
		{[]flowtable.Action{track(0), again}, true, true},
		{[]flowtable.Action{track(flowtable.CTCommit | flowtable.CTNAT), out}, true, false},
		{append(labelled.AppendTo(nil), again), true, true},
		{[]flowtable.Action{track(flowtable.CTForce), again}, false, false},
		{[]flowtable.Action{track(flowtable.CTFTP), out}, false, false},
		{[]flowtable.Action{track(0), track(0), again}, false, false},
		{[]flowtable.Action{{Op: flowtable.OpDecTTL}, track(0), out}, false, false},
		{[]flowtable.Action{track(0), {Op: flowtable.OpDecTTL}, again}, false, false},
		{[]flowtable.Action{track(0), again, out}, false, false},
		{[]flowtable.Action{again}, false, false},
	} {
		if _, to, known := Plan(c.list); known != c.known || known && to.Recirculates != c.recirculates {
			t.Errorf("%v: %v, %+v", c.list, known, to)
		}
	}
}
