// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
)

// slowMeter is a plain token bucket: the reference implementation of a meter.
type slowMeter struct {
	rate, depth, tokens float64 // rate in tokens per nanosecond; depth and tokens in tokens
	atNS                uint64
}

// take reports whether a frame of n tokens passes, and whether the decision is so close
// that rounding may change it.
func (s *slowMeter) take(nowNS uint64, n float64) (pass, close bool) {
	s.tokens = min(s.depth, s.tokens+s.rate*float64(nowNS-s.atNS))
	s.atNS = nowNS
	close = math.Abs(s.tokens-n) < 1e-3*n+1e-6*s.depth
	return s.tokens >= n, close
}

func meterFrame(r *rig, size int) *packet.Frame {
	b := &r.w.batch
	b.Reset()
	f, _ := b.Next()
	b.Commit(f, min(size, packet.MaxHeader))
	if size > packet.MaxHeader {
		b.AddSpan(f, 1, uint32(size-packet.MaxHeader)) // meters read only the length
	}
	return f
}

func TestMeterIsATokenBucket(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 1))
		r := newRig(t, testSizes)
		frames := rng.IntN(2) == 0
		rate, depth := uint32(1+rng.Uint32()>>(12+rng.IntN(19))), uint32(1+rng.Uint32()>>(12+rng.IntN(19)))
		m := NewMeter(frames, rate, depth)
		r.command(AppendMeter(nil, 7, &m))
		r.turn()
		slow := slowMeter{rate: float64(rate) / 1e9, depth: float64(depth)}
		if !frames {
			slow.rate, slow.depth = slow.rate*1000, slow.depth*1000
		}
		slow.tokens = slow.depth
		r.w.now = 1 << 40
		slow.atNS = r.w.now
		passed := 0
		for range 300 {
			r.w.now += uint64(rng.Float64() * 3 / slow.rate * float64(rng.IntN(3)))
			size := 60 + rng.IntN(1400)
			units := 1.0
			if !frames {
				units = float64(8 * size)
				r.w.now += uint64(rng.Float64() * units / slow.rate)
			}
			want, close := slow.take(r.w.now, units)
			if got := r.w.meters.admit(meterFrame(r, size), 7, r.w.now); got != want && !close {
				t.Fatalf("seed %d: %d a second, %d deep, frames %v: passes %v, want %v with %g of %g units", seed, rate, depth, frames, got, want, slow.tokens, units)
			} else if got {
				slow.tokens -= units
				passed++
			}
		}
		if c := r.sh.Meters[7]; c.Packets != 300 || c.DroppedPackets != uint64(300-passed) {
			t.Errorf("seed %d: counts %d, %d dropped; want 300, %d", seed, c.Packets, c.DroppedPackets, 300-passed)
		}
		r.w.batch.Reset()
	}
}

// A large frame passes a bucket that is smaller than the frame if its first segment may pass. All its
// segments are then taken from the bucket.
func TestLargeFramesAreNotShutOut(t *testing.T) {
	r := newRig(t, testSizes)
	m := NewMeter(true, 1000, 2)
	r.command(AppendMeter(nil, 0, &m))
	r.turn()
	r.w.now = 1 << 40
	f := meterFrame(r, 10*1000+54)
	f.Offload.GSO, f.Offload.Size, f.L3, f.L4, f.Proto = packet.GSOTCPv4, 1000, 14, 34, packet.ProtoTCP
	f.Header()[46] = 5 << 4
	if n := f.SegmentCount(); n != 10 {
		t.Fatalf("%d segments, want 10", n)
	}
	if !r.w.meters.admit(f, 0, r.w.now) || r.w.meters.admit(f, 0, r.w.now) {
		t.Error("the first large frame must pass, the second must not")
	}
	r.w.now += 8_999_999
	if r.w.meters.admit(f, 0, r.w.now) {
		t.Error("passed before it was paid for")
	}
	r.w.now += 2
	if !r.w.meters.admit(f, 0, r.w.now) {
		t.Error("did not pass once it was paid for")
	}
	if c := r.sh.Meters[0]; c.Packets != 40 || c.DroppedPackets != 20 {
		t.Errorf("counts %+v", c)
	}
	r.w.batch.Reset()
}

func TestMetersInActions(t *testing.T) {
	r := newRig(t, testSizes)
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{}, false)
	m := NewMeter(true, 1, 3)
	r.command(AppendMeter(nil, 5, &m))
	r.command(AppendMeter(nil, flowtable.MaxMeters, &m)) // refused, because there is no meter with this index
	meter := flowtable.Action{Op: flowtable.OpMeter, U32: 5, U64: uint64(packet.DropMeter)}
	r.install(1, 1, 2, output(2), meter, output(2))
	r.turn()
	r.equal("refused", r.sh.Counters.CommandsRefused, 1)
	frame := make([]byte, 60)
	packet.Ethernet(frame).SetDst(2)
	frame[12], frame[13] = 0x88, 0xb5
	for range 5 {
		r.inject(1, frame)
	}
	r.turn()
	if n := len(r.tx(2).TakeAll()); n != 5+3 {
		t.Errorf("%d frames, want 5 before the meter and 3 behind it", n)
	}
	r.drops(map[packet.DropReason]uint64{packet.DropMeter: 2})
}

// A meter with a drop precedence drops no frame. It changes the DSCP of frames beyond its rate, if the DSCP
// is one of assured forwarding (RFC 2597).
func TestMeterRemarks(t *testing.T) {
	const af21, af22, af23, ef = 18 << 2, 20 << 2, 22 << 2, 46 << 2
	for _, c := range []struct{ tos, raise, want byte }{
		{af21, 1, af22}, {af21 | 3, 2, af23 | 3}, {af22, 9, af23}, {ef, 1, ef}, {0, 1, 0},
	} {
		r := newRig(t, testSizes)
		r.addPort(1, porttest.Options{}, false)
		r.addPort(2, porttest.Options{}, false)
		m := NewMeter(true, 1, 1)
		r.command(AppendMeter(nil, 5, &m))
		r.install(1, 1, 2, flowtable.Action{Op: flowtable.OpMeter, U16: uint16(c.raise), U32: 5, U64: uint64(packet.DropMeter)}, output(2))
		r.turn()
		frame := twinIPv4(c.tos)
		packet.Ethernet(frame).SetDst(2)
		r.inject(1, frame)
		r.inject(1, frame)
		r.turn()
		want := twinIPv4(c.want)
		packet.Ethernet(want).SetDst(2)
		got := r.tx(2).TakeAll()
		if len(got) != 2 || !bytes.Equal(got[0], frame) || !bytes.Equal(got[1], want) {
			t.Errorf("TOS %#x by %d: % x, want % x", c.tos, c.raise, got, want)
		}
	}
}

// twinIPv4 returns a UDP frame with this TOS.
func twinIPv4(tos byte) []byte {
	f := make([]byte, 60)
	copy(f[12:], []byte{8, 0, 0x45, tos, 0, 46, 0, 0, 0, 0, 64, packet.ProtoUDP})
	f[39] = 26
	twinChecksums(f)
	return f
}

// Several workers together pass exactly as many frames as one bucket allows.
func TestWorkersShareMeters(t *testing.T) {
	const workers, depth, each = 4, 1000, 700
	first := newRig(t, testSizes)
	m := NewMeter(true, 1, depth)
	var passed atomic.Uint64
	var wg sync.WaitGroup
	for i := range workers {
		r := first
		if i > 0 {
			r = newRig(t, testSizes)
			r.w.meters.shared = first.sh.Meters
		}
		r.command(AppendMeter(nil, 1, &m))
		r.turn()
	}
	for range workers {
		r := newRig(t, testSizes)
		r.w.meters.shared = first.sh.Meters
		r.sh.Meters[1].Cost, r.sh.Meters[1].Depth, r.sh.Meters[1].Frames = m.Cost, m.Depth, 1
		r.w.now = 1 << 40
		f := meterFrame(r, 60)
		wg.Go(func() {
			for range each {
				if r.w.meters.admit(f, 1, r.w.now) {
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := passed.Load(); n != depth {
		t.Errorf("%d frames passed, want %d", n, depth)
	}
}

func TestMeterAllocatesNothing(t *testing.T) {
	r := newRig(t, testSizes)
	m := NewMeter(false, 1000, 1000)
	r.command(AppendMeter(nil, 1, &m))
	r.turn()
	f := meterFrame(r, 60)
	if n := testing.AllocsPerRun(100, func() { r.w.meters.admit(f, 1, r.w.now) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
	r.w.batch.Reset()
}
