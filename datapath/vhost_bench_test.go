// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sort"
	"testing"
	"time"

	"weft/flowtable"
	"weft/internal/cpu"
	"weft/vhost/vhosttest"
)

// BenchmarkGuests measures a worker's pass between two guests. The guests run on the
// same core, but their time is not measured. The metric ns/frame is the lower quartile
// over slices of sliceTurns turns, because other processes disturb some slices.
func BenchmarkGuests(b *testing.B) {
	for _, c := range []vhosttest.LoadConfig{{}, {Flows: 5000}, {Flows: 10000}, {Flows: 50000}, {FrameSize: 1500}} {
		b.Run(fmt.Sprintf("%d/flows=%d", max(c.FrameSize, 64), 2*max(c.Flows, 1)), func(b *testing.B) {
			benchmarkGuests(b, c)
		})
	}
}

// BenchmarkIdleGuests is BenchmarkGuests beside other guests that send nothing. The first guests
// have 10,000 flows, so that the lines of a busy queue compete with idle queues for the caches.
func BenchmarkIdleGuests(b *testing.B) {
	for _, idle := range []int{0, 14, 62, 254, 1000} {
		b.Run(fmt.Sprintf("idle=%d", idle), func(b *testing.B) {
			r, l := newGuests(b, vhosttest.LoadConfig{Flows: 5000})
			r.w.waiter.parking.afterNS = parkAfterNS
			for i := range idle {
				g, err := vhosttest.New(vhosttest.Options{BufLen: 128, Features: l.Guests[0].Features})
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(g.Close)
				d, err := g.Open(nil)
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(d.Close)
				if err := r.w.addPort(&PortQueues{Port: uint32(i + 3), Rx: d.Rx(), Tx: d.Tx()[0]}); err != nil {
					b.Fatal(err)
				}
			}
			measureGuests(b, r, l)
		})
	}
}

// sliceTurns is the number of turns in a slice of BenchmarkGuests, about 1 ms.
const sliceTurns = 256

// newGuests returns a worker between two guests, with a megaflow for each flow of the
// load.
func newGuests(b *testing.B, c vhosttest.LoadConfig) (*rig, *vhosttest.Load) {
	sizes := testSizes
	sizes.Cache = flowtable.DefaultSizes
	r := newRig(b, sizes)
	r.w.config.SpinUS = forever
	c.Core = -1
	l, err := vhosttest.NewLoad(c)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(l.Close)
	for i, g := range l.Guests {
		d, err := g.Open(nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(d.Close)
		if err := r.w.addPort(&PortQueues{Port: uint32(i + 1), Rx: d.Rx(), Tx: d.Tx()[0]}); err != nil {
			b.Fatal(err)
		}
	}
	for flow := range max(c.Flows, 1) {
		src, dst := vhosttest.FlowPorts(flow)
		for from := range uint32(2) {
			key := flowtable.Key{flowtable.WPort: uint64(from+1) << 32, flowtable.WEthDst: 0x0800,
				flowtable.WIP: 17 << 56, flowtable.WL4: uint64(src)<<48 | uint64(dst)<<32, flowtable.WIPv4: 0x0a000001<<32 | 0x0a000002}
			mask := flowtable.Key{flowtable.WPort: 0xffffffff << 32, flowtable.WEthDst: 0xffff,
				flowtable.WIP: 0xff<<56 | 0xff<<32, flowtable.WL4: 0xffffffff << 32, flowtable.WIPv4: ^uint64(0)}
			if got := r.w.cache.Install(uint32(2*flow)+from, &key, &mask, []flowtable.Action{output(2 - from)}); got != flowtable.Installed {
				b.Fatal(got)
			}
		}
	}
	return r, l
}

func benchmarkGuests(b *testing.B, c vhosttest.LoadConfig) {
	r, l := newGuests(b, c)
	measureGuests(b, r, l)
}

func measureGuests(b *testing.B, r *rig, l *vhosttest.Load) {
	runtime.LockOSThread() // the worker reads the kernel's accounting of its thread
	defer runtime.UnlockOSThread()
	turn := func() time.Duration {
		begin := time.Now()
		r.turn()
		r.turn()
		return time.Since(begin)
	}
	for range 20000 {
		turn()
		l.Step(0)
		l.Step(1)
	}
	start := r.sh.Counters.Frames
	var slices []float64
	b.ResetTimer()
	for r.sh.Counters.Frames-start < uint64(b.N) {
		before, spent := r.sh.Counters.Frames, time.Duration(0)
		for range sliceTurns {
			spent += turn()
			l.Step(0)
			l.Step(1)
		}
		slices = append(slices, float64(spent.Nanoseconds())/float64(r.sh.Counters.Frames-before))
	}
	b.StopTimer()
	sort.Float64s(slices)
	b.ReportMetric(slices[len(slices)/4], "ns/frame")
	if r.sh.Counters.Misses != 0 {
		b.Fatalf("%d misses", r.sh.Counters.Misses)
	}
}

// BenchmarkGuestsApart is BenchmarkGuests with the guests on another core, so that cache
// lines move between the cores. Guests read and write every cache line of a frame. The
// worker is on core 1, the guests are on core 0. The metric ns/frame is the lowest decile
// over slices of apartTurns turns. The metric idle is the share of the passes of this slice
// that found no frame, because the worker waited for the guests.
func BenchmarkGuestsApart(b *testing.B) {
	for _, c := range []vhosttest.LoadConfig{{}, {Flows: 10000}, {FrameSize: 1500}} {
		c.Touch = true
		b.Run(fmt.Sprintf("%d/flows=%d", max(c.FrameSize, 64), 2*max(c.Flows, 1)), func(b *testing.B) {
			benchmarkGuestsApart(b, c)
		})
	}
}

// apartTurns is the number of turns in a slice of BenchmarkGuestsApart, about 0.1 ms.
const apartTurns = 64

func benchmarkGuestsApart(b *testing.B, c vhosttest.LoadConfig) {
	r, l := newGuests(b, c)
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection would stop both threads
	stop, ended := make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread() // the pinned thread ends with its goroutine
		err := cpu.Pin(0)
		for err == nil {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			for range 64 {
				n, _ := l.Step(0)
				m, _ := l.Step(1)
				if n+m == 0 {
					cpu.Pause(8)
				}
			}
		}
		ended <- err
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cpu.Pin(1); err != nil {
		b.Fatal(err)
	}
	for r.sh.Counters.Frames < 2_000_000 {
		r.turn()
	}
	type slice struct{ ns, idle float64 }
	start := r.sh.Counters.Frames
	var slices []slice
	b.ResetTimer()
	for r.sh.Counters.Frames-start < uint64(b.N) {
		before, idle, begin := r.sh.Counters.Frames, r.sh.Counters.IdlePasses, time.Now()
		for range apartTurns {
			r.turn()
		}
		if n := r.sh.Counters.Frames - before; n > 0 {
			slices = append(slices, slice{float64(time.Since(begin).Nanoseconds()) / float64(n), float64(r.sh.Counters.IdlePasses-idle) / apartTurns})
		}
	}
	b.StopTimer()
	close(stop)
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	sort.Slice(slices, func(i, j int) bool { return slices[i].ns < slices[j].ns })
	tenth := slices[len(slices)/10]
	b.ReportMetric(tenth.ns, "ns/frame")
	b.ReportMetric(tenth.idle, "idle")
	b.ReportMetric(float64(r.sh.Counters.Frames)/float64(r.sh.Counters.Batches), "frames/batch")
}
