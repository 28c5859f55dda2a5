package datapath

import (
	"fmt"
	"runtime"
	"testing"

	"weft/conntrack"
	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
)

// BenchmarkTrackedPass is BenchmarkPass for established connections of UDP:
// without ct, through ct and a further look-up the plain way, and fused. One
// operation is one frame.
func BenchmarkTrackedPass(b *testing.B) {
	for _, how := range []string{"without", "plain", "fused", "fused-nat"} {
		for _, connections := range []int{1, 1000} {
			b.Run(fmt.Sprintf("%s/connections=%d", how, connections), func(b *testing.B) {
				benchmarkTracked(b, how, connections)
			})
		}
	}
}

func benchmarkTracked(b *testing.B, how string, connections int) {
	sizes := testSizes
	r := newRig(b, sizes)
	r.w.config.SpinUS = forever
	if err := r.w.setConnections(ctTable(b)); err != nil {
		b.Fatal(err)
	}
	r.w.tracks.plain = how == "plain"
	for no := uint32(1); no <= 2; no++ {
		r.addPort(no, porttest.Options{Slots: 1024}, false)
		r.tx(no).Discard.Store(true)
	}
	if how == "without" {
		r.megaflow(0, 1, 0, 0, 0, output(2))
	} else {
		track := flowtable.CTRequest{Zone: 5}
		commit := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit}
		if how == "fused-nat" {
			track.Bits |= flowtable.CTNAT
			commit.Bits |= flowtable.CTNAT | flowtable.CTNATSrc | flowtable.CTRange
			commit.Lo, commit.Hi = [2]uint64{0, 0xc0000201}, [2]uint64{0, 0xc0000201}
		}
		for no := uint32(1); no <= 2; no++ {
			r.megaflow(no, no, 0, 0, 0, append(track.AppendTo(nil), flowtable.Action{Op: flowtable.OpRecirc, U32: 9})...)
			const mask = conntrack.New | conntrack.Established
			r.megaflow(10+no, no, 9, mask, conntrack.New, append(commit.AppendTo(nil), output(3-no))...)
			r.megaflow(20+no, no, 9, mask, conntrack.Established, output(3-no))
		}
	}
	for i := range connections { // there and back
		out := udp(0x0a000001+uint32(i), 0x0a010001, 1000, 80)
		back := udp(0x0a010001, 0x0a000001+uint32(i), 80, 1000)
		if how == "fused-nat" {
			r.tx(2).Discard.Store(false)
			r.inject(1, out)
			r.turn()
			sent := r.tx(2).TakeAll()
			if len(sent) != 1 {
				b.Fatalf("connection %d: %d frames sent, drops %v", i, len(sent), r.sh.Counters.Drops)
			}
			back = udp(0x0a010001, packet.IPv4(sent[0][14:]).Src(), 80, packet.UDP(sent[0][34:]).SrcPort())
			r.tx(2).Discard.Store(true)
		} else {
			r.inject(1, out)
			r.turn()
		}
		r.inject(2, back)
		r.turn()
	}
	r.rx(1).Replay(1 << 50)
	for range 100 {
		r.turn()
	}
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
	if n := r.sh.Counters.Drops; n != [packet.DropReasons]uint64{} {
		b.Logf("drops %v", n)
	}
}
