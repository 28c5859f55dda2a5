// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"weft/conntrack"
	"weft/flowtable"
	"weft/internal/shm"
	"weft/packet"
	"weft/port"
	"weft/port/porttest"
)

// flowRx is a receive queue with an endless series of UDP datagrams: one datagram of
// each flow, round robin.
type flowRx struct {
	port.Rx
	frame  []byte
	flows  int // number of flows, after which the series repeats
	step   int
	index  int
	answer bool
	quiet  bool
}

// flowEnds returns the source address and port of flow i. The addresses start at
// 10.0.0.1.
func flowEnds(i int) (src uint32, sport uint16) {
	return 0x0a000001 + uint32(i>>12), 1024 + uint16(i&0xfff)
}

func newFlowRx(flows int, answer bool, dst uint32) *flowRx {
	r := &flowRx{Rx: porttest.NewRx(porttest.Options{}), flows: flows, step: 7919, answer: answer}
	if r.frame = udp(0, dst, 0, 80); answer {
		r.frame = udp(dst, 0, 80, 0)
	}
	binary.BigEndian.PutUint16(r.frame[40:], 0) // no checksum, so that ports may change
	return r
}

func (r *flowRx) Recv(b *packet.Batch) int {
	if r.quiet {
		return 0
	}
	for range packet.BatchSize {
		src, sport := flowEnds(r.index)
		if r.index += r.step; r.index >= r.flows {
			r.index %= r.flows
		}
		f, head := b.Next()
		n := copy(head[:], r.frame)
		if r.answer {
			binary.BigEndian.PutUint32(head[30:], src)
			binary.BigEndian.PutUint16(head[36:], sport)
		} else {
			binary.BigEndian.PutUint32(head[26:], src)
			binary.BigEndian.PutUint16(head[34:], sport)
		}
		b.Commit(f, n)
	}
	return packet.BatchSize
}

func (r *flowRx) Release() {}

// trackedRig returns a rig whose ports 1 and 2 exchange frames. mode is "without" (no
// tracking, one megaflow for each port), "exact" (no tracking, a megaflow for each
// connection and direction), or it selects tracking and a second look-up, fused or not.
// "nat" also translates the addresses of port 1 to 192.0.2.1 and up.
func trackedRig(b *testing.B, mode string, connections int) (r *rig, forward, back *flowRx) {
	b.Helper()
	sizes := testSizes
	if mode == "exact" {
		sizes.Cache = flowtable.DefaultSizes
	}
	r = newRig(b, sizes)
	r.w.config.SpinUS = forever
	if err := r.w.setConnections(ctTableOf(b, connections)); err != nil {
		b.Fatal(err)
	}
	r.w.tracks.plain = mode == "plain" || mode == "plain-nat"
	for no := uint32(1); no <= 2; no++ {
		d := porttest.New(1, porttest.Options{Slots: 64})
		r.ports[no] = d
		d.TxQueues[0].Discard.Store(true)
	}
	const natTo = 0xc0000201
	forward, back = newFlowRx(connections, false, 0x0a010001), newFlowRx(connections, true, 0x0a010001)
	nat := mode == "fused-nat" || mode == "plain-nat"
	for no, rx := range []*flowRx{forward, back} {
		if err := r.w.addPort(&PortQueues{Port: uint32(no + 1), Rx: []port.Rx{rx}, Tx: r.ports[uint32(no+1)].Tx()[0]}); err != nil {
			b.Fatal(err)
		}
	}
	if mode == "exact" {
		r.exactMegaflows(connections)
		return r, forward, back
	}
	if mode == "without" {
		for no := uint32(1); no <= 2; no++ {
			r.megaflow(no, no, 0, 0, 0, output(3-no))
		}
		return r, forward, back
	}
	track := flowtable.CTRequest{Zone: 5}
	commit := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit}
	if nat {
		track.Bits |= flowtable.CTNAT
		commit.Bits |= flowtable.CTNAT | flowtable.CTNATSrc | flowtable.CTRange
		commit.Lo, commit.Hi = [2]uint64{0, natTo}, [2]uint64{0, natTo + 255}
	}
	for no := uint32(1); no <= 2; no++ {
		r.megaflow(no, no, 0, 0, 0, append(track.AppendTo(nil), flowtable.Action{Op: flowtable.OpRecirc, U32: 9})...)
		const mask = conntrack.New | conntrack.Established
		r.megaflow(10+no, no, 9, mask, conntrack.New, append(commit.AppendTo(nil), output(3-no))...)
		r.megaflow(20+no, no, 9, mask, conntrack.Established, output(3-no))
	}
	return r, forward, back
}

// exactMegaflows installs a megaflow for each direction of n connections of newFlowRx.
func (r *rig) exactMegaflows(n int) {
	const dst = 0x0a010001
	mask := flowtable.Key{flowtable.WPort: 0xffffffff << 32, flowtable.WEthDst: 0xffff,
		flowtable.WIP: 0xff<<56 | 0xff<<32, flowtable.WL4: 0xffffffff << 32, flowtable.WIPv4: ^uint64(0)}
	for i := range n {
		src, sport := flowEnds(i)
		for from := range uint32(2) {
			key := flowtable.Key{flowtable.WPort: uint64(from+1) << 32, flowtable.WEthDst: packet.EtherTypeIPv4,
				flowtable.WIP: packet.ProtoUDP << 56, flowtable.WL4: uint64(sport)<<48 | 80<<32, flowtable.WIPv4: uint64(src)<<32 | dst}
			if from == 1 {
				key[flowtable.WL4], key[flowtable.WIPv4] = 80<<48|uint64(sport)<<32, dst<<32|uint64(src)
			}
			if got := r.w.cache.Install(uint32(2*i)+from, &key, &mask, []flowtable.Action{output(2 - from)}); got != flowtable.Installed {
				r.t.Fatal(got)
			}
		}
	}
}

func ctTableOf(b *testing.B, n int) *conntrack.Table {
	b.Helper()
	sizes := conntrack.Sizes{Connections: 1 << 12}
	for sizes.Connections < n {
		sizes.Connections *= 2
	}
	var measure shm.Layout
	conntrack.CarveMemory(&measure, sizes)
	region, err := shm.Create("conntrack-bench", measure.Off)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { region.Close() })
	m := conntrack.CarveMemory(&shm.Layout{Mem: region.Bytes()}, sizes)
	conntrack.Init(m, 1)
	return conntrack.Open(m, 1)
}

// turnUntil runs passes until n frames were received. It returns the processor time for each frame in
// nanoseconds.
func turnUntil(b *testing.B, r *rig, n uint64) float64 {
	start, before := r.sh.Counters.Frames, threadNS(b)
	for r.sh.Counters.Frames-start < n {
		r.turn()
	}
	return float64(threadNS(b)-before) / float64(r.sh.Counters.Frames-start)
}

// BenchmarkTrackedPass measures a pass for established UDP connections: without ct, with
// exact flows instead of ct, with a second look-up, and fused. With NAT, all frames have
// the original direction. One operation is one frame.
func BenchmarkTrackedPass(b *testing.B) {
	for _, how := range []string{"without", "exact", "plain", "fused", "fused-nat"} {
		for _, connections := range []int{1, 1000, 10_000, 1_000_000} {
			if how == "exact" && 2*connections > flowtable.DefaultSizes.Megaflows {
				continue
			}
			b.Run(fmt.Sprintf("%s/connections=%d", how, connections), func(b *testing.B) {
				r, out, back := trackedRig(b, how, connections)
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				back.quiet = true
				turnUntil(b, r, uint64(connections))
				if back.quiet = how == "fused-nat"; !back.quiet {
					out.quiet = true
					turnUntil(b, r, uint64(connections))
					out.quiet = false
				} else {
					answerAll(r, connections)
				}
				turnUntil(b, r, uint64(4*connections)+1000)
				b.ReportAllocs()
				b.ResetTimer()
				b.ReportMetric(turnUntil(b, r, uint64(b.N)), "cpu-ns/op")
				b.ReportMetric(float64(r.w.fused.hits)/float64(r.sh.Counters.Frames), "fused")
				r.noDrops(b)
			})
		}
	}
}

// answerAll sends one frame in the reply direction of each connection, to the address in the
// connection's reply tuple.
func answerAll(r *rig, connections int) {
	frame := udp(0x0a010001, 0, 80, 0)
	binary.BigEndian.PutUint16(frame[40:], 0)
	var all [][]byte
	r.w.tracks.tracker.Each(r.w.now, func(e *conntrack.Entry) bool {
		f := append([]byte(nil), frame...)
		binary.BigEndian.PutUint32(f[30:], uint32(e.Reply.Dst[1]))
		binary.BigEndian.PutUint16(f[36:], e.Reply.DstPort)
		all = append(all, f)
		return true
	})
	rx := porttest.NewRx(porttest.Options{Slots: 32, SlotBytes: 128})
	defer rx.Close()
	q := &rxQueue{rx: rx, port: 2}
	for len(all) > 0 {
		n := min(len(all), packet.BatchSize)
		for _, f := range all[:n] {
			rx.Inject(f)
		}
		all = all[n:]
		r.w.receive(q)
	}
}

func (r *rig) noDrops(b *testing.B) {
	for reason, n := range r.sh.Counters.Drops {
		if n != 0 {
			b.Logf("%d dropped as %v", n, packet.DropReason(reason))
		}
	}
}

// synFrame returns a frame with a TCP SYN to the given address, without checksums.
func synFrame(dst uint32) []byte {
	f := udp(0, dst, 0, 80)
	f = append(f, make([]byte, 14+20+20-len(f))...)
	ip := packet.IPv4(f[14:])
	ip[9] = packet.ProtoTCP
	ip.SetTotalLen(40)
	copy(f[38:], make([]byte, 16))
	f[46], f[47], f[48] = 5<<4, 2, 0xff
	return f
}

// BenchmarkNewPass measures a pass whose frames each begin a connection, in a table
// with room or with evictions. The frames of "syn" are TCP SYNs, which are dropped after
// tracking. The benchmark also reports the longest pass.
func BenchmarkNewPass(b *testing.B) {
	for _, how := range []string{"fused", "fused-nat", "full", "syn", "syn-full"} {
		b.Run(how, func(b *testing.B) {
			r, out, back := trackedRig(b, how, 1<<20)
			r.w.config.Sweeps = true
			table := r.w.tracks.tracker.Table
			full := strings.HasSuffix(how, "full")
			if full {
				out.flows *= 2
			}
			if strings.HasPrefix(how, "syn") {
				out.frame = synFrame(0x0a010001)
			}
			if err := table.StartPopulating(); err != nil {
				b.Fatal(err)
			}
			defer table.StopPopulating()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			back.quiet = true
			turnUntil(b, r, 1)
			if full {
				turnUntil(b, r, 1<<20)
			}
			b.ReportAllocs()
			b.ResetTimer()
			start, cpu := r.sh.Counters.Frames, threadNS(b)
			before, longest := cpu, int64(0)
			for r.sh.Counters.Frames-start < uint64(b.N) {
				r.turn()
				now := threadNS(b)
				longest = max(longest, now-before)
				before = now
			}
			b.ReportMetric(float64(before-cpu)/float64(r.sh.Counters.Frames-start), "cpu-ns/op")
			b.ReportMetric(float64(longest)/1000, "longest-pass-cpu-µs")
			b.ReportMetric(float64(r.w.tracks.tracker.Counters().Created), "created")
			r.noDrops(b)
		})
	}
}
