// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"fmt"
	"math/rand"
	"testing"

	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
)

const (
	oraclePorts = 5 // output ports; port 5 does not exist
	smallMTU    = 400
)

// checkAgainstTwin sends random frames through random flows of a worker, and compares
// all outputs and counters with the reference implementation in twin_test.go.
func checkAgainstTwin(t *testing.T, seed int64) {
	rng := rand.New(rand.NewSource(seed))
	r := newRig(t, testSizes)
	for no := uint32(1); no < oraclePorts; no++ {
		// Enough spans, so that each port's frames are one batch.
		o := porttest.Options{Slots: 4096, Header: []int{64, 128, packet.MaxHeader}[rng.Intn(3)] + 60, Span: 24 + rng.Intn(300)}
		if no == 4 {
			o.MTU = smallMTU
		}
		r.addPort(no, o, false)
	}
	const dsts = 4
	flows := map[[2]uint64][]flowtable.Action{}
	slotOf := map[[2]uint64]uint32{}
	for in := uint64(1); in < oraclePorts; in++ {
		for dst := uint64(1); dst <= dsts; dst++ {
			k := [2]uint64{in, dst}
			flows[k] = randomActions(rng, oraclePorts)
			slotOf[k] = uint32(len(slotOf))
			r.install(slotOf[k], uint32(in), dst, flows[k]...)
		}
	}
	if seed%2 == 1 {
		r.captureAll() // captures must not change any result
	}
	r.turn()

	sent := make([][][]byte, oraclePorts)
	var drops [packet.DropReasons]uint64
	var rxDrops [oraclePorts][packet.DropReasons]uint64
	var txDrops [oraclePorts]uint64
	absent := uint64(0) // copies to the port that does not exist
	packets, octets := map[[2]uint64]uint64{}, map[[2]uint64]uint64{}
	for range 1 + rng.Intn(6) {
		for in := uint64(1); in < oraclePorts; in++ {
			for range rng.Intn(packet.BatchSize + 1) {
				k := [2]uint64{in, uint64(1 + rng.Intn(dsts))}
				f := randomFrame(rng, k[1], 700)
				r.inject(uint32(in), f)
				packets[k]++
				octets[k] += uint64(len(f))
				result := interpret(f, flows[k])
				if result.drop != packet.DropNone {
					drops[result.drop]++
					rxDrops[in][result.drop]++
				}
				for _, o := range result.outputs {
					switch {
					case o.port == oraclePorts:
						drops[packet.DropNotAttached]++
						absent++
					case o.port == 4 && len(o.frame) > smallMTU:
						drops[packet.DropOversizeFrame]++
						txDrops[o.port]++
					default:
						sent[o.port] = append(sent[o.port], o.frame)
					}
				}
			}
		}
		r.turn()
	}

	for no := uint32(1); no < oraclePorts; no++ {
		got := r.tx(no).TakeAll()
		if len(got) != len(sent[no]) {
			t.Fatalf("port %d sent %d frames, want %d; drops %v, want %v", no, len(got), len(sent[no]), r.sh.Counters.Drops, drops)
		}
		octets := 0
		for i := range got {
			octets += len(got[i])
			if !bytes.Equal(got[i], sent[no][i]) {
				t.Fatalf("port %d, frame %d:\n got % x\nwant % x", no, i, got[i], sent[no][i])
			}
		}
		c := r.sh.Ports[no]
		r.equal("transmitted", c.TxPackets, uint64(len(got)))
		r.equal("transmitted bytes", c.TxBytes, uint64(octets))
		r.equal("transmit drops", c.TxDrops, txDrops[no])
		if c.RxDrops != rxDrops[no] {
			t.Errorf("port %d: receive drops %v, want %v", no, c.RxDrops, rxDrops[no])
		}
	}
	r.equal("dropped at the absent port", r.sh.Ports[oraclePorts].TxReasons[packet.DropNotAttached], absent)
	if r.sh.Counters.Drops != drops {
		t.Errorf("drops %v, want %v", r.sh.Counters.Drops, drops)
	}
	if seed%2 == 1 {
		r.checkCaptures(sent)
	}
	for k, slot := range slotOf {
		flow := &r.sh.Cache.Flows[slot]
		r.equal("packets of a flow", flow.Packets, packets[k])
		r.equal("bytes of a flow", flow.Bytes, octets[k])
	}
}

func TestAgainstTwin(t *testing.T) {
	for seed := range int64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { checkAgainstTwin(t, seed) })
	}
}

func FuzzAgainstTwin(f *testing.F) {
	f.Add(int64(1000))
	f.Fuzz(checkAgainstTwin)
}

// A frame sent in the middle of a batch does not overtake earlier frames.
func TestOrderOnAPort(t *testing.T) {
	r := newRig(t, testSizes)
	for no := uint32(1); no <= 3; no++ {
		r.addPort(no, porttest.Options{}, false)
	}
	r.install(0, 1, 0xa, output(2))
	r.install(1, 1, 0xb, output(2), flowtable.Action{Op: flowtable.OpSetEthSrc, U64: 7}, output(3))
	r.install(2, 1, 0xc, output(3), output(2), output(2))
	for i := range uint32(packet.BatchSize) {
		r.inject(1, ethernet(uint64(0xa+i%3), 100, i))
	}
	r.turn()
	var two, three []uint32
	for i := range uint32(packet.BatchSize) {
		two = append(two, i)
		if i%3 == 2 {
			two = append(two, i)
		}
		if i%3 > 0 {
			three = append(three, i)
		}
	}
	for no, want := range map[uint32][]uint32{2: two, 3: three} {
		got := r.tx(no).TakeAll()
		if len(got) != len(want) {
			t.Fatalf("port %d sent %d, want %d", no, len(got), len(want))
		}
		for i := range got {
			if number(got[i]) != want[i] {
				t.Fatalf("port %d: frame %d in place %d, want %d", no, number(got[i]), i, want[i])
			}
			if changed := got[i][11] == 7; changed != (no == 3 && want[i]%3 == 1) {
				t.Fatalf("port %d: frame %d shows another copy's address", no, want[i])
			}
		}
	}
	if n := r.tx(2).Flushes.Load(); n != 1 {
		t.Fatalf("%d flushes in one batch, want 1", n)
	}
}

// Frames of known flows cause one Send per output port and batch.
func TestOneSendABatch(t *testing.T) {
	r := newRig(t, testSizes)
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{}, false)
	r.install(0, 1, 0xa, output(2))
	for i := range uint32(packet.BatchSize) {
		r.inject(1, ethernet(0xa, 100, i))
	}
	r.turn()
	r.equal("sends", r.tx(2).Sends.Load(), 1)
	r.equal("frames", r.tx(2).Packets.Load(), packet.BatchSize)
	if r.rx(1).Lent() != 0 {
		t.Fatal("the buffers were not released")
	}
}

func TestFullOutput(t *testing.T) {
	r := newRig(t, testSizes)
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{}, false)
	r.install(0, 1, 0xa, output(2), output(1))
	r.tx(2).Room.Store(3)
	for i := range uint32(10) {
		r.inject(1, ethernet(0xa, 100, i))
	}
	r.turn()
	r.equal("transmitted", r.sh.Ports[2].TxPackets, 3)
	r.equal("transmit drops", r.sh.Ports[2].TxDrops, 7)
	r.equal("transmitted by the other", r.sh.Ports[1].TxPackets, 10)
	r.drops(map[packet.DropReason]uint64{packet.DropTxFull: 7})
}

// Malformed frames are dropped and counted under their reasons, also between frames
// of one run.
func TestMalformed(t *testing.T) {
	r := newRig(t, testSizes)
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{}, false)
	r.install(0, 1, 0xa, output(2))
	cut := ethernet(0xa, 60, 1)
	packet.Ethernet(cut).SetType(packet.EtherTypeIPv4)
	r.inject(1, ethernet(0xa, 60, 0), cut, cut[:13], ethernet(0xa, 60, 2))
	r.turn()
	got := r.tx(2).TakeAll()
	if len(got) != 2 || number(got[0]) != 0 || number(got[1]) != 2 {
		t.Fatalf("sent %d frames", len(got))
	}
	r.equal("packets of the flow", r.sh.Cache.Flows[0].Packets, 2)
	r.equal("received", r.sh.Ports[1].RxPackets, 4)
	r.equal("received bytes", r.sh.Ports[1].RxBytes, 60*3+13)
	r.drops(map[packet.DropReason]uint64{packet.DropBadIPv4: 1, packet.DropRuntFrame: 1})
}

// No stage allocates memory for frames of known flows, whatever the flow's rewrites and outputs are.
func TestAllocatesNothing(t *testing.T) {
	r := newRig(t, testSizes)
	rng := rand.New(rand.NewSource(1))
	for no := uint32(1); no < oraclePorts; no++ {
		r.addPort(no, porttest.Options{Span: 200}, false)
		r.tx(no).Discard.Store(true)
	}
	for dst := range uint64(16) {
		r.install(uint32(dst), 1, dst, randomActions(rng, oraclePorts)...)
	}
	for range 200 {
		r.inject(1, randomFrame(rng, uint64(rng.Intn(16)), 700))
	}
	r.turn()
	r.rx(1).Replay(1 << 40)
	if n := testing.AllocsPerRun(200, r.turn); n != 0 {
		t.Fatalf("%v allocations a pass, want 0", n)
	}
	if r.sh.Counters.Frames < 32*200 {
		t.Fatalf("only %d frames passed", r.sh.Counters.Frames)
	}
}
