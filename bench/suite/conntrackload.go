// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"weft/e2e/lab"
	"weft/internal/cpu"
	"weft/vhost/vhosttest"
)

// The functions below are the guests for connection tracking. Guest 0 sends the UDP datagrams of many
// connections, and guest 1 returns them. Guest 2, if there is one, sends TCP segments that open
// connections. All guests share one process on guestCore.

// trackVerb is the argument with which this program runs the guests.
const trackVerb = "track-guests"

type trackSpec struct {
	Connections int  // number of connections of guest 0
	IPv6        bool // connections use IPv6 instead of IPv4
	Fresh       bool // each datagram of guest 0 opens a new connection
	// Warm and Length are the lengths of the warm-up and of the measurement. If Fresh is set, there is
	// no warm-up, and Length is only the time limit.
	Warm, Length time.Duration
	// PerSecond is the number of segments that guest 2 sends per second, in every second slice of time
	// (slices.go). 0 means that there is no guest 2. Until guest 2 has sent Fill segments, the table
	// grows. After that, the table is full, and Length begins.
	PerSecond, Fill int
}

// The guests print warmWord when every connection has been used.
const warmWord = "warm"

type trackReport struct {
	Frames float64 // frames per second that both guests received; with Fresh: the same as Begun
	Begun  float64 // connections opened a second, if Fresh is set
	Count  float64 // with Fresh: number of opened connections
	Stall  float64 // longest time in seconds in which no frame arrived although the guests had their core
	// With guest 2, these replace Frames: the frame rates while the connection table grows, and those
	// when it is full.
	Growing, Full attackReport
}

// Offsets in an Ethernet frame with UDP over IPv4 or IPv6.
const (
	checksumAt  = 24
	addressesAt = 26
	portsAt     = 34

	addresses6At = 22 // addresses in a frame with IPv6
	udp6At       = 54
)

// setConnection writes the addresses and ports of connection i into an IPv4 frame. Sources begin at
// 10.0.0.1, with 4,096 source ports for each address. The destination is 10.128.0.1.
func setConnection(f []byte, i uint32) {
	const to = 10<<24 | 128<<16 | 1
	src := uint32(10<<24|1) + i>>12
	binary.BigEndian.PutUint32(f[addressesAt:], src)
	binary.BigEndian.PutUint32(f[addressesAt+4:], to)
	binary.BigEndian.PutUint32(f[portsAt:], (1024+i&0xfff)<<16|80)
	sum := uint32(0x4500+frameBytes-14+64<<8+17) + src>>16 + src&0xffff + to>>16 + to&0xffff
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(f[checksumAt:], ^uint16(sum+sum>>16))
}

// setConnection6 writes the addresses and ports of connection i into an IPv6 frame. Sources begin at
// fd00::1, and the destination is fd01::1. It sets the UDP checksum, which IPv6 requires (RFC 8200
// section 8.1).
func setConnection6(f []byte, i uint32) {
	const size = frameBytes - udp6At
	binary.BigEndian.PutUint16(f[12:], 0x86dd)
	binary.BigEndian.PutUint64(f[14:], 6<<60|size<<16|17<<8|64)
	binary.BigEndian.PutUint64(f[addresses6At:], 0xfd00<<48)
	binary.BigEndian.PutUint64(f[addresses6At+8:], 1+uint64(i>>12))
	binary.BigEndian.PutUint64(f[addresses6At+16:], 0xfd01<<48)
	binary.BigEndian.PutUint64(f[addresses6At+24:], 1)
	binary.BigEndian.PutUint32(f[udp6At:], (1024+i&0xfff)<<16|80)
	binary.BigEndian.PutUint32(f[udp6At+4:], size<<16)
	sum := ^sum16(size+17, f[addresses6At:frameBytes])
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(f[udp6At+6:], sum)
}

func answer6(f []byte) {
	var src [16]byte
	a, dst := f[addresses6At:udp6At], f[addresses6At+16:udp6At]
	copy(src[:], a)
	copy(a, dst)
	copy(dst, src[:])
	p := binary.BigEndian.Uint32(f[udp6At:])
	binary.BigEndian.PutUint32(f[udp6At:], p<<16|p>>16)
}

// answer swaps the source and the destination of a frame. The checksums stay correct, because they are
// sums of the same words.
func answer(f []byte) {
	a := binary.BigEndian.Uint64(f[addressesAt:])
	binary.BigEndian.PutUint64(f[addressesAt:], a<<32|a>>32)
	p := binary.BigEndian.Uint32(f[portsAt:])
	binary.BigEndian.PutUint32(f[portsAt:], p<<16|p>>16)
}

func runTrackGuests(args []string) {
	var spec trackSpec
	asLoad(args, &spec)
	g := newTrackGuests(&spec, args[1:])
	defer g.load.Close()
	sayReport(g.run(&spec))
}

type trackGuests struct {
	load     *vhosttest.Load
	attacker *vhosttest.Guest
	segment  []byte // SYN segment that guest 2 sends
	next     uint32 // next connection that guest 0 uses
	count    uint32 // number of connections of guest 0
	fresh    bool
	ipv6     bool
	random   uint64
	sent     int // number of segments that guest 2 has sent

	stall    time.Duration
	lastCame time.Time
}

func newTrackGuests(spec *trackSpec, sockets []string) *trackGuests {
	g := &trackGuests{count: uint32(spec.Connections), fresh: spec.Fresh, ipv6: spec.IPv6, random: 1}
	g.load = lab.Must(vhosttest.NewLoad(vhosttest.LoadConfig{FrameSize: frameBytes, Flows: 2, Core: -1, Vary: g.vary}))
	all := g.load.Guests
	if spec.PerSecond > 0 {
		g.attacker = lab.Must(vhosttest.New(vhosttest.Options{Num: 1024, BufLen: 128, Features: all[0].Features}))
		all = append(all[:len(all):len(all)], g.attacker)
		g.segment = synSegment()
	}
	attachAll(sockets, all)
	return g
}

func (g *trackGuests) vary(guest int, frame []byte, _ uint32) {
	switch {
	case guest == 1 && g.ipv6:
		answer6(frame)
		return
	case guest == 1:
		answer(frame)
		return
	case g.ipv6:
		setConnection6(frame, g.next)
	default:
		setConnection(frame, g.next)
	}
	if g.next++; g.next >= g.count && !g.fresh {
		g.next = 0
	}
}

// synSegment returns a TCP SYN to 10.128.0.1. Its source address, ports and checksums are still to be
// filled in.
func synSegment() []byte {
	f := make([]byte, 60)
	copy(f, []byte{0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 3, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 6, 0, 0, 0, 0, 0, 0, 10, 128, 0, 1})
	f[46], f[47], f[48] = 0x50, 0x02, 0xff
	return f
}

func (g *trackGuests) attack() bool {
	g.random ^= g.random << 13
	g.random ^= g.random >> 7
	g.random ^= g.random << 17
	f := g.segment
	binary.BigEndian.PutUint32(f[addressesAt:], 11<<24|uint32(g.random)&0xffffff)
	binary.BigEndian.PutUint32(f[portsAt:], uint32(g.random>>32)&0xffff0000|80)
	f[checksumAt], f[checksumAt+1], f[50], f[51] = 0, 0, 0, 0
	binary.BigEndian.PutUint16(f[checksumAt:], ^sum16(0, f[14:34]))
	// The checksum covers the pseudo header, too.
	binary.BigEndian.PutUint16(f[50:], ^sum16(6+26, f[addressesAt:60]))
	tx := g.attacker.Tx[0]
	tx.Reclaim()
	if !tx.Send(f) {
		return false
	}
	g.sent++
	return true
}

func sum16(sum uint32, b []byte) uint16 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	sum = sum&0xffff + sum>>16
	return uint16(sum + sum>>16)
}

func (g *trackGuests) run(spec *trackSpec) (r trackReport) {
	if spec.Fresh {
		begun, elapsed := g.circulate(spec.Length, 0)
		r.Count, r.Begun, r.Stall = begun[1], begun[1]/elapsed.Seconds(), g.stall.Seconds()
		r.Frames = r.Begun
		return r
	}
	for at := uint32(0); ; { // until every connection has been used
		g.circulate(spec.Warm, 0)
		if at >= g.next {
			break // the counter has started again, so every connection was used
		}
		at = g.next
	}
	fmt.Println(warmWord)
	g.stall = 0
	if spec.PerSecond > 0 {
		g.attackInSlices(spec, &r.Growing, func() bool { return g.sent >= spec.Fill })
		end := time.Now().Add(spec.Length)
		g.attackInSlices(spec, &r.Full, func() bool { return time.Now().After(end) })
		return r
	}
	frames, elapsed := g.circulate(spec.Length, 0)
	r.Frames, r.Stall = (frames[0]+frames[1])/elapsed.Seconds(), g.stall.Seconds()
	return r
}

// attackInSlices measures guests 0 and 1 alternately without and with guest 2's segments.
func (g *trackGuests) attackInSlices(spec *trackSpec, r *attackReport, done func() bool) {
	r.alternate(done, func(d time.Duration, attacked bool) (float64, float64, time.Duration) {
		perSecond := 0
		if attacked {
			perSecond = spec.PerSecond
		}
		before := g.sent
		frames, elapsed := g.circulate(d, perSecond)
		return frames[0] + frames[1], float64(g.sent - before), elapsed
	})
}

// longestPoll is the longest time between two polls of guests that have their core. A longer gap means
// that another process had the core. It does not count as a stall of the switch.
const longestPoll = 200 * time.Microsecond

// uncountedConnections is the number of connections at the start for which stalls do not count. Their
// frames miss in the flow cache, and wait until the control process has installed megaflows.
const uncountedConnections = 10_000

// circulate runs the guests for the time d. If trackSpec.Fresh is set, it returns as soon as all
// connections have been opened. "frames" has the numbers of frames that guests 0 and 1 have received.
func (g *trackGuests) circulate(d time.Duration, perSecond int) (frames [2]float64, elapsed time.Duration) {
	begin := time.Now()
	replaced, lastReplaced := g.load.Totals().Lost, begin
	g.lastCame = begin
	last := begin
	for sent := 0; ; {
		n := 0
		for guest := range frames {
			got, _ := g.load.Step(guest)
			frames[guest] += float64(got)
			n += got
		}
		if n == 0 {
			cpu.Pause(8)
		}
		now := time.Now()
		if now.Sub(last) > longestPoll || g.fresh && frames[1] < uncountedConnections {
			g.lastCame = now // the guests lost their core, or the flows are not installed yet
		}
		g.stall = max(g.stall, now.Sub(g.lastCame))
		if n > 0 {
			g.lastCame = now
		}
		last = now
		if elapsed = now.Sub(begin); elapsed >= d || g.fresh && frames[1] >= float64(g.count) {
			return frames, elapsed
		}
		if perSecond > 0 {
			for due := int(elapsed.Seconds() * float64(perSecond)); sent < due && g.attack(); sent++ {
			}
			g.attacker.Tx[0].Publish()
		}
		if now.Sub(lastReplaced) > 5*time.Millisecond {
			replaced, lastReplaced = g.load.Replace(replaced), now
			_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
}
