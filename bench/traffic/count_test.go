// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

func TestMix(t *testing.T) {
	for text, want := range map[string]string{"64": "64", "64:7,590:4,1514:1": "64:7,590:4,1514:1", "imix": "64:7,590:4,1514:1", "9,10": "9:1,10:1"} {
		if m, err := ParseMix(text); err != nil || m.String() != want {
			t.Errorf("%s: %v %v", text, m, err)
		}
	}
	for _, text := range []string{"", "x", "64:", "64:0", "-1", "64:2000", "64:1024,65:1", "1,,2", "64:7:1"} {
		if m, err := ParseMix(text); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, %v", text, m, err)
		}
	}
	counts := map[int]int{}
	longest, run := 0, 0
	for i, size := range imix.round() {
		counts[size]++
		if run++; i > 0 && imix.round()[i-1] != size {
			run = 1
		}
		longest = max(longest, run)
	}
	if len(counts) != 3 || counts[64] != 7 || counts[590] != 4 || counts[1514] != 1 || longest > 3 {
		t.Errorf("a round of imix: %v", imix.round())
	}
}

// checkSchedule checks the number of sent frames at each look at the clock. It must be exactly what
// the rate permits.
func checkSchedule(t *testing.T, s *Spec, looks []time.Duration) {
	t.Helper()
	plan := newSchedule(s)
	round := s.Sizes.round()
	frames, bytes := uint64(0), uint64(0)
	for _, at := range looks {
		for plan.due() <= at && !plan.finished() {
			plan.sent()
		}
		for { // slow reference: counts one frame at a time
			used := float64(frames)
			rate := s.PerSecond
			if s.BitsPerSecond > 0 {
				used, rate = float64(bytes)*8, s.BitsPerSecond
			}
			if s.Count > 0 && frames == s.Count || math.Ceil(used/rate*1e9) > float64(at) {
				break
			}
			bytes += uint64(round[frames%uint64(len(round))])
			frames++
		}
		if plan.frames != frames || plan.bytes != bytes {
			t.Fatalf("after %s: %d frames, %d bytes; expected %d and %d", at, plan.frames, plan.bytes, frames, bytes)
		}
	}
}

func TestSchedule(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, s := range []Spec{
		{Sizes: Mix{{1250, 1}}, BitsPerSecond: 1e6}, {Sizes: imix, BitsPerSecond: 1e9}, {Sizes: imix, PerSecond: 12345},
		{Sizes: Mix{{64, 1}}, PerSecond: 3}, {Sizes: Mix{{64, 1}}, PerSecond: 1e5, Count: 777},
	} {
		at := time.Duration(0)
		var looks []time.Duration
		for at < 100*time.Millisecond {
			looks = append(looks, at)
			at += time.Duration(r.IntN(2_000_000))
		}
		checkSchedule(t, &s, append(looks, 100*time.Millisecond))
	}
	plan := newSchedule(&Spec{Sizes: Mix{{1250, 1}}, BitsPerSecond: 1e6})
	for plan.due() < time.Second {
		plan.sent()
	}
	if plan.frames != 100 { // the frames have 10,000 bits each
		t.Errorf("%d frames in a second", plan.frames)
	}
}

func FuzzSchedule(f *testing.F) {
	f.Add(uint32(1_000_000), true, uint16(64), uint16(1514), uint16(0), []byte{0, 9, 200})
	f.Add(uint32(3), false, uint16(100), uint16(1), uint16(5), []byte{255, 255})
	f.Fuzz(func(t *testing.T, rate uint32, bits bool, a, b, count uint16, steps []byte) {
		s := &Spec{Sizes: Mix{{int(a) + 1, 2}, {int(b) + 1, 1}}, PerSecond: float64(rate%100_000) + 1, Count: uint64(count)}
		if bits {
			s.BitsPerSecond, s.PerSecond = s.PerSecond*100, 0
		}
		var looks []time.Duration
		at := time.Duration(0)
		for _, step := range steps[:min(len(steps), 50)] {
			at += time.Duration(step) * 100 * time.Microsecond
			looks = append(looks, at)
		}
		checkSchedule(t, s, looks)
	})
}

// slowTally remembers all sequence numbers, to check tally.
type slowTally struct {
	tally
	stamps map[uint64]bool
}

func (t *slowTally) add(seq uint64, size int) {
	highest := uint64(0)
	for n := range t.stamps {
		highest = max(highest, n+1)
	}
	switch {
	case seq < highest && highest-seq > window:
		t.overtaken++
		return
	case t.stamps[seq]:
		t.duplicates++
		return
	case seq < highest:
		t.reordered++
		t.distance = max(t.distance, highest-1-seq)
	}
	t.stamps[seq] = true
	t.received++
	t.bytes += uint64(size)
}

func FuzzTally(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 3, 0, 2, 0, 2, 255, 0, 0, 5})
	f.Fuzz(func(t *testing.T, steps []byte) {
		fast, slow := newTally(), &slowTally{stamps: map[uint64]bool{}}
		at := int64(0)
		for i := 0; i+1 < min(len(steps), 200); i += 2 {
			// The sequence number moves forwards and backwards. It mostly moves a little, and
			// sometimes by half the window of the tally.
			if at += int64(int8(steps[i+1])); steps[i] > 200 {
				at += int64(int8(steps[i+1])) * window / 200
			}
			seq := uint64(max(at, 0))
			fast.add(seq, int(steps[i]))
			slow.add(seq, int(steps[i]))
		}
		if fast.received != slow.received || fast.bytes != slow.bytes || fast.duplicates != slow.duplicates || fast.reordered != slow.reordered ||
			fast.distance != slow.distance || fast.overtaken != slow.overtaken {
			t.Errorf("%d received, %d bytes, %d twice, %d out of order, by %d, %d late; expected %+v", fast.received, fast.bytes, fast.duplicates,
				fast.reordered, fast.distance, fast.overtaken, slow.tally)
		}
	})
}

// gopacket decodes raw frames as UDP over IPv4.
func TestRawFrames(t *testing.T) {
	a, b := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	f := newFramer(a, b, true, 40_000)
	for i, size := range []int{64, 65, 1514, maxFrame, 64} {
		frame := make([]byte, size)
		f.dress(frame, uint64(i)*20_000)
		p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
		eth := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
		ip := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
		udp := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
		sum := uint32(0)
		for k := 14; k < 34; k += 2 {
			sum += uint32(binary.BigEndian.Uint16(frame[k:]))
		}
		for sum > 0xffff {
			sum = sum&0xffff + sum>>16
		}
		flow := uint64(i) * 20_000 % 40_000
		if eth.SrcMAC.String() != a.String() || eth.DstMAC.String() != b.String() || sum != 0xffff || int(ip.Length) != size-14 ||
			int(udp.Length) != size-34 || ip.SrcIP.String() != "198.18.0.2" || ip.DstIP.String() != "198.18.0.1" ||
			uint64(udp.DstPort) != 1024+flow&0x3fff || uint64(udp.SrcPort) != 2048+flow>>14 {
			t.Errorf("%d bytes: %v", size, p)
		}
		there := make([]byte, size)
		newFramer(b, a, false, 40_000).dress(there, uint64(i)*20_000)
		way := gopacket.NewPacket(there, layers.LayerTypeEthernet, gopacket.Default).TransportLayer().TransportFlow()
		if way != udp.TransportFlow().Reverse() {
			t.Errorf("%d bytes: %v is not what answers %v", size, udp.TransportFlow(), way)
		}
	}
}

// nowhere is a transport that discards the frames it sends and always receives the same ones.
type nowhere struct {
	framer
	frames [][]byte
}

func (n *nowhere) send(frames [][]byte) (int, error)    { return len(frames), nil }
func (n *nowhere) recv(time.Duration) ([][]byte, error) { return n.frames, nil }
func (n *nowhere) dropped() uint64                      { return 0 }
func (n *nowhere) close()                               {}
func (n *nowhere) dress(frame []byte, i uint64)         { n.framer.dress(frame, i) }

// Sending and receiving frames does not allocate.
func TestNoAllocations(t *testing.T) {
	s := &Spec{Protocol: Raw, Sizes: imix, Streams: 3, PerSecond: 1e9, Seconds: 1}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	l := &nowhere{framer: *newFramer(make([]byte, 6), make([]byte, 6), false, 10)}
	sender := newTransportSender(s, l, 7, []int{0, 1, 2}, &live{})
	receiver := newTransportReceiver(l, 7, []int{0, 1, 2}, 0, &live{})
	frames := make([][]byte, 0, batch)
	if n := testing.AllocsPerRun(100, func() {
		frames, _ = sender.collect(frames[:0], kindData, time.Hour)
		receiver.count(frames)
	}); n != 0 {
		t.Errorf("%g allocations a batch", n)
	}
	for i, p := range sender.plans {
		if got := receiver.tally[i]; got.received != p.frames || got.bytes != p.bytes || p.frames == 0 {
			t.Errorf("stream %d: %d frames of %d", i, got.received, p.frames)
		}
	}
}

// blockedTransport is a transport that accepts no frames until the measurement ends.
type blockedTransport struct {
	nowhere
	delay time.Duration
	sizes []int
}

func (l *blockedTransport) send(frames [][]byte) (int, error) {
	time.Sleep(l.delay)
	l.delay = 0
	for _, f := range frames {
		l.sizes = append(l.sizes, len(f))
	}
	return len(frames), nil
}

// After a delay, only a sender with a configured rate catches up.
func TestLateSendersCatchUp(t *testing.T) {
	const length = 20 * time.Millisecond
	for _, c := range []struct {
		perSecond float64
		want      int
	}{{10_000, 200}, {0, batch}} {
		s := &Spec{Protocol: Raw, Sizes: imix, PerSecond: c.perSecond, Seconds: 1}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		l := &blockedTransport{nowhere: nowhere{framer: *newFramer(make([]byte, 6), make([]byte, 6), false, 1)}, delay: length}
		sender := newTransportSender(s, l, 7, []int{0}, &live{})
		if err := sender.phase(t.Context(), true, length); err != nil {
			t.Fatal(err)
		}
		if len(l.sizes) != c.want {
			t.Errorf("%g a second, %s: %d frames, want %d", c.perSecond, length, len(l.sizes), c.want)
		}
	}
}

// Decoding the histogram in a result gives the histogram that was recorded.
func TestLatency(t *testing.T) {
	h := newHistogram()
	for i := range int64(1000) {
		record(h, i*1000)
	}
	record(h, -5)
	record(h, 1<<62)
	l, err := newLatency("one way", h, time.Microsecond)
	if err != nil {
		t.Fatal(err)
	}
	if l.Count != 1002 || l.Min != 0 || math.Abs(l.P50-500) > 1 || math.Abs(l.P99-991) > 1 || l.Max < 59e6 || l.ClockError != 1 {
		t.Errorf("%+v", l)
	}
	text, _ := json.Marshal(l)
	var back Latency
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	got, err := hdrhistogram.Decode(back.Histogram)
	if err != nil || !got.Equals(h) {
		t.Errorf("decoded: %v %v", got, err)
	}
}

// The clock offset is as exact as the quickest answer allows.
func TestOffset(t *testing.T) {
	var o offset
	o.better(true, 1000, 50_600, 2000)
	o.better(false, 3000, 52_040, 3100)
	o.better(false, 5000, 60_000, 9000)
	if o.ahead != 48_990 || o.within != 50 {
		t.Errorf("%d ahead within %d", o.ahead, o.within)
	}
}
