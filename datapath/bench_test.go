// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
	"weft/tunnel"
)

// BenchmarkPass measures a worker's pass between queues in memory, without vhost or
// XDP. One operation is one frame.
func BenchmarkPass(b *testing.B) {
	for _, c := range []struct {
		name    string
		actions []flowtable.Action
	}{
		{"output", []flowtable.Action{output(2)}},
		{"rewrite", []flowtable.Action{{Op: flowtable.OpSetEthSrc, U64: 1}, output(2)}},
		{"tunnel", []flowtable.Action{toTunnel(77)}},
	} {
		for _, flows := range []int{1, 200} {
			b.Run(fmt.Sprintf("%s/flows=%d", c.name, flows), func(b *testing.B) {
				benchmarkPass(b, flows, c.actions)
			})
		}
	}
}

func benchmarkPass(b *testing.B, flows int, actions []flowtable.Action) {
	r := newRig(b, testSizes)
	r.w.config.SpinUS = forever
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{}, false)
	r.tx(2).Discard.Store(true)
	t := benchTemplate(b)
	r.command(AppendTemplate(nil, 1, &t))
	for i := range flows {
		dst := uint64(0x020000000000 + i)
		r.inject(1, ethernet(dst, 64, uint32(i)))
		r.install(uint32(i), 1, dst, actions...)
	}
	for range 1 + flows/maxCommandsPerPass {
		r.turn()
	}
	r.measureFrames(b)
	if n := r.sh.Counters.Drops; n != [packet.DropReasons]uint64{} {
		b.Logf("drops %v", n)
	}
}

// measureFrames replays the frames of port 1 and reports the processor time of each, in
// nanoseconds. On a busy machine the wall clock also counts other processes.
func (r *rig) measureFrames(b *testing.B) {
	r.rx(1).Replay(1 << 50)
	r.turn()
	start := r.sh.Counters.Frames
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.ReportAllocs()
	b.ResetTimer()
	before := threadNS(b)
	for r.sh.Counters.Frames-start < uint64(b.N) {
		r.turn()
	}
	b.StopTimer()
	b.ReportMetric(float64(threadNS(b)-before)/float64(b.N), "cpu-ns/op")
}

func threadNS(b *testing.B) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return ts.Nano()
}

func benchTemplate(b *testing.B) tunnel.Template {
	b.Helper()
	t, err := tunnel.Build(tunnel.Params{Port: 2, MTU: 1514, Local: loopback, Remote: loopback, UDPPort: 4789})
	if err != nil {
		b.Fatal(err)
	}
	return t
}
