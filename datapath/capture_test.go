// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"math/rand"
	"slices"
	"testing"

	"weft/flowtable"
	"weft/internal/shm"
	"weft/packet"
	"weft/port/porttest"
	"weft/tunnel"
)

func (r *rig) capture(index uint32, t Capture) {
	r.t.Helper()
	r.command(AppendCapture(nil, index, &t))
}

// captures returns the records in the capture ring, except for withdrawn ones (VoidCapture).
func (r *rig) captures() (list []Captured) {
	r.t.Helper()
	ring := shm.NewConsumer(r.sh.Captures)
	for msg := ring.Next(); msg != nil; msg = ring.Next() {
		c, err := ParseCapture(msg)
		if err != nil {
			r.t.Fatal(err)
		}
		if c.Capture != VoidCapture {
			list = append(list, c)
		}
		ring.Release()
	}
	return list
}

type capturedFrame struct {
	kind    CapturedKind
	port    uint32
	verdict CaptureVerdict
	reason  packet.DropReason
	outputs []uint32
	data    []byte
}

func (r *rig) mustSee(got []Captured, want []capturedFrame) {
	r.t.Helper()
	if len(got) != len(want) {
		r.t.Fatalf("%d captures, want %d: %+v", len(got), len(want), got)
	}
	for i, w := range want {
		g := got[i]
		if g.Kind != w.kind || g.Port != w.port || g.Verdict != w.verdict || g.Reason != w.reason || !slices.Equal(g.Outputs, w.outputs) {
			r.t.Errorf("capture %d: %+v, want %+v", i, g, w)
		}
		if !bytes.Equal(g.Data, w.data) || g.Len != len(w.data) {
			r.t.Errorf("capture %d: %d bytes % x, want % x", i, g.Len, g.Data, w.data)
		}
	}
}

// The capture of a port has received frames as they were before any action, and sent frames as they are
// after all actions, with their verdicts.
func TestCaptureOfPort(t *testing.T) {
	r := newRig(t, testSizes)
	for no := uint32(1); no <= 3; no++ {
		r.addPort(no, porttest.Options{Span: 100}, false)
	}
	r.install(0, 1, 0xa, flowtable.Action{Op: flowtable.OpSetEthSrc, U64: 9}, output(2), output(3))
	r.install(1, 1, 0xb, flowtable.Action{Op: flowtable.OpDrop, U32: uint32(packet.DropFlow)})
	r.install(2, 3, 0xc, output(2))
	r.install(3, 1, 0xd, output(9), output(3))
	r.capture(0, Capture{Kind: CapturePort, Port: 1})
	r.capture(1, Capture{Kind: CapturePort, Port: 2})
	r.turn()
	a, b, c, d := ethernet(0xa, 700, 0), ethernet(0xb, 60, 1), ethernet(0xc, 60, 2), ethernet(0xd, 60, 3)
	changed := bytes.Clone(a)
	packet.Ethernet(changed).SetSrc(9)
	r.inject(1, a, b, d)
	r.inject(3, c)
	r.tx(2).Room.Store(1)
	r.turn()
	r.mustSee(r.captures(), []capturedFrame{
		{CapturedIn, 1, VerdictSent, packet.DropNone, []uint32{2, 3}, a},
		{CapturedIn, 1, VerdictDropped, packet.DropFlow, nil, b},
		{CapturedIn, 1, VerdictSent, packet.DropNotAttached, []uint32{3}, d},
		{CapturedOut, 2, VerdictSent, packet.DropNone, []uint32{2}, changed},
		{CapturedOut, 2, VerdictDropped, packet.DropTxFull, nil, c},
	})
	r.capture(0, Capture{})
	r.capture(1, Capture{})
	r.inject(1, a)
	r.turn()
	r.turn()
	r.mustSee(r.captures(), nil)
}

// A frame that misses is captured once, when its outcome is known.
func TestCaptureOfMiss(t *testing.T) {
	r := twoPorts(t)
	r.capture(0, Capture{Kind: CapturePort, Port: 1, Limit: 4})
	r.turn()
	a, b, c := ethernet(0xa, 700, 0), ethernet(0xb, 60, 1), ethernet(0xc, 60, 2)
	for _, f := range [][]byte{a, b, c} {
		r.inject(1, f)
		r.turn()
	}
	r.mustSee(r.captures(), nil)
	r.install(0, 1, 0xa, output(2))
	r.command(AppendCommand(nil, CmdRetry, r.mustUpcall(UpMiss).Arg, nil))
	r.command(AppendExecute(nil, r.mustUpcall(UpMiss).Arg, []flowtable.Action{output(2)}))
	r.command(AppendDropHeld(nil, r.mustUpcall(UpMiss).Arg, packet.DropHeldExpired))
	r.turn()
	got := r.captures()
	r.mustSee(got, []capturedFrame{
		{CapturedIn, 1, VerdictSent, packet.DropNone, []uint32{2}, a},
		{CapturedIn, 1, VerdictSent, packet.DropNone, []uint32{2}, b},
		{CapturedIn, 1, VerdictDropped, packet.DropHeldExpired, nil, c},
	})
	for i := range got {
		if got[i].HeldNS == 0 || got[i].HeldNS > got[i].TimeNS {
			t.Errorf("held since %d, seen at %d", got[i].HeldNS, got[i].TimeNS)
		}
	}
	r.equal("counted", r.sh.CaptureCounters[0].Written, 3)
	// The capture's limit allows one more frame.
	r.inject(1, a, a)
	r.turn()
	r.equal("beyond the limit", uint64(len(r.captures())), 1)
	r.equal("lost", r.sh.CaptureCounters[0].Lost, 0)
}

func TestCaptureOfDrops(t *testing.T) {
	r := twoPorts(t)
	r.install(0, 1, 0xa, flowtable.Action{Op: flowtable.OpDrop, U32: uint32(packet.DropTTLExpired)})
	r.install(1, 2, 0xa, output(1))
	r.install(2, 1, 0xb, output(2))
	r.capture(0, Capture{Kind: CaptureDrops})
	r.capture(7, Capture{Kind: CaptureDrops, Port: 2, Snap: 20})
	r.turn()
	a, b := ethernet(0xa, 700, 0), ethernet(0xb, 60, 1)
	r.tx(2).Room.Store(0)
	r.inject(1, a, b)
	r.inject(2, a)
	r.turn()
	got := r.captures()
	var all, short []Captured
	for _, c := range got {
		if c.Capture == 0 {
			all = append(all, c)
		} else {
			short = append(short, c)
		}
	}
	r.mustSee(all, []capturedFrame{
		{CapturedDrop, 1, VerdictDropped, packet.DropTTLExpired, nil, a},
		{CapturedDrop, 2, VerdictDropped, packet.DropTxFull, nil, b},
	})
	if len(short) != 1 || short[0].Capture != 7 || short[0].Len != 60 || !bytes.Equal(short[0].Data, b[:20]) {
		t.Errorf("of port 2: %+v", short)
	}
}

// The record of a trace has the cache that found the frame, the frame's megaflow and
// its actions.
func TestCaptureOfTrace(t *testing.T) {
	r := twoPorts(t)
	actions := []flowtable.Action{{Op: flowtable.OpSetEthSrc, U64: 9}, output(2)}
	r.install(5, 1, 0xa, actions...)
	r.install(6, 1, 0xb, output(2))
	r.capture(3, Capture{
		Kind: CaptureTrace, Key: flowtable.Key{flowtable.WEthDst: 0xa << 16}, Mask: flowtable.Key{flowtable.WEthDst: 0xffffffffffff << 16},
	})
	a := ethernet(0xa, 100, 0)
	r.inject(1, a, ethernet(0xb, 100, 1), a)
	r.turn()
	got := r.captures()
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	for i, cache := range []CaptureCache{CacheMegaflow, CacheExact} {
		c := got[i]
		if c.Capture != 3 || c.Kind != CapturedTrace || c.Cache != cache || c.Slot != 5 || !slices.Equal(c.Actions, actions) ||
			c.Key.InPort() != 1 || c.Verdict != VerdictSent || c.Frames != 3 || !bytes.Equal(c.Data, a) {
			t.Errorf("frame %d: %+v", i, c)
		}
	}
	r.equal("exact hits", r.sh.Counters.ExactHits, 1)
	r.equal("megaflow hits", r.sh.Counters.MegaflowHits, 2)
	r.equal("masks", uint64(got[0].Masks), 1)

	// A frame that misses is traced once, after the control process has answered.
	r.capture(3, Capture{Kind: CaptureTrace, Limit: 1})
	r.inject(1, ethernet(0xc, 100, 1))
	r.turn()
	held := r.mustUpcall(UpMiss).Arg
	r.mustSee(r.captures(), nil)
	r.command(AppendExecute(nil, held, actions))
	r.turn()
	got = r.captures()
	if len(got) != 1 || got[0].Cache != CacheControl || got[0].Slot != flowtable.NoSlot || got[0].HeldNS == 0 || !slices.Equal(got[0].Actions, actions) {
		t.Fatalf("%+v", got)
	}
}

// Tunnelled frames are captured with their outer headers on the uplink and without
// them on the vxlan port, in both directions.
func TestCaptureOfTunnel(t *testing.T) {
	r := withTunnel(t, tunnel.TemplateReady)
	r.install(0, 1, 0xa, toTunnel(77))
	r.install(1, vxlanPort, 0xa, output(2))
	r.capture(0, Capture{Kind: CapturePort, Port: uplinkPort})
	r.capture(1, Capture{Kind: CapturePort, Port: vxlanPort})
	r.capture(2, Capture{Kind: CapturePort, Port: 1})
	f := ethernet(0xa, 300, 0)
	r.inject(1, f)
	r.turn()
	wire := r.tx(uplinkPort).TakeAll()[0]
	r.mustSee(r.captures(), []capturedFrame{
		{CapturedIn, 1, VerdictSent, packet.DropNone, []uint32{vxlanPort}, f},
		{CapturedOut, uplinkPort, VerdictSent, packet.DropNone, []uint32{uplinkPort}, wire},
		{CapturedOut, vxlanPort, VerdictSent, packet.DropNone, []uint32{uplinkPort}, f},
	})
	other := ethernet(0xb, 60, 0)
	r.inject(uplinkPort, wire, other)
	r.turn()
	r.mustSee(r.captures(), []capturedFrame{
		{CapturedIn, uplinkPort, VerdictSent, packet.DropNone, []uint32{2}, wire},
		{CapturedIn, uplinkPort, VerdictDropped, packet.DropNotTunnel, nil, other},
		{CapturedIn, vxlanPort, VerdictSent, packet.DropNone, []uint32{2}, f},
	})

	// A frame that came through a tunnel and misses is captured once with its outer
	// headers and once without.
	inner := ethernet(0xd, 300, 0)
	missed := append(bytes.Clone(wire[:len(wire)-len(f)]), inner...)
	r.inject(uplinkPort, missed)
	r.turn()
	r.command(AppendExecute(nil, r.mustUpcall(UpMiss).Arg, []flowtable.Action{output(2)}))
	r.turn()
	r.mustSee(r.captures(), []capturedFrame{
		{CapturedIn, uplinkPort, VerdictMissed, packet.DropNone, nil, missed},
		{CapturedIn, vxlanPort, VerdictSent, packet.DropNone, []uint32{2}, inner},
	})
}

// A frame that waits for the next hop of its tunnel has the verdict VerdictNeighbour.
func TestCaptureOfNeighbour(t *testing.T) {
	r := withTunnel(t, tunnel.TemplatePending)
	r.install(0, 1, 0xa, toTunnel(77))
	r.capture(0, Capture{Kind: CapturePort, Port: 1})
	f := ethernet(0xa, 300, 0)
	r.inject(1, f)
	r.turn()
	r.mustSee(r.captures(), []capturedFrame{{CapturedIn, 1, VerdictNeighbour, packet.DropNone, nil, f}})
}

// A full capture ring drops no frame, and the capture counts the lost records.
func TestFullCaptureRing(t *testing.T) {
	r := newRig(t, testSizes)
	for no := uint32(1); no <= 2; no++ {
		r.addPort(no, porttest.Options{Span: 4000}, false)
	}
	r.tx(2).Discard.Store(true)
	r.install(0, 1, 0xa, output(2))
	r.capture(0, Capture{Kind: CapturePort, Port: 1})
	for range 32 {
		r.inject(1, ethernet(0xa, 1500, 0))
	}
	r.turn()
	r.rx(1).Replay(1 << 40)
	if n := testing.AllocsPerRun(200, r.turn); n != 0 {
		t.Fatalf("%v allocations a pass", n)
	}
	c := r.sh.CaptureCounters[0]
	if c.Lost == 0 || c.Written == 0 || c.Lost+c.Written != r.sh.Counters.Frames {
		t.Errorf("%+v of %d frames", c, r.sh.Counters.Frames)
	}
	r.equal("sent", r.sh.Ports[2].TxPackets, r.sh.Counters.Frames)
	r.equal("in the ring", uint64(len(r.captures())), c.Written)
}

// A memory fault while a capture copies a frame has the same effect as a memory fault while
// the frame is sent.
func TestCaptureOfFault(t *testing.T) {
	for _, capture := range []Capture{{Kind: CapturePort, Port: 1}, {Kind: CapturePort, Port: 3}, {Kind: CaptureDrops}, {Kind: CaptureTrace}} {
		r := guardedRig(t)
		r.install(0, 1, 0xa, output(2))
		r.install(1, 2, 0xa, output(3))
		r.capture(0, capture)
		for i := range uint32(5) {
			r.inject(1, ethernet(0xa, 1000, i))
			r.inject(2, ethernet(0xa, 1000, i))
		}
		// Port 1's memory disappears right after its frames were received.
		r.w.queues.queue(0).rx = &hookedRx{Rx: r.rx(1), hook: r.rx(1).Truncate}
		for range 3 {
			r.turn()
		}
		r.mustFault(1, "memory failed")
		r.equal("sent", r.sh.Ports[3].TxPackets, 5)
		r.equal("accounted for", r.total(), r.sh.Counters.Frames)
		r.equal("lost", r.sh.Counters.Drops[packet.DropPortFault], 5)
		for _, c := range r.captures() {
			if capture.Kind == CaptureDrops && (c.Reason != packet.DropPortFault || c.Len != 1000 || len(c.Data) == 0 || len(c.Data) >= 1000) {
				t.Errorf("%+v", c)
			}
		}
	}
}

func TestBadCaptures(t *testing.T) {
	r := twoPorts(t)
	good := AppendCapture(nil, 0, &Capture{Kind: CapturePort, Port: 1})
	r.command(AppendCapture(nil, MaxCaptures, &Capture{}))
	r.command(good[:len(good)-1])
	r.command(AppendCommand(nil, CmdCapture, 0, nil))
	r.turn()
	r.equal("refused", r.sh.Counters.CommandsRefused, 3)
	for _, msg := range [][]byte{nil, make([]byte, captureHeader-1), append([]byte{0, byte(CapturedTrace)}, make([]byte, captureHeader)...)} {
		if c, err := ParseCapture(msg); err == nil {
			t.Errorf("%d bytes: %+v", len(msg), c)
		}
	}
}

// captureAll sets a capture on each port and one on all drops. checkCaptures compares the captured
// frames with the counters and the sent frames.
func (r *rig) captureAll() {
	for no := range uint32(oraclePorts) {
		r.capture(no, Capture{Kind: CapturePort, Port: no})
	}
	r.capture(0, Capture{Kind: CaptureDrops})
	r.capture(MaxCaptures-1, Capture{Kind: CaptureTrace, Mask: flowtable.Key{flowtable.WPort: 1 << 32}})
}

func (r *rig) checkCaptures(sent [][][]byte) {
	r.t.Helper()
	var drops uint64
	for _, n := range r.sh.Counters.Drops {
		drops += n
	}
	r.equal("drops captured", r.sh.CaptureCounters[0].Written+r.sh.CaptureCounters[0].Lost, drops)
	out := make([][][]byte, len(sent))
	for _, c := range r.captures() {
		if c.Kind == CapturedOut && c.Verdict == VerdictSent {
			out[c.Port] = append(out[c.Port], c.Data)
		}
	}
	for no := uint32(1); no < oraclePorts; no++ {
		c, captures := r.sh.Ports[no], r.sh.CaptureCounters[no]
		r.equal("frames captured", captures.Written+captures.Lost, c.RxPackets+c.TxPackets+c.TxDrops)
		if captures.Lost == 0 && !slices.EqualFunc(out[no], sent[no], bytes.Equal) {
			r.t.Errorf("port %d: captured %d frames, sent %d, or they differ", no, len(out[no]), len(sent[no]))
		}
	}
}

// ParseCapture handles any bytes in a record without a panic.
func FuzzParseCapture(f *testing.F) {
	r := newRig(f, testSizes)
	rng := rand.New(rand.NewSource(1))
	r.addPort(1, porttest.Options{}, false)
	r.install(0, 1, 0xa, output(2))
	r.capture(0, Capture{Kind: CaptureTrace})
	r.capture(1, Capture{Kind: CaptureDrops})
	for range 10 {
		r.inject(1, randomFrame(rng, 0xa, 300))
	}
	r.turn()
	ring := shm.NewConsumer(r.sh.Captures)
	for msg := ring.Next(); msg != nil; msg = ring.Next() {
		f.Add(bytes.Clone(msg))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		if c, err := ParseCapture(msg); err == nil && len(c.Data)+captureHeader > len(msg) {
			t.Errorf("%d bytes of data out of %d", len(c.Data), len(msg))
		}
	})
}

// Merged segments are captured one by one, and then as one frame. A large frame that
// is cut is captured whole.
func TestCaptureOfLargeFrames(t *testing.T) {
	r := withOffloads(t)
	r.install(0, 1, 0xa, output(5), toTunnel(77))
	r.install(1, vxlanPort, 0xa, output(5))
	undone, o := undo(large(0xa, 14000), 1400)
	r.capture(0, Capture{Kind: CapturePort, Port: 5})
	r.capture(1, Capture{Kind: CapturePort, Port: vxlanPort})
	r.turn()
	r.rx(1).InjectUndone(undone, o)
	r.turn()
	got := r.captures()
	if len(got) != 2 || got[0].Port != 5 || got[0].Len != len(undone) || got[0].Verdict != VerdictSent ||
		got[1].Port != vxlanPort || got[1].Len != len(undone) || got[1].Verdict != VerdictSent {
		t.Fatalf("cut: %+v", got)
	}
	wire := r.tx(uplinkPort).TakeAll()
	r.inject(uplinkPort, wire...)
	r.turn()
	got = r.captures()
	merged, in, whole := 0, 0, 0
	for _, c := range got {
		switch {
		case c.Kind == CapturedOut && c.Port == 5 && c.Verdict == VerdictSent:
			whole++
		case c.Kind == CapturedIn && c.Port == vxlanPort && c.Verdict == VerdictMerged:
			merged++
		case c.Kind == CapturedIn && c.Port == vxlanPort && c.Verdict == VerdictSent:
			in++
		default:
			t.Errorf("%+v", c)
		}
	}
	if merged+in != len(wire) || in != whole || merged == 0 {
		t.Errorf("%d segments, %d of them merged, became %d frames of %d", in+merged, merged, whole, len(wire))
	}
}
