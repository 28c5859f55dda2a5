// SPDX-License-Identifier: Apache-2.0

package vhosttest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"time"

	"weft/internal/cpu"
	"weft/vhost"
)

// This file has the load generator, which circulates frames between pairs of guests. It
// works like the io forwarding of DPDK's testpmd, but costs less, so that the switch is
// the bottleneck. A guest transmits each received buffer in place. It writes
// descriptors only at the start. It reads or writes a frame only to change the frame's
// flow or to check the frame.

// LoadConfig describes the load. The zero value means one pair, one flow, and 64-byte
// frames, 256 of them in flight in each direction.
type LoadConfig struct {
	Pairs     int // number of pairs of guests; 1 if 0
	Num       int // ring size; 1024 if 0
	FrameSize int // length of a frame in bytes without FCS, at least 64; 64 if 0
	InFlight  int // frames in flight of each guest, at most Num/3; 256 if 0
	Flows     int // number of flows of each guest, which differ in their UDP ports; 1 if 0
	// Keep makes each frame stay in its first flow. Without Keep, a guest moves each frame to its next
	// flow. Keep and Check exclude each other.
	Keep bool
	// Vary rewrites a frame that a guest is about to transmit, so that it belongs to flow i, which is
	// below Flows. Vary replaces the usual change of UDP ports; nil: no replacement. Vary and Check
	// exclude each other.
	Vary func(guest int, frame []byte, i uint32)
	// Touch makes a guest write and read a word of each cache line of a received frame
	// before it transmits the frame. The contents stay the same.
	Touch bool
	Check bool // compare every byte of received frames, and check their order
	// Addresses gives each guest its own MAC address (LoadMAC). A frame whose source is not the
	// guest's partner then counts as a Stranger, not as bad. Addresses has an effect only with Check.
	Addresses bool
	SampleOne int // without Check, compare one of SampleOne frames; 0: none
	// MostAStep is the largest number of frames that a guest takes from its receive ring and sends on
	// in one Step; 0: no limit. With a limit, frames wait in the rings as behind a slow guest.
	MostAStep int
	// Repeats makes repeated frames count as good: a switch that was killed repeats frames.
	Repeats  bool
	Features uint64 // VERSION_1 and MRG_RXBUF if 0
	Core     int    // core to pin Run to; -1: none
}

func (c LoadConfig) withDefaults() LoadConfig {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&c.Pairs, 1)
	set(&c.Num, 1024)
	set(&c.FrameSize, 64)
	set(&c.InFlight, 256)
	set(&c.Flows, 1)
	if c.Features == 0 {
		c.Features = vhost.FeatureVersion1 | vhost.FeatureMergeable
	}
	return c
}

// Load is the load generator. Guests 2i and 2i+1 are partners: they send frames to each
// other. The test opens the guests' devices (Guest.Open, Guest.Spec), or attaches the
// guests through a FrontEnd.
type Load struct {
	Guests []*Guest
	config LoadConfig
	ends   []*end
	frame  []byte
}

// end is the state of one guest of a load.
type end struct {
	guest     int
	rx, tx    *Queue
	spare     []uint16 // free buffers for the replacement of lost frames
	offered   int      // number of buffers that the driver has put into the receive ring
	target    int      // number of buffers that the receive ring should have
	sent      uint64   // number of transmitted frames whose buffers the switch has released
	received  uint64
	stamp     uint64 // stamp (sequence number) of the next frame that the guest sends, with Check
	stamps    stamps // stamps of the frames received
	repeated  uint64
	overtaken uint64
	strangers uint64
	flow      uint32
	sum       uint64 // sum of the words that Touch has read; it keeps the reads alive
	unread    int    // number of frames to skip until SampleOne selects the next one
	frame     []byte // frame as this guest transmits it
	expects   []byte // frame as its partner transmits it
}

// LoadResult has the counts of one call of Run.
type LoadResult struct {
	Frames   uint64 // number of frames received by all guests
	Bytes    uint64
	Lost     uint64 // number of frames that the switch has released and that no guest has received
	Bad      uint64 // number of frames with wrong content or in wrong order, counted only with Check
	Misused  int    // number of corrupt or repeated used elements
	Elapsed  time.Duration
	PerGuest []uint64 // number of frames received by each guest
	Idle     float64  // fraction of Run's rounds in which no guest received a frame
}

// Rate returns the number of frames received per second.
func (r LoadResult) Rate() float64 { return float64(r.Frames) / r.Elapsed.Seconds() }

// Offsets into a frame in bytes. The payload begins with the stamp, a 64-bit sequence
// number.
const (
	loadPorts   = 34
	loadPayload = 42
	loadMin     = 64
)

// NewLoad makes the guests, whose transmit rings already have the first frames.
func NewLoad(c LoadConfig) (*Load, error) {
	c = c.withDefaults()
	if c.FrameSize < loadMin || c.InFlight > c.Num/3 || c.Flows > 1<<20 {
		return nil, fmt.Errorf("load: frames of %d bytes, %d in flight in rings of %d, %d flows", c.FrameSize, c.InFlight, c.Num, c.Flows)
	}
	l := &Load{config: c, frame: loadFrame(c.FrameSize)}
	buf := (c.FrameSize + HeaderLen(c.Features) + 63) &^ 63
	for range 2 * c.Pairs {
		g, err := New(Options{Num: c.Num, Features: c.Features, BufLen: buf})
		if err != nil {
			l.Close()
			return nil, err
		}
		l.Guests = append(l.Guests, g)
		l.ends = append(l.ends, l.newEnd(g))
	}
	return l, nil
}

// Close frees the guests.
func (l *Load) Close() {
	for _, g := range l.Guests {
		g.Close()
	}
}

// newEnd makes the state of a guest. Descriptor i of the guest's transmit ring always refers to receive
// buffer i, so that a received frame is transmitted in place. newEnd offers the first InFlight frames to
// the switch.
func (l *Load) newEnd(g *Guest) *end {
	e := &end{guest: len(l.ends), rx: g.Rx[0], tx: g.Tx[0], frame: l.frame, expects: l.frame}
	if l.config.Addresses {
		e.frame, e.expects = addressed(l.frame, e.guest), addressed(l.frame, e.guest^1)
	}
	e.rx.Withdraw() // withdraw the buffers that New offered
	size := uint32(HeaderLen(g.Features) + l.config.FrameSize)
	for i := range e.tx.Descs {
		e.tx.Descs[i] = Desc{Addr: e.rx.SlotAddr(i), Len: size}
		buf := e.rx.Slot(i)
		clear(buf)
		copy(buf[HeaderLen(g.Features):], e.frame)
	}
	if l.config.Keep && e.guest%2 == 1 {
		e.flow = uint32(l.config.InFlight % l.config.Flows)
	}
	n := uint16(0)
	for ; int(n) < l.config.InFlight; n++ {
		l.begin(e, int(n))
		e.tx.Offer(n)
	}
	// One guest may receive the frames of both partners, so its receive ring has
	// 2*InFlight buffers.
	for ; int(n) < min(2*l.config.InFlight, l.config.Num-2*l.config.InFlight); n++ {
		e.spare = append(e.spare, n)
	}
	for ; int(n) < l.config.Num; n++ {
		e.rx.Offer(n)
		e.offered++
	}
	e.target = e.offered
	e.rx.Publish()
	e.tx.Publish()
	return e
}

// loadFrame returns a UDP datagram from 10.0.0.1 to 10.0.0.2. Its UDP checksum is 0,
// because the guests change the ports.
func loadFrame(size int) []byte {
	f := make([]byte, size)
	copy(f, []byte{0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1, 8, 0})
	ip := f[14:34]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(size-14))
	copy(ip[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	binary.BigEndian.PutUint32(f[loadPorts:], loadFlowPorts(0))
	binary.BigEndian.PutUint16(f[38:], uint16(size-34))
	for i := loadPayload + 8; i < size; i++ {
		f[i] = byte(i * 7)
	}
	return f
}

// macsLen is the length in bytes of the two MAC addresses at the start of a frame.
const macsLen = 12

// LoadMAC returns the MAC address that LoadConfig.Addresses gives to a guest.
func LoadMAC(guest int) [6]byte { return [6]byte{0x52, 0x54, 0, 0, byte(guest >> 8), byte(guest + 1)} }

// addressed returns a copy of frame from a guest's MAC address to its partner's.
func addressed(frame []byte, guest int) []byte {
	f := bytes.Clone(frame)
	from, to := LoadMAC(guest), LoadMAC(guest^1)
	copy(f, to[:])
	copy(f[6:], from[:])
	return f
}

// loadFlowPorts returns the UDP ports of a flow in one word, the source port in the
// upper half.
func loadFlowPorts(flow uint32) uint32 { return (1024+flow&0x3fff)<<16 | (2048 + flow>>14) }

// FlowPorts returns the UDP source and destination port of the load's flow i. The
// IPv4 addresses of all flows are 10.0.0.1 and 10.0.0.2.
func FlowPorts(i int) (src, dst uint16) {
	p := loadFlowPorts(uint32(i))
	return uint16(p >> 16), uint16(p)
}

// prepare gives a received frame the guest's next flow and a new stamp (sequence number) before its
// transmission. With LoadConfig.Keep it does nothing.
func (l *Load) prepare(e *end, buffer int) {
	if !l.config.Keep {
		l.begin(e, buffer)
	}
}

// touch implements LoadConfig.Touch for one received frame. It writes to a cache line before it reads
// the line, so that the core requests the line only once, for writing. A second request would make the
// guests slower than the switch.
func (l *Load) touch(e *end, buffer int) {
	header := HeaderLen(l.config.Features)
	frame, same := e.rx.Slot(buffer)[header:][:l.config.FrameSize], e.frame
	last, sum := len(frame)-1, e.sum
	for at := 0; at+16 <= len(frame); at += 64 {
		binary.LittleEndian.PutUint64(frame[at:], binary.LittleEndian.Uint64(same[at:]))
	}
	frame[last] = same[last]
	for at := 8; at+8 <= len(frame); at += 64 {
		sum += binary.LittleEndian.Uint64(frame[at:])
	}
	e.sum = sum + uint64(frame[last-1])
}

// begin sets the flow and the stamp (sequence number) of a frame that a guest is about to transmit.
func (l *Load) begin(e *end, buffer int) {
	if l.config.Flows == 1 && !l.config.Check && l.config.Vary == nil {
		return
	}
	f := e.rx.Slot(buffer)[HeaderLen(l.config.Features):]
	if l.config.Addresses {
		copy(f[:macsLen], e.frame)
	}
	if l.config.Vary != nil {
		l.config.Vary(e.guest, f, e.flow)
		if e.flow++; e.flow == uint32(l.config.Flows) {
			e.flow = 0
		}
	} else if l.config.Flows > 1 {
		binary.BigEndian.PutUint32(f[loadPorts:], loadFlowPorts(e.flow))
		if e.flow++; e.flow == uint32(l.config.Flows) {
			e.flow = 0
		}
	}
	if l.config.Check {
		binary.LittleEndian.PutUint64(f[loadPayload:], e.stamp)
		e.stamp++
	}
}

// good reports whether a received frame has the right bytes, and a larger stamp
// (sequence number) than all earlier frames.
func (l *Load) good(e *end, buffer, n int) bool {
	header := HeaderLen(l.config.Features)
	f := e.rx.Slot(buffer)[header:]
	stamp := binary.LittleEndian.Uint64(f[loadPayload:])
	ports := binary.BigEndian.Uint32(f[loadPorts:])
	if n != header+l.config.FrameSize || ports>>16-1024 >= 1<<14 ||
		!bytes.Equal(f[:loadPorts], e.expects[:loadPorts]) ||
		!bytes.Equal(f[loadPorts+4:loadPayload], e.expects[loadPorts+4:loadPayload]) ||
		!bytes.Equal(f[loadPayload+8:l.config.FrameSize], e.expects[loadPayload+8:]) {
		copy(f, e.frame) // the correct frame replaces a bad one, so that each bad frame counts once
		return false
	}
	again, late := e.stamps.note(stamp)
	if again {
		e.repeated++
	}
	if late {
		e.overtaken++
	}
	return l.config.Repeats || !again && !late
}

// Step runs one round of one guest: the guest reclaims its transmitted buffers and sends its received
// frames on. It returns the number of received frames, and the number of bad ones among them. Run
// calls Step. A benchmark that runs on the switch's own core may call it, too.
func (l *Load) Step(guest int) (frames, bad int) {
	e := l.ends[guest]
	if e.rx.packed == nil && !l.config.Addresses && l.config.MostAStep == 0 {
		return l.stepSplit(e)
	}
	e.reclaim()
	frames, bad = l.receive(e, l.config.MostAStep, func(i int) {
		l.prepare(e, i)
		e.tx.Offer(uint16(i))
	})
	e.rx.Publish()
	e.tx.Publish()
	return frames, bad
}

// reclaim moves the transmit buffers that the switch has released to the receive ring, and returns their
// number. If the receive ring has enough buffers already, they go to the list of spare buffers, which
// replace lost frames.
func (e *end) reclaim() (n int) {
	for {
		i, _, ok := e.tx.takeUsed()
		if !ok {
			return n
		}
		n++
		e.sent++
		if e.offered >= e.target {
			e.spare = append(e.spare, uint16(i))
			continue
		}
		e.rx.Offer(uint16(i))
		e.offered++
	}
}

// receive takes received frames from the receive ring: at most maxFrames, or all if maxFrames is 0. For
// each frame it calls the function deal with the number of the frame's buffer.
func (l *Load) receive(e *end, maxFrames int, deal func(buffer int)) (frames, bad int) {
	for maxFrames == 0 || frames < maxFrames {
		i, n, ok := e.rx.takeUsed()
		if !ok {
			break
		}
		e.offered--
		if l.config.Addresses && e.stranger(i, n) {
			continue
		}
		frames++
		if l.config.Check && !l.good(e, i, n) {
			bad++
		}
		if l.config.Touch {
			l.touch(e, i)
		}
		deal(i)
	}
	e.received += uint64(frames)
	return frames, bad
}

// stranger reports whether the source of a received frame is not the guest's partner. It puts the
// buffers of such a frame back into the receive ring.
func (e *end) stranger(buffer, n int) bool {
	slot := e.rx.Slot(buffer)
	header := HeaderLen(e.rx.g.Features)
	if n >= header+macsLen && bytes.Equal(slot[header+6:header+macsLen], e.expects[6:macsLen]) {
		return false
	}
	e.strangers++
	e.rx.Offer(uint16(buffer))
	e.offered++
	for more := binary.LittleEndian.Uint16(slot[10:]); more > 1 && header == 12; more-- {
		i, _, ok := e.rx.takeUsed()
		if !ok {
			break
		}
		e.rx.Offer(uint16(i))
	}
	return true
}

// Rest stops transmission until no frame is in flight, and then resumes it. After each round it calls
// finished with the number of frames and transmit buffers that have come back in the round. finished
// returns true to end the wait. The results are the totals and the number of bad frames. The number of lost
// frames is exact, unlike that of the method Totals under load: a switch may release a buffer before the
// receiver sees the frame.
func (l *Load) Rest(finished func(received int) bool) (totals LoadTotals, bad int) {
	held := make([][]int, len(l.ends))
	for came := -1; came < 0 || !finished(came); {
		came = 0
		for i, e := range l.ends {
			frames, wrong := l.receive(e, 0, func(buffer int) { held[i] = append(held[i], buffer) })
			bad += wrong
			came += e.reclaim() + frames
			e.rx.Publish()
		}
	}
	totals = l.Totals()
	for i, e := range l.ends {
		for _, buffer := range held[i] {
			l.prepare(e, buffer)
			e.tx.Offer(uint16(buffer))
		}
		e.tx.Publish()
	}
	return totals, bad
}

// pausesIdle is the number of pause instructions between two polls of an idle guest's
// rings. Without pauses, the polls would slow down the switch's writes of the ring
// indexes.
const pausesIdle = 8

// replaceEvery is the interval at which Run replaces lost frames.
const replaceEvery = 5 * time.Millisecond

// Run circulates frames for duration d or until stop is closed. It pins the caller's
// thread to LoadConfig.Core.
func (l *Load) Run(d time.Duration, stop <-chan struct{}) (LoadResult, error) {
	if l.config.Core >= 0 {
		runtime.LockOSThread() // never unlocked, so that the pinned thread ends with its goroutine
		if err := cpu.Pin(l.config.Core); err != nil {
			return LoadResult{}, err
		}
	}
	r := LoadResult{PerGuest: make([]uint64, len(l.ends))}
	begin := time.Now()
	next := begin.Add(replaceEvery)
	before := l.lost()
	rounds, idle := 0, 0
	for replaced := before; ; {
		for range 256 {
			if r.add(l) {
				idle++
			}
		}
		rounds += 256
		now := time.Now()
		if now.Sub(begin) >= d || stopped(stop) {
			r.Elapsed = now.Sub(begin)
			break
		}
		if now.After(next) {
			replaced = l.replace(replaced)
			next = now.Add(replaceEvery)
		}
	}
	if lost := l.lost() - before; lost > 0 {
		r.Lost = uint64(lost)
	}
	for _, e := range l.ends {
		r.Misused += e.rx.Misused + e.tx.Misused
	}
	r.Bytes = r.Frames * uint64(l.config.FrameSize)
	r.Idle = float64(idle) / float64(rounds)
	return r, nil
}

// add runs one Step of each guest and adds the results to r. It reports whether no guest has received
// a frame.
func (r *LoadResult) add(l *Load) (idle bool) {
	idle = true
	for g := range l.ends {
		n, bad := l.Step(g)
		r.Frames += uint64(n)
		r.PerGuest[g] += uint64(n)
		r.Bad += uint64(bad)
		idle = idle && n == 0
	}
	if idle {
		cpu.Pause(pausesIdle)
	}
	return idle
}

func stopped(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// lost returns the number of frames that the switch has released and that no guest has received. While the
// switch handles a batch, the number may be wrong by a batch, or negative.
func (l *Load) lost() int64 {
	n := int64(0)
	for _, e := range l.ends {
		n += int64(e.sent) - int64(e.received)
	}
	return n
}

// LoadTotals are the totals of a load that the test drives with Step.
type LoadTotals struct {
	Received uint64
	Repeated uint64 // number of received frames that repeat an earlier frame
	Late     uint64 // number of received frames that a later frame has overtaken
	Lost     int64  // number of frames released and not received, minus Repeated
	Misused  int    // number of corrupt or repeated used elements
	// number of frames whose source is not the guest's partner; Received does not count them
	Strangers uint64
}

// Totals returns the totals since the start of the load. Frames in flight may count as lost.
func (l *Load) Totals() LoadTotals {
	t := LoadTotals{Lost: l.lost()}
	for _, e := range l.ends {
		t.Received += e.received
		t.Repeated += e.repeated
		t.Late += e.overtaken
		t.Strangers += e.strangers
		t.Misused += e.rx.Misused + e.tx.Misused
	}
	return t
}

// Unreturned returns the number of transmitted buffers that the switch has not returned
// yet. It may already have delivered their frames.
func (l *Load) Unreturned() (n int) {
	for _, e := range l.ends {
		n += int(e.tx.next - e.tx.UsedIndex())
	}
	return n
}

// Replace transmits new frames for lost ones. replaced is the number of lost frames that were replaced so
// far; the result is the new number. Run does this by itself, so only a test that calls Step needs Replace.
func (l *Load) Replace(replaced int64) int64 { return l.replace(replaced) }

// Waiting returns the number of frames in the guests' receive rings that no Step has taken yet.
func (l *Load) Waiting() (n int) {
	for _, e := range l.ends {
		n += int(e.rx.UsedIndex() - e.rx.seen)
	}
	return n
}

// replace does the work of Replace. It puts the new frames into spare buffers.
func (l *Load) replace(replaced int64) int64 {
	for _, e := range l.ends {
		for l.lost()-int64(l.Waiting()) > replaced && len(e.spare) > 0 {
			i := e.spare[len(e.spare)-1]
			e.spare = e.spare[:len(e.spare)-1]
			l.begin(e, int(i))
			e.tx.Offer(i)
			replaced++
		}
		e.tx.Publish()
	}
	return replaced
}
