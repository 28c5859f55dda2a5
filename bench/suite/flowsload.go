// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"weft/e2e/lab"
	"weft/internal/cpu"
	"weft/vhost/vhosttest"
)

// The functions below are the guests for the flow table experiments. Guests 0 and 1 exchange frames of
// many flows. Guest 2, if there is one, sends attack frames at a given rate. All guests share one
// process on guestCore.

// guestsVerb is the argument with which this program runs the guests.
const guestsVerb = "flow-guests"

type guestsSpec struct {
	// Flows has the paths of two files with tuples (UDP flows). Guest 0 sends the flows in the first
	// file, and guest 1 those in the second.
	Flows [2]string
	// Until is the number of received frames after which the run ends. If Until is 0, the run ends
	// after Length.
	Until        uint64
	Warm, Length time.Duration
	// Attack is the path of a file with the flows of guest 2. Guest 2 sends PerSecond frames per
	// second, in every second slice of time (slices.go).
	Attack    string
	PerSecond int
}

type guestsReport struct {
	Frames  float64 // frames per second that guests 0 and 1 received
	Seconds float64
	Lost    int64
	Sliced  attackReport // with guest 2, this replaces Frames
}

// tuple identifies a UDP flow. It has tupleBytes bytes in a file of flows.
type tuple struct {
	src, dst         uint32
	srcPort, dstPort uint16
}

const tupleBytes = 12

func appendTuple(b []byte, t tuple) []byte {
	b = binary.BigEndian.AppendUint32(b, t.src)
	b = binary.BigEndian.AppendUint32(b, t.dst)
	b = binary.BigEndian.AppendUint16(b, t.srcPort)
	return binary.BigEndian.AppendUint16(b, t.dstPort)
}

// writeTuples writes flows to a file, tupleBytes bytes for each flow. The guests' process reads the
// file with readHeaders.
func writeTuples(path string, flows []tuple) {
	b := make([]byte, 0, tupleBytes*len(flows))
	for _, t := range flows {
		b = appendTuple(b, t)
	}
	lab.Check(os.WriteFile(path, b, 0o644))
}

// headers has, for each flow, the header bytes that differ between flows: IPv4 checksum, addresses and
// ports.
type headers [][headerBytes]byte

const (
	headerAt    = 24 // offset of the IPv4 header checksum in a frame
	headerBytes = 14
)

func readHeaders(path string) headers {
	b, err := os.ReadFile(path)
	if err != nil || len(b) == 0 || len(b)%tupleBytes != 0 {
		lab.Check(errors.Join(err, fmt.Errorf("%s: expected flows of %d bytes each", path, tupleBytes)))
	}
	list := make(headers, len(b)/tupleBytes)
	for i := range list {
		h := &list[i]
		copy(h[2:], b[i*tupleBytes:][:tupleBytes])
		// sum of the header fields that are the same in all 64-byte frames
		sum := uint32(0x4500 + frameBytes - 14 + 64<<8 + 17)
		for at := 2; at < 10; at += 2 {
			sum += uint32(binary.BigEndian.Uint16(h[at:]))
		}
		sum = sum&0xffff + sum>>16
		binary.BigEndian.PutUint16(h[:], ^uint16(sum+sum>>16))
	}
	return list
}

const frameBytes = 64

func runGuests(args []string) {
	var spec guestsSpec
	asLoad(args, &spec)
	g := newFlowGuests(&spec, args[1:])
	defer g.load.Close()
	sayReport(g.run(&spec))
}

type flowGuests struct {
	load     *vhosttest.Load
	attacker *vhosttest.Guest
	frames   headers // header bytes of the frames of guest 2
	next     int     // index of the next frame in frames
	replaced int64   // number of frames that Load.Replace has sent in place of lost ones
	idle     bool    // no frame has returned yet
	template [frameBytes]byte
}

func newFlowGuests(spec *guestsSpec, sockets []string) *flowGuests {
	var flows [2]headers
	for i := range flows {
		flows[i] = readHeaders(spec.Flows[i])
	}
	if len(flows[0]) != len(flows[1]) {
		lab.Check(errors.New("both guests need as many flows"))
	}
	g := &flowGuests{idle: true}
	g.load = lab.Must(vhosttest.NewLoad(vhosttest.LoadConfig{FrameSize: frameBytes, Flows: len(flows[0]), Core: -1,
		Vary: func(guest int, frame []byte, i uint32) { copy(frame[headerAt:], flows[guest][i][:]) }}))
	all := g.load.Guests
	if spec.Attack != "" {
		g.frames = readHeaders(spec.Attack)
		g.attacker = lab.Must(vhosttest.New(vhosttest.Options{Num: 1024, BufLen: 128, Features: all[0].Features}))
		copy(g.template[:], all[0].Tx[0].Slot(0))
		all = append(all[:len(all):len(all)], g.attacker)
		g.fillTemplate()
	}
	attachAll(sockets, all)
	return g
}

// fillTemplate writes the header bytes that all frames of guest 2 share.
func (g *flowGuests) fillTemplate() {
	f := g.template[:]
	copy(f, []byte{0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 3, 8, 0, 0x45, 0})
	binary.BigEndian.PutUint16(f[16:], frameBytes-14)
	f[22], f[23] = 64, 17
	binary.BigEndian.PutUint16(f[38:], frameBytes-34)
}

func attachAll(sockets []string, guests []*vhosttest.Guest) {
	var listeners []*net.UnixListener
	for _, s := range sockets {
		l := lab.Must(vhosttest.ListenFront(s))
		listeners = append(listeners, l)
	}
	for i, g := range guests {
		f := lab.Must(vhosttest.Accept(listeners[i]))
		attachPlainly(f, g)
	}
}

// attachPlainly attaches a guest without vhost-user protocol features, because some switches lack
// them.
func attachPlainly(f *vhosttest.FrontEnd, g *vhosttest.Guest) {
	offered := lab.Must(f.U64(vhosttest.GetFeatures, nil))
	if missing := g.Features &^ offered; missing != 0 {
		lab.Check(fmt.Errorf("the switch lacks features %#x", missing))
	}
	lab.Check(f.Send(vhosttest.SetOwner, vhosttest.Version, nil))
	lab.Check(f.Send(vhosttest.SetFeatures, vhosttest.Version, vhosttest.Number(g.Features)))
	lab.Check(f.SetMemory(g))
	for _, q := range []*vhosttest.Queue{g.Rx[0], g.Tx[0]} {
		lab.Check(f.SetVring(q, q.Start()))
	}
}

func (g *flowGuests) run(spec *guestsSpec) guestsReport {
	var r guestsReport
	if spec.Until > 0 {
		frames, elapsed := g.circulate(spec.Length, spec.Until, 0)
		r.Frames, r.Seconds = float64(frames)/elapsed.Seconds(), elapsed.Seconds()
		return r
	}
	g.circulate(spec.Warm, 0, 0)
	if g.attacker != nil {
		g.circulate(spec.Warm, 0, spec.PerSecond) // lets the switch install guest 2's masks
		g.attackInSlices(spec, &r.Sliced)
		return r
	}
	before := g.load.Totals()
	frames, elapsed := g.circulate(spec.Length, 0, 0)
	r.Frames, r.Seconds = float64(frames)/elapsed.Seconds(), elapsed.Seconds()
	r.Lost = g.load.Totals().Lost - before.Lost
	return r
}

// attackInSlices measures guests 0 and 1 alternately without and with guest 2's frames.
func (g *flowGuests) attackInSlices(spec *guestsSpec, r *attackReport) {
	end := time.Now().Add(spec.Length)
	r.alternate(func() bool { return time.Now().After(end) }, func(d time.Duration, attacked bool) (float64, float64, time.Duration) {
		perSecond := 0
		if attacked {
			perSecond = spec.PerSecond
		}
		taken := g.attacker.Tx[0].UsedIndex()
		frames, elapsed := g.circulate(d, 0, perSecond)
		return float64(frames), float64(g.attacker.Tx[0].UsedIndex() - taken), elapsed
	})
}

// circulate runs the guests for the time d. If until is not 0, circulate returns as soon as the guests
// have received this number of frames.
func (g *flowGuests) circulate(d time.Duration, until uint64, perSecond int) (frames uint64, elapsed time.Duration) {
	begin := time.Now()
	idle, sent, replaced := 0, 0, begin
	for turn := 0; ; turn++ {
		n := 0
		for guest := range 2 {
			got, _ := g.load.Step(guest)
			n += got
		}
		if g.idle {
			begin = time.Now() // do not count the time to attach: the clock starts with the first frame
			g.idle = n == 0
		}
		frames += uint64(n)
		if until > 0 && frames >= until {
			return frames, time.Since(begin)
		}
		if n > 0 {
			idle = 0
		} else if idle++; until > 0 && idle > 16 {
			_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		} else {
			cpu.Pause(8)
		}
		if turn%64 != 0 && perSecond == 0 {
			continue
		}
		now := time.Now()
		if elapsed = now.Sub(begin); elapsed >= d {
			return frames, elapsed
		}
		if perSecond > 0 {
			for due := int(elapsed.Seconds() * float64(perSecond)); sent < due && g.attack(); sent++ {
			}
			g.attacker.Tx[0].Publish()
		}
		if now.Sub(replaced) > 5*time.Millisecond {
			g.replaced, replaced = g.load.Replace(g.replaced), now
		}
	}
}

func (g *flowGuests) attack() bool {
	tx := g.attacker.Tx[0]
	tx.Reclaim()
	copy(g.template[headerAt:], g.frames[g.next][:])
	if !tx.Send(g.template[:]) {
		return false
	}
	g.next = (g.next + 1) % len(g.frames)
	return true
}
