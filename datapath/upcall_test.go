// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
	"weft/tunnel"
)

func twoPorts(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, testSizes)
	r.addPort(1, porttest.Options{SlotBytes: packet.MaxFrameLen + 100, Span: 500}, false)
	r.addPort(2, porttest.Options{SlotBytes: packet.MaxFrameLen + 100}, false)
	return r
}

// A missed frame is held whole, and its key is sent to the control process. After an
// answer, frames resume in the order of their CmdRetry commands.
func TestMissAndRetry(t *testing.T) {
	r := twoPorts(t)
	frames := [][]byte{ethernet(0xa, 60, 0), ethernet(0xa, packet.MaxFrameLen, 1), ethernet(0xa, 1500, 2)}
	r.inject(1, frames...)
	r.turn()
	if r.rx(1).Lent() != 0 {
		t.Fatal("a held frame keeps the guest's buffers")
	}
	for i := range frames {
		up := r.mustUpcall(UpMiss)
		if up.Key.InPort() != 1 || up.Key.EthDst() != 0xa {
			t.Fatalf("key %x", up.Key)
		}
		if got := r.w.sh.heldBytes(up.Arg)[:r.sh.Held[up.Arg].Len]; !bytes.Equal(got, frames[i]) {
			t.Fatalf("frame %d is held as %d bytes", i, len(got))
		}
		if i == 0 {
			r.install(0, 1, 0xa, flowtable.Action{Op: flowtable.OpSetEthSrc, U64: 5}, output(2))
		}
		r.command(AppendCommand(nil, CmdRetry, up.Arg, nil))
	}
	want := r.commands.Publish()
	r.turn()
	r.equal("done", r.commands.Done(), want)
	got := r.tx(2).TakeAll()
	if len(got) != len(frames) {
		t.Fatalf("%d frames resumed", len(got))
	}
	for i := range got {
		packet.Ethernet(frames[i]).SetSrc(5)
		if !bytes.Equal(got[i], frames[i]) {
			t.Fatalf("frame %d differs", i)
		}
	}
	r.equal("misses", r.sh.Counters.Misses, 3)
	r.equal("frames", r.sh.Counters.Frames, 3) // a resumed frame is not counted again
	r.equal("packets of the flow", r.sh.Cache.Flows[0].Packets, 3)
	r.equal("commands", r.sh.Counters.Commands, 4)
	r.drops(nil)
	if r.w.held.count != 0 || len(r.w.held.free) != testSizes.Held {
		t.Fatalf("%d held, %d free", r.w.held.count, len(r.w.held.free))
	}
}

func TestMissAgain(t *testing.T) {
	r := twoPorts(t)
	r.inject(1, ethernet(0xa, 60, 0))
	r.turn()
	up := r.mustUpcall(UpMiss)
	r.command(AppendCommand(nil, CmdRetry, up.Arg, nil))
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropMissAgain: 1})
	r.equal("of the port", r.sh.Ports[1].RxDrops[packet.DropMissAgain], 1)
	if _, ok := r.upcall(); ok {
		t.Fatal("control got a second upcall")
	}
	// The slot is free, so commands for it are refused.
	r.command(AppendCommand(nil, CmdRetry, up.Arg, nil))
	r.command(AppendExecute(nil, up.Arg, []flowtable.Action{output(2)}))
	r.command(AppendDropHeld(nil, up.Arg, packet.DropFlow))
	r.turn()
	r.equal("refused", r.sh.Counters.CommandsRefused, 3)
	r.equal("sent", r.sh.Ports[2].TxPackets, 0)
}

// A late answer for a frame that has expired does not reach the next frame in its slot.
func TestLateAnswerAfterExpiry(t *testing.T) {
	r := twoPorts(t)
	r.inject(1, ethernet(0xa, 60, 0))
	r.turn()
	expired := r.mustUpcall(UpMiss)
	r.command(AppendDropHeld(nil, expired.Arg, packet.DropHeldExpired))
	r.turn()
	r.inject(1, ethernet(0xb, 60, 1))
	r.turn()
	up := r.mustUpcall(UpMiss)
	if SlotOf(up.Arg) != SlotOf(expired.Arg) {
		t.Fatalf("slots %d and %d: the test needs a slot that is used again", SlotOf(expired.Arg), SlotOf(up.Arg))
	}
	r.command(AppendCommand(nil, CmdRetry, expired.Arg, nil))
	r.command(AppendExecute(nil, expired.Arg, []flowtable.Action{output(2)}))
	r.command(AppendDropHeld(nil, expired.Arg, packet.DropFlow))
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropHeldExpired: 1})
	r.equal("refused", r.sh.Counters.CommandsRefused, 3)
	r.equal("sent", r.sh.Ports[2].TxPackets, 0)
	r.command(AppendExecute(nil, up.Arg, []flowtable.Action{output(2)}))
	r.turn()
	r.equal("sent after its own answer", r.sh.Ports[2].TxPackets, 1)
}

func TestExecuteAndDropHeld(t *testing.T) {
	r := twoPorts(t)
	r.inject(1, ethernet(0xa, 60, 0), ethernet(0xb, 60, 1), ethernet(0xc, 60, 2), ethernet(0xd, 60, 3))
	r.turn()
	a, b := r.mustUpcall(UpMiss), r.mustUpcall(UpMiss)
	r.command(AppendExecute(nil, a.Arg, []flowtable.Action{output(2), {Op: flowtable.OpSetEthSrc, U64: 9}, output(2)}))
	r.command(AppendDropHeld(nil, b.Arg, packet.DropLoop))
	r.turn()
	got := r.tx(2).TakeAll()
	if len(got) != 2 || got[0][11] == 9 || got[1][11] != 9 {
		t.Fatalf("sent % x", got)
	}
	r.drops(map[packet.DropReason]uint64{packet.DropLoop: 1})
	for range 2 {
		r.command(AppendDropHeld(nil, r.mustUpcall(UpMiss).Arg, packet.DropHeldExpired))
	}
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropLoop: 1, packet.DropHeldExpired: 2})
	r.equal("free slots", uint64(len(r.w.held.free)), uint64(testSizes.Held))
}

// Each held frame is resumed exactly once, even if it is retried twice, and even if
// there are more retries than fit into a batch.
func TestManyRetries(t *testing.T) {
	r := twoPorts(t)
	each := uint32(testSizes.Held) * 5 / 16 // number of frames of each port, within its quota
	var slots []uint32
	for no := uint32(1); no <= 2; no++ {
		for i := range each {
			r.inject(no, ethernet(0xa, 300, i))
		}
		r.install(no, no, 0xb, output(3-no))
	}
	r.turn()
	for range 2 * each {
		slots = append(slots, r.mustUpcall(UpMiss).Arg)
	}
	r.install(3, 1, 0xa, output(2))
	r.install(4, 2, 0xa, output(1))
	for _, s := range slots {
		r.command(AppendCommand(nil, CmdRetry, s, nil))
	}
	r.command(AppendCommand(nil, CmdRetry, slots[0], nil))
	r.turn()
	r.turn()
	for no := uint32(1); no <= 2; no++ {
		got := r.tx(no).TakeAll()
		if len(got) != int(each) {
			t.Fatalf("%d resumed to port %d", len(got), no)
		}
		for i := range got {
			if number(got[i]) != uint32(i) {
				t.Fatalf("frame %d in place %d", number(got[i]), i)
			}
		}
	}
	r.equal("refused", r.sh.Counters.CommandsRefused, 1)
}

// A frame that is too long is not held. One port cannot hold so many frames that no
// slots are left for others.
func TestHeldBounds(t *testing.T) {
	r := twoPorts(t)
	r.addPort(3, porttest.Options{}, false)
	half := testSizes.Held / 2
	r.inject(1, ethernet(0xa, HeldBytes+1, 0))
	for range half + 3 {
		r.inject(1, ethernet(0xa, 60, 0))
	}
	r.turn()
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropHeldFull: 1, packet.DropHeldShare: 3})
	for range half {
		r.inject(2, ethernet(0xa, 60, 0))
	}
	r.turn()
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropHeldFull: 1, packet.DropHeldShare: 3 + uint64(half/2)})
	r.equal("of the port", r.sh.Ports[2].RxDrops[packet.DropHeldShare], uint64(half/2))
	r.inject(3, ethernet(0xa, 60, 0))
	r.turn()
	r.equal("of another port", r.sh.Ports[3].RxDrops[packet.DropHeldShare], 0)
}

func TestUpcallRingFull(t *testing.T) {
	sizes := testSizes
	sizes.Held = 4096
	r := newRig(t, sizes)
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{}, false)
	fits := sizes.UpcallRing / 176 // an upcall has 176 bytes
	for range 1 + 2*fits/packet.BatchSize {
		for no := uint32(1); no <= 2; no++ {
			for range packet.BatchSize {
				r.inject(no, ethernet(0xa, 60, 0))
			}
		}
		r.turn()
		for slot := range r.sh.Held {
			if r.sh.Held[slot].State == HeldWaiting {
				r.w.held.drop(uint32(slot), packet.DropHeldExpired)
			}
		}
	}
	if r.sh.Counters.Drops[packet.DropMissRingFull] == 0 || r.sh.Counters.Misses > uint64(fits) {
		t.Fatalf("%d misses sent to control, %d dropped", r.sh.Counters.Misses, r.sh.Counters.Drops[packet.DropMissRingFull])
	}
	r.turn()
	r.equal("free slots", uint64(len(r.w.held.free)), uint64(sizes.Held))
}

func TestHeldExpires(t *testing.T) {
	r := twoPorts(t)
	r.inject(1, ethernet(0xa, 60, 0))
	r.turn()
	up := r.mustUpcall(UpMiss)
	r.w.held.sweptNS = 0
	r.turn()
	r.drops(nil)
	r.sh.Held[up.Arg].SinceNS -= heldTimeoutNS + 1
	r.w.held.sweptNS = 0
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropHeldExpired: 1})
	r.equal("held", uint64(r.w.held.count), 0)
}

// A new worker finds the frames that an earlier worker has held.
func TestHeldSurvivesTheWorker(t *testing.T) {
	r := twoPorts(t)
	r.inject(1, ethernet(0xa, 60, 7))
	r.turn()
	up := r.mustUpcall(UpMiss)
	w, err := NewWorker(r.sh, r.w.config)
	if err != nil {
		t.Fatal(err)
	}
	r.w.Close()
	r.w = w
	if err := w.addPort(&PortQueues{Port: 2, Tx: r.tx(2)}); err != nil {
		t.Fatal(err)
	}
	r.install(0, 1, 0xa, output(2))
	r.command(AppendCommand(nil, CmdRetry, up.Arg, nil))
	r.turn()
	if got := r.tx(2).TakeAll(); len(got) != 1 || number(got[0]) != 7 {
		t.Fatalf("sent %d frames", len(got))
	}
	t.Cleanup(w.Close)
}

func TestBadCommands(t *testing.T) {
	r := twoPorts(t)
	bad := [][]byte{
		nil, {1, 2, 3},
		AppendCommand(nil, 0, 0, nil), AppendCommand(nil, 99, 0, nil),
		AppendCommand(nil, CmdInstall, 0, make([]byte, 2*8*flowtable.KeyWords-1)),
		AppendCommand(nil, CmdInstall, 0, make([]byte, 2*8*flowtable.KeyWords+16*(flowtable.MaxActions+1))),
		AppendCommand(nil, CmdRemove, 5, nil), AppendCommand(nil, CmdRemove, ^uint32(0), nil),
		AppendCommand(nil, CmdRetry, ^uint32(0), nil), AppendCommand(nil, CmdExecute, ^uint32(0), nil),
		AppendCommand(nil, CmdDropHeld, 1<<31, nil),
		AppendCommand(nil, CmdTemplate, ^uint32(0), make([]byte, tunnel.TemplateBytes)),
		AppendCommand(nil, CmdTemplate, 0, []byte{1}),
		AppendCommand(nil, CmdTermination, 0, []byte{1}),
		AppendCommand(nil, CmdTermination, ^uint32(0), (&tunnel.Termination{Port: 3}).AppendTo(nil)),
	}
	for _, msg := range bad {
		r.command(msg)
	}
	r.turn()
	r.equal("refused", r.sh.Counters.CommandsRefused, uint64(len(bad)))
	// CmdInstall for a slot in use, or for a slot beyond the cache, is refused and
	// changes nothing.
	r.install(0, 1, 0xa, output(2))
	r.install(0, 1, 0xb, output(1))
	r.install(1<<30, 1, 0xc, output(1))
	r.turn()
	r.equal("installs refused", r.sh.Counters.InstallsRefused, 2)
	r.inject(1, ethernet(0xa, 60, 0))
	r.turn()
	r.equal("sent", r.sh.Ports[2].TxPackets, 1)
}

const uplinkPort, vxlanPort = 3, 4

var loopback = netip.MustParseAddr("192.0.2.1")

// withTunnel returns a rig with an uplink, a vxlan port whose remote is the rig
// itself, and tunnel template 1.
func withTunnel(t *testing.T, state uint32) *rig {
	t.Helper()
	r := twoPorts(t)
	r.addPort(uplinkPort, porttest.Options{Header: packet.MaxHeader}, true)
	tmpl, err := tunnel.Build(tunnel.Params{
		Port: uplinkPort, MTU: 1514, SrcMAC: [6]byte{2, 0, 0, 0, 0, 1}, DstMAC: [6]byte{2, 0, 0, 0, 0, 2},
		Local: loopback, Remote: loopback, UDPPort: 4789,
	})
	if err != nil {
		t.Fatal(err)
	}
	tmpl.State = state
	r.command(AppendTemplate(nil, 1, &tmpl))
	end := tunnel.Termination{Port: vxlanPort, VNI: 77, UDPPort: 4789}
	r.command(AppendTermination(nil, 0, &end))
	r.turn()
	r.equal("refused", r.sh.Counters.CommandsRefused, 0)
	return r
}

func toTunnel(vni uint64) flowtable.Action {
	return flowtable.Action{Op: flowtable.OpTunnel, U16: vxlanPort, U32: 1, U64: vni}
}

// A frame passes the tunnel between other outputs unchanged. Uplink and vxlan port
// count it in both directions.
func TestTunnelThereAndBack(t *testing.T) {
	r := withTunnel(t, tunnel.TemplateReady)
	const outer = 14 + 20 + 8 + 8
	r.install(0, 1, 0xa, output(2), toTunnel(77))
	r.install(1, 1, 0xb, toTunnel(77), flowtable.Action{Op: flowtable.OpSetEthSrc, U64: 9}, output(2))
	r.install(2, vxlanPort, 0xa, output(1))
	r.install(3, vxlanPort, 0xb, output(1))
	var frames [][]byte
	for i := range uint32(10) {
		frames = append(frames, ethernet(uint64(0xa+i%2), 100+100*int(i), i))
	}
	r.inject(1, frames...)
	r.turn()
	plain := r.tx(2).TakeAll()
	wire := r.tx(uplinkPort).TakeAll()
	if len(plain) != 10 || len(wire) != 10 {
		t.Fatalf("%d plain, %d tunneled", len(plain), len(wire))
	}
	octets := 0
	for i, f := range frames {
		octets += len(f)
		if !bytes.Equal(wire[i][outer:], f) || binary.BigEndian.Uint32(wire[i][outer-4:])>>8 != 77 {
			t.Fatalf("frame %d on the wire: % x", i, wire[i])
		}
		want := bytes.Clone(f)
		if i%2 == 1 {
			packet.Ethernet(want).SetSrc(9)
		}
		if !bytes.Equal(plain[i], want) {
			t.Fatalf("plain frame %d differs", i)
		}
	}
	r.equal("uplink sent", r.sh.Ports[uplinkPort].TxPackets, 10)
	r.equal("uplink bytes", r.sh.Ports[uplinkPort].TxBytes, uint64(octets+10*outer))
	r.equal("vxlan sent", r.sh.Ports[vxlanPort].TxPackets, 10)
	r.equal("vxlan bytes", r.sh.Ports[vxlanPort].TxBytes, uint64(octets))
	r.equal("inner bytes", r.sh.Ports[2].TxBytes, uint64(octets))

	r.inject(uplinkPort, wire...)
	r.turn()
	back := r.tx(1).TakeAll()
	if len(back) != 10 {
		t.Fatalf("%d came back", len(back))
	}
	for i := range back {
		if !bytes.Equal(back[i], frames[i]) {
			t.Fatalf("frame %d came back changed", i)
		}
	}
	r.equal("uplink received", r.sh.Ports[uplinkPort].RxPackets, 10)
	r.equal("uplink bytes", r.sh.Ports[uplinkPort].RxBytes, uint64(octets+10*outer))
	r.equal("vxlan received", r.sh.Ports[vxlanPort].RxPackets, 10)
	r.equal("vxlan bytes", r.sh.Ports[vxlanPort].RxBytes, uint64(octets))
	r.drops(nil)

	// A frame with an unknown VNI and a frame that is not VXLAN are dropped for
	// different reasons.
	wire[0][outer-2] = 78
	r.inject(uplinkPort, wire[0], ethernet(0xa, 60, 0))
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropNoTunnelPort: 1, packet.DropNotTunnel: 1})
	r.equal("of the uplink", r.sh.Ports[uplinkPort].RxDrops[packet.DropNoTunnelPort], 1)
}

// If a frame from a tunnel misses, its upcall and its held frame have the tunnel words
// of the key. The retried look-up matches them.
func TestTunnelMiss(t *testing.T) {
	r := withTunnel(t, tunnel.TemplateReady)
	r.install(0, 1, 0xa, toTunnel(77))
	f := ethernet(0xa, 200, 3)
	r.inject(1, f)
	r.turn()
	r.inject(uplinkPort, r.tx(uplinkPort).TakeAll()...)
	r.turn()
	up := r.mustUpcall(UpMiss)
	if up.Key.InPort() != vxlanPort || up.Key[flowtable.WTunID] != 77 || up.Key[flowtable.WTunIPv4]>>32 != 0xc0000201 {
		t.Fatalf("key %x", up.Key)
	}
	mask := flowtable.Key{}
	mask[flowtable.WTunID] = ^uint64(0)
	r.command(AppendInstall(nil, 1, &up.Key, &mask, []flowtable.Action{output(2)}))
	r.command(AppendCommand(nil, CmdRetry, up.Arg, nil))
	r.turn()
	if got := r.tx(2).TakeAll(); len(got) != 1 || !bytes.Equal(got[0], f) {
		t.Fatalf("%d frames", len(got))
	}
}

// A limited number of frames wait for a neighbour. They wait in the state in which they
// reached the tunnel action, so the other outputs of the flow are not repeated.
func TestNeighbour(t *testing.T) {
	r := withTunnel(t, tunnel.TemplatePending)
	r.install(0, 1, 0xa, flowtable.Action{Op: flowtable.OpSetEthSrc, U64: 8}, toTunnel(77), flowtable.Action{Op: flowtable.OpSetEthSrc, U64: 9}, output(2))
	r.inject(1, ethernet(0xa, 100, 0), ethernet(0xa, 100, 1))
	r.turn()
	r.equal("sent meanwhile", r.sh.Ports[2].TxPackets, 2)
	first, second := r.mustUpcall(UpNeighbour), r.mustUpcall(UpNeighbour)
	if first.Template != 1 {
		t.Fatalf("asked for template %d", first.Template)
	}
	tmpl := r.sh.Templates[1]
	tmpl.State = tunnel.TemplateReady
	r.command(AppendTemplate(nil, 1, &tmpl))
	r.command(AppendCommand(nil, CmdRetry, first.Arg, nil))
	r.command(AppendCommand(nil, CmdRetry, second.Arg, nil))
	r.turn()
	wire := r.tx(uplinkPort).TakeAll()
	if len(wire) != 2 || number(wire[0][50:]) != 0 || number(wire[1][50:]) != 1 || wire[0][50+11] != 8 {
		t.Fatalf("%d on the wire", len(wire))
	}
	r.equal("sent twice", r.sh.Ports[2].TxPackets, 2)
	r.equal("packets of the flow", r.sh.Cache.Flows[0].Packets, 2)

	// A retried frame is dropped as DropNoNeighbour if the template is still pending, and as DropNoRoute if
	// the template has failed.
	tmpl.State = tunnel.TemplatePending
	r.command(AppendTemplate(nil, 1, &tmpl))
	r.turn()
	r.inject(1, ethernet(0xa, 100, 0))
	r.turn()
	r.command(AppendCommand(nil, CmdRetry, r.mustUpcall(UpNeighbour).Arg, nil))
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropNoNeighbour: 1})
	tmpl.State = tunnel.TemplateNoRoute
	r.command(AppendTemplate(nil, 1, &tmpl))
	r.turn()
	r.inject(1, ethernet(0xa, 100, 0))
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropNoNeighbour: 1, packet.DropNoRoute: 1})
}

// The first frame of a flow into a tunnel waits twice: for its flow, and then for the
// neighbour.
func TestMissThenNeighbour(t *testing.T) {
	r := withTunnel(t, tunnel.TemplatePending)
	r.inject(1, ethernet(0xa, 100, 0))
	r.turn()
	up := r.mustUpcall(UpMiss)
	r.install(0, 1, 0xa, toTunnel(77))
	r.command(AppendCommand(nil, CmdRetry, up.Arg, nil))
	r.turn()
	again := r.mustUpcall(UpNeighbour)
	tmpl := r.sh.Templates[1]
	tmpl.State = tunnel.TemplateReady
	r.command(AppendTemplate(nil, 1, &tmpl))
	r.command(AppendCommand(nil, CmdRetry, again.Arg, nil))
	r.turn()
	r.equal("on the wire", r.sh.Ports[uplinkPort].TxPackets, 1)
	r.drops(nil)
	r.equal("held", uint64(r.w.held.count), 0)
}

func TestNeighbourBound(t *testing.T) {
	sizes := testSizes
	sizes.Held = 4 * maxHeldPerTemplate
	r := newRig(t, sizes)
	r.addPort(1, porttest.Options{}, false)
	tmpl := tunnel.Template{State: tunnel.TemplatePending}
	r.command(AppendTemplate(nil, 1, &tmpl))
	r.install(0, 1, 0xa, toTunnel(77))
	for range maxHeldPerTemplate + 5 {
		r.inject(1, ethernet(0xa, 60, 0))
	}
	for range 1 + maxHeldPerTemplate/packet.BatchSize {
		r.turn()
	}
	r.drops(map[packet.DropReason]uint64{packet.DropHeldShare: 5})
	for range maxHeldPerTemplate {
		r.command(AppendDropHeld(nil, r.mustUpcall(UpNeighbour).Arg, packet.DropNoNeighbour))
	}
	r.turn()
	r.turn()
	r.equal("waiting", uint64(r.w.held.byTemplate[1]), 0)
}

func TestTooBigForTunnel(t *testing.T) {
	r := withTunnel(t, tunnel.TemplateReady)
	r.install(0, 1, 0xa, toTunnel(77))
	r.install(1, 1, 0xb, flowtable.Action{Op: flowtable.OpTunnel, U32: 1 << 20}, output(2))
	r.inject(1, ethernet(0xa, 1514-50, 0), ethernet(0xa, 1514-50+1, 1), ethernet(0xb, 60, 2))
	r.turn()
	wire := r.tx(uplinkPort).TakeAll()
	if len(wire) != 1 || number(wire[0][50:]) != 0 {
		t.Fatalf("%d on the wire", len(wire))
	}
	r.drops(map[packet.DropReason]uint64{packet.DropTooBigForTunnel: 1, packet.DropNoRoute: 1})
	r.equal("sent all the same", r.sh.Ports[2].TxPackets, 1)
	r.equal("drops of the receiver", r.sh.Ports[1].RxDrops[packet.DropTooBigForTunnel], 0)
	r.equal("drops of the tunnel", r.sh.Ports[vxlanPort].TxReasons[packet.DropTooBigForTunnel], 1)
}

// Copies of a flood that a tunnel or a port cannot send count as dropped there, by reason. The input port
// counts no drop.
func TestCopiesCountAtTheirOutput(t *testing.T) {
	r := withTunnel(t, tunnel.TemplateNoRoute)
	r.install(0, 1, 0xa, toTunnel(77), output(2), output(9))
	r.inject(1, ethernet(0xa, 100, 0), ethernet(0xa, 100, 1))
	r.turn()
	r.equal("sent", r.sh.Ports[2].TxPackets, 2)
	r.equal("drops of the tunnel", r.sh.Ports[vxlanPort].TxDrops, 2)
	r.equal("without a route", r.sh.Ports[vxlanPort].TxReasons[packet.DropNoRoute], 2)
	r.equal("drops of the port without a device", r.sh.Ports[9].TxReasons[packet.DropNotAttached], 2)
	r.drops(map[packet.DropReason]uint64{packet.DropNoRoute: 2, packet.DropNotAttached: 2})
	if r.sh.Ports[1].RxDrops != [packet.DropReasons]uint64{} {
		t.Errorf("drops of the receiver: %v", r.sh.Ports[1].RxDrops)
	}

	tmpl := r.sh.Templates[1]
	tmpl.State = tunnel.TemplatePending
	r.command(AppendTemplate(nil, 1, &tmpl))
	r.inject(1, ethernet(0xa, 100, 2))
	r.turn()
	r.command(AppendDropHeld(nil, r.mustUpcall(UpNeighbour).Arg, packet.DropNoNeighbour))
	r.turn()
	r.equal("without a neighbour", r.sh.Ports[vxlanPort].TxReasons[packet.DropNoNeighbour], 1)
	if r.sh.Ports[1].RxDrops != [packet.DropReasons]uint64{} {
		t.Errorf("drops of the receiver: %v", r.sh.Ports[1].RxDrops)
	}
}

// A miss carries the key and the raw Geneve options of its frame. A body of another length
// is refused.
func TestMissWithOptions(t *testing.T) {
	key := flowtable.Key{flowtable.WPort: 5 << 32, flowtable.WTunID: 7, flowtable.WTunOpts: 9}
	for n, want := range map[int]bool{0: true, 4: true, flowtable.MaxTunOptions: true, 3: false, flowtable.MaxTunOptions + 4: false} {
		options := bytes.Repeat([]byte{0xab}, n)
		msg := append(appendWords(appendHeader(nil, uint32(UpMiss), 1), key[:]), options...)
		up, err := ParseUpcall(msg)
		if (err == nil) != want || want && (up.Key != key || !bytes.Equal(up.Options, options)) {
			t.Errorf("%d bytes of options: %+v, %v", n, up, err)
		}
		if _, ok := MissedBy(msg); ok != want {
			t.Errorf("%d bytes of options: MissedBy reports %v", n, ok)
		}
	}
}
