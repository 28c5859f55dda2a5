// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"weft/conntrack"
	"weft/flowtable"
	"weft/internal/shm"
	"weft/packet"
	"weft/port/porttest"
)

func ctTable(t testing.TB) *conntrack.Table {
	t.Helper()
	var measure shm.Layout
	sizes := conntrack.Sizes{Connections: 1024}
	conntrack.CarveMemory(&measure, sizes)
	region, err := shm.Create("conntrack-test", measure.Off)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { region.Close() })
	m := conntrack.CarveMemory(&shm.Layout{Mem: region.Bytes()}, sizes)
	conntrack.Init(m, 1)
	return conntrack.Open(m, 1)
}

// firewall returns a rig in which connections may begin only from port 1 to port 2.
func firewall(t testing.TB) *rig {
	r := newRig(t, testSizes)
	r.w.config.Fused = 1 << 10
	if err := r.w.setConnections(ctTable(t)); err != nil {
		t.Fatal(err)
	}
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{}, false)
	r.megaflow(0, 1, 0, 0, 0, flowtable.Action{Op: flowtable.OpCT, U16: 5}, flowtable.Action{Op: flowtable.OpRecirc, U32: 9})
	r.megaflow(1, 2, 0, 0, 0, flowtable.Action{Op: flowtable.OpCT, U16: 5}, flowtable.Action{Op: flowtable.OpRecirc, U32: 9})
	const est, fresh = conntrack.Tracked | conntrack.Established, conntrack.Tracked | conntrack.New
	commit := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit, Mark: 7, MarkMask: ^uint32(0)}
	r.megaflow(2, 1, 9, est|conntrack.New, fresh, append(commit.AppendTo(nil), output(2))...)
	r.megaflow(3, 1, 9, est|conntrack.New, est, output(2))
	r.megaflow(4, 2, 9, est|conntrack.New, est, output(1))
	r.megaflow(5, 2, 9, est|conntrack.New, fresh, flowtable.Action{Op: flowtable.OpDrop, U32: uint32(packet.DropFlow)})
	return r
}

// megaflow installs a megaflow that matches in_port, recirc_id and ct_state.
func (r *rig) megaflow(slot, inPort, recirc uint32, stateMask, state uint64, actions ...flowtable.Action) {
	r.t.Helper()
	key := flowtable.Key{flowtable.WPort: uint64(inPort)<<32 | uint64(recirc), flowtable.WCT: state << 24}
	mask := flowtable.Key{flowtable.WPort: ^uint64(0), flowtable.WCT: stateMask << 24}
	r.command(AppendInstall(nil, slot, &key, &mask, actions))
}

func udp(src, dst uint32, sport, dport uint16) []byte {
	f := make([]byte, 14+20+8+10)
	packet.Ethernet(f).SetType(packet.EtherTypeIPv4)
	ip := packet.IPv4(f[14:])
	ip[0], ip[8], ip[9] = 0x45, 64, packet.ProtoUDP
	ip.SetTotalLen(len(f) - 14)
	for i := range 4 {
		ip[12+i], ip[16+i] = byte(src>>(24-8*i)), byte(dst>>(24-8*i))
	}
	ip.SetChecksum(packet.Checksum(ip[:20]))
	u := packet.UDP(f[34:])
	u.SetSrcPort(sport)
	u.SetDstPort(dport)
	u.SetLen(18)
	u.SetChecksum(^packet.AddSums(packet.Sum(u), packet.SumIPv4(src, dst, packet.ProtoUDP, 18)))
	return f
}

func TestStatefulFirewall(t *testing.T) {
	r := firewall(t)
	out, back := udp(0x0a000001, 0x0a000002, 1, 2), udp(0x0a000002, 0x0a000001, 2, 1)
	r.inject(2, back)
	r.turn()
	r.equal("from outside", r.sh.Ports[1].TxPackets, 0)
	r.inject(1, out, out)
	r.turn()
	r.equal("sent out", r.sh.Ports[2].TxPackets, 2)
	r.inject(2, back, back, udp(0x0a000003, 0x0a000001, 2, 1))
	r.turn()
	r.equal("answers", r.sh.Ports[1].TxPackets, 2)
	r.inject(1, out)
	r.turn()
	// Every megaflow counts exactly the frames that matched it.
	for slot, want := range []uint64{3, 4, 2, 1, 2, 2} {
		r.equal("packets of a megaflow", r.sh.Cache.Flows[slot].Packets, want)
	}
	r.drops(map[packet.DropReason]uint64{packet.DropFlow: 2})
	n := 0
	r.w.tracks.tracker.Each(r.w.now, func(e *conntrack.Entry) bool {
		if n++; e.Mark != 7 || e.Orig.Zone != 5 {
			t.Errorf("%+v", e)
		}
		return true
	})
	r.equal("connections", uint64(n), 1)
}

// An upcall after a ct action has the ct_* fields. The resumed frame repeats the
// look-up after the ct action.
func TestMissBehindTracking(t *testing.T) {
	r := firewall(t)
	r.command(AppendCommand(nil, CmdRemove, 2, nil))
	r.inject(1, udp(0x0a000001, 0x0a000002, 1, 2))
	r.turn()
	up := r.mustUpcall(UpMiss)
	if up.Key.Recirc() != 9 || up.Key[flowtable.WCT] != (conntrack.Tracked|conntrack.New)<<24|packet.ProtoUDP<<16|5 ||
		up.Key[flowtable.WCTPorts] != 1<<48|2<<32 || up.Key[flowtable.WCTSrc+1] != 0x0a000001 {
		t.Fatalf("%#x", up.Key)
	}
	commit := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit}
	r.megaflow(2, 1, 9, 0xff, conntrack.Tracked|conntrack.New, append(commit.AppendTo(nil), output(2))...)
	r.command(AppendCommand(nil, CmdRetry, up.Arg, nil))
	r.turn()
	r.equal("sent", r.sh.Ports[2].TxPackets, 1)
	r.equal("connections", uint64(r.w.tracks.tracker.Count()), 1)
	// CmdExecute with a leading ct action tracks the frame without a megaflow.
	r.command(AppendCommand(nil, CmdRemove, 2, nil))
	r.inject(1, udp(0x0a000001, 0x0a000003, 1, 2))
	r.turn()
	up = r.mustUpcall(UpMiss)
	r.command(AppendExecute(nil, up.Arg, append(commit.AppendTo(nil), output(2))))
	r.turn()
	r.equal("sent", r.sh.Ports[2].TxPackets, 2)
	r.equal("connections", uint64(r.w.tracks.tracker.Count()), 2)
	// A frame can miss twice: before tracking and after it.
	r.command(AppendCommand(nil, CmdRemove, 0, nil))
	r.inject(1, udp(0x0a000001, 0x0a000004, 1, 2))
	r.turn()
	up = r.mustUpcall(UpMiss)
	r.megaflow(0, 1, 0, 0, 0, flowtable.Action{Op: flowtable.OpCT, U16: 5}, flowtable.Action{Op: flowtable.OpRecirc, U32: 9})
	r.command(AppendCommand(nil, CmdRetry, up.Arg, nil))
	r.turn()
	up = r.mustUpcall(UpMiss)
	r.command(AppendCommand(nil, CmdRetry, up.Arg, nil))
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropMissAgain: 1})
	r.equal("held", uint64(r.w.held.count), 0)
}

// Actions after a second look-up get the frame as it was before.
func TestActionsBehindRecirculation(t *testing.T) {
	r := firewall(t)
	snat := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit | flowtable.CTNAT | flowtable.CTNATSrc | flowtable.CTRange,
		Lo: [2]uint64{0, 0xc0000201}, Hi: [2]uint64{0, 0xc0000201}}
	r.command(AppendCommand(nil, CmdRemove, 0, nil))
	r.megaflow(0, 1, 0, 0, 0, append(snat.AppendTo(nil), output(2),
		flowtable.Action{Op: flowtable.OpRecirc, U32: 9}, flowtable.Action{Op: flowtable.OpSetTTL, U32: 3}, output(1))...)
	r.command(AppendCommand(nil, CmdRemove, 2, nil))
	r.megaflow(2, 1, 9, 0, 0, flowtable.Action{Op: flowtable.OpSetTTL, U32: 99}, output(2))
	r.inject(1, udp(0x0a000001, 0x0a000002, 1, 2))
	r.turn()
	var ttl []byte
	for _, f := range append(r.tx(2).TakeAll(), r.tx(1).TakeAll()...) {
		if src := packet.IPv4(f[14:]).Src(); src != 0xc0000201 || packet.Checksum(f[14:34]) != 0 {
			t.Errorf("%x", f)
		}
		ttl = append(ttl, f[22])
	}
	if string(ttl) != "\x40\x63\x03" {
		t.Fatalf("TTLs %v", ttl)
	}
}

// A frame that is looked up more often than maxRounds allows is dropped as DropLoop.
func TestRecirculationEnds(t *testing.T) {
	r := firewall(t)
	r.command(AppendCommand(nil, CmdRemove, 0, nil))
	r.megaflow(0, 1, 0, 0, 0, flowtable.Action{Op: flowtable.OpRecirc, U32: 1})
	r.megaflow(9, 1, 1, 0, 0, flowtable.Action{Op: flowtable.OpRecirc, U32: 1})
	r.inject(1, udp(1, 2, 3, 4))
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropLoop: 1})
	r.command(AppendCommand(nil, CmdRemove, 9, nil))
	r.megaflow(9, 1, 1, 0, 0, flowtable.Action{Op: flowtable.OpRecirc, U32: 1}, output(2))
	r.inject(1, udp(1, 2, 3, 4))
	r.turn()
	r.equal("sent by those within", r.sh.Ports[2].TxPackets, maxForks)
}

// CmdEndConnections ends exactly the connections that it names.
func TestEndConnections(t *testing.T) {
	r := firewall(t)
	r.inject(1, udp(0x0a000001, 0x0a000002, 1, 2))
	r.turn()
	var refs []conntrack.Ref
	r.w.tracks.tracker.Each(r.w.now, func(e *conntrack.Entry) bool { refs = append(refs, e.Ref); return true })
	r.command(AppendEndConnections(nil, append(refs, conntrack.Ref{Number: 1 << 31, Generation: 1})))
	r.turn()
	r.equal("connections", uint64(r.w.tracks.tracker.Count()), 0)
	r.equal("refused", r.sh.Counters.CommandsRefused, 0)
}

func TestTrackingAllocatesNothing(t *testing.T) {
	r := firewall(t)
	out, back := udp(0x0a000001, 0x0a000002, 1, 2), udp(0x0a000002, 0x0a000001, 2, 1)
	r.inject(1, out)
	r.inject(2, back)
	for no := range uint32(2) {
		r.tx(no + 1).Discard.Store(true)
	}
	r.turn()
	r.rx(1).Replay(1 << 40)
	r.rx(2).Replay(1 << 40)
	if n := testing.AllocsPerRun(200, r.turn); n != 0 {
		t.Fatalf("%v allocations a pass", n)
	}
	if r.sh.Ports[1].TxPackets < 32*100 {
		t.Fatalf("only %d answers passed", r.sh.Ports[1].TxPackets)
	}
}
