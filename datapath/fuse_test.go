// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"math/rand"
	"sort"
	"testing"

	"weft/conntrack"
	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
)

// These tests compare two workers that get the same frames, commands and times. One of them, the
// reference implementation, never fuses connections.

func tcp(src, dst uint32, sport, dport uint16, flags uint8, seq, ack uint32, payload int) []byte {
	f := make([]byte, 14+20+20+payload)
	copy(f, udp(src, dst, 0, 0)[:34])
	ip := packet.IPv4(f[14:])
	ip[9] = packet.ProtoTCP
	ip.SetTotalLen(len(f) - 14)
	ip.SetChecksum(0)
	ip.SetChecksum(packet.Checksum(ip[:20]))
	h := packet.TCP(f[34:])
	for at, v := range map[int]uint32{0: uint32(sport)<<16 | uint32(dport), 4: seq, 8: ack} {
		h[at], h[at+1], h[at+2], h[at+3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
	}
	h[12], h[13], h[14] = 5<<4, flags, 0x40
	sum := ^packet.AddSums(packet.Sum(h), packet.SumIPv4(src, dst, packet.ProtoTCP, len(h)))
	h[16], h[17] = byte(sum>>8), byte(sum)
	return f
}

// setTTL changes the TTL of a frame. Bit 0 of the IP identification says whether the
// TTL is 128 or more.
func setTTL(f []byte, ttl byte) []byte {
	ip := packet.IPv4(f[14:])
	ip[8] = ttl
	ip.SetID(packet.Sum(f[26:38])<<1 | uint16(ttl>>7))
	ip.SetChecksum(0)
	ip.SetChecksum(packet.Checksum(ip[:20]))
	return f
}

type twins struct {
	t     *testing.T
	rng   *rand.Rand
	rigs  [2]*rig // with fused connections, and without
	slots map[uint32]bool
}

func newTwins(t *testing.T, seed int64) *twins {
	w := &twins{t: t, rng: rand.New(rand.NewSource(seed)), slots: map[uint32]bool{}}
	for i := range w.rigs {
		r := newRig(t, testSizes)
		r.w.config.Fused = 1 << 6
		if err := r.w.setConnections(ctTable(t)); err != nil {
			t.Fatal(err)
		}
		r.w.tracks.plain = i == 1
		r.w.config.Sweeps = true
		r.addPort(1, porttest.Options{}, false)
		r.addPort(2, porttest.Options{}, false)
		w.rigs[i] = r
	}
	return w
}

func (w *twins) forEach(f func(r *rig)) {
	for _, r := range w.rigs {
		f(r)
	}
}

func (w *twins) install(slot uint32, key, mask flowtable.Key, actions []flowtable.Action) {
	w.forEach(func(r *rig) {
		if w.slots[slot] {
			r.command(AppendCommand(nil, CmdRemove, slot, nil))
		}
		r.command(AppendInstall(nil, slot, &key, &mask, actions))
	})
	w.slots[slot] = true
}

func (w *twins) remove(slot uint32) {
	if w.slots[slot] {
		w.forEach(func(r *rig) { r.command(AppendCommand(nil, CmdRemove, slot, nil)) })
		w.slots[slot] = false
	}
}

func (w *twins) change() {
	inPort := uint32(w.rng.Intn(2) + 1)
	other := 3 - inPort
	half := w.rng.Intn(2) // lower or upper half of the TTLs
	ttl, ttlMask := uint64(half)<<47, uint64(1)<<47
	slot := inPort*100 + uint32(half)
	if w.rng.Intn(6) == 0 {
		w.remove(slot + uint32(w.rng.Intn(6))*10)
		return
	}
	key, mask := flowtable.Key{flowtable.WPort: uint64(inPort) << 32}, flowtable.Key{flowtable.WPort: ^uint64(0)}
	key[flowtable.WIP], mask[flowtable.WIP] = ttl, ttlMask
	nat := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTNAT}
	switch kind := w.rng.Intn(6); kind {
	case 0: // megaflow that tracks the frame, possibly with NAT, and looks it up again
		list := []flowtable.Action{{Op: flowtable.OpCT, U16: 5}}
		if w.rng.Intn(2) == 0 {
			list = nat.AppendTo(nil)
		}
		w.install(slot, key, mask, append(list, flowtable.Action{Op: flowtable.OpRecirc, U32: 9}))
	case 1: // commit and translate in one action
		q := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit | flowtable.CTNAT | flowtable.CTNATSrc | flowtable.CTRange,
			Lo: [2]uint64{0, 0xc0000200}, Hi: [2]uint64{0, 0xc0000203}, Mark: uint32(w.rng.Intn(4)), MarkMask: 3}
		w.install(slot, key, mask, append(q.AppendTo(nil), output(other)))
	default:
		key.SetRecirc(9)
		const stateMask = conntrack.New | conntrack.Established | conntrack.Invalid
		state := []uint64{conntrack.New, conntrack.Established, conntrack.Established, conntrack.Invalid}[kind-2]
		key[flowtable.WCT], mask[flowtable.WCT] = state<<24, stateMask<<24
		list := []flowtable.Action{output(other)}
		switch {
		case state == conntrack.New:
			q := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit, Mark: uint32(w.rng.Intn(4)), MarkMask: uint32(w.rng.Intn(4))}
			if w.rng.Intn(3) == 0 {
				q.Bits |= flowtable.CTNAT | flowtable.CTNATSrc | flowtable.CTRange
				q.Lo, q.Hi = [2]uint64{0, 0xc0000209}, [2]uint64{0, 0xc0000209}
			}
			list = append(q.AppendTo(nil), output(other))
		case w.rng.Intn(3) == 0:
			list = []flowtable.Action{{Op: flowtable.OpSetTTL, U32: uint32(w.rng.Intn(200) + 1)}, output(other)}
		case w.rng.Intn(4) == 0: // megaflow that changes the mark of established connections
			q := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit, Mark: uint32(w.rng.Intn(4)), MarkMask: 3}
			list = append(q.AppendTo(nil), output(other))
		}
		if kind == 3 { // matches one mark only
			mask[flowtable.WCT] |= 3 << 32
			key[flowtable.WCT] |= uint64(w.rng.Intn(4)) << 32
			slot += uint32(key[flowtable.WCT]>>32)*1000 + 1000
		}
		w.install(slot+uint32(kind)*10, key, mask, list)
	}
}

// frame returns a random frame of one of few connections. If calm is true, most frames
// are UDP, so that whole batches are fused.
func (w *twins) frame(inPort uint32, calm bool) []byte {
	inside, outside := uint32(0x0a000001+w.rng.Intn(2)), uint32(0x0a000101)
	a, b := uint16(1000+w.rng.Intn(3)), uint16(80)
	if inPort == 2 {
		if w.rng.Intn(3) == 0 && !calm {
			inside = 0xc0000200 + uint32(w.rng.Intn(4))
		}
		inside, outside, a, b = outside, inside, b, a
	}
	ttl := byte(w.rng.Intn(2)*128 + 40)
	if calm && w.rng.Intn(30) != 0 {
		return setTTL(udp(inside, outside, a, b), 40)
	}
	if w.rng.Intn(3) == 0 {
		return setTTL(udp(inside, outside, a, b), ttl)
	}
	// Similar sequence numbers, so that segments are valid in any order.
	flags := []uint8{0x10, 0x10, 0x10, 0x10, 0x10, 0x18, 0x02, 0x12, 0x11, 0x04}[w.rng.Intn(10)]
	seq, ack := uint32(101), uint32(101)
	if flags&2 != 0 {
		seq = 100
	}
	if w.rng.Intn(20) == 0 {
		seq += 1 << 28
	}
	return setTTL(tcp(inside, outside, a, b, flags, seq, ack, w.rng.Intn(3)), ttl)
}

// compare fails the test unless both workers have sent the same frames and have the same counters and
// connections.
func (w *twins) compare(step int) {
	w.t.Helper()
	for no := uint32(1); no <= 2; no++ {
		var sent [2]map[string][]string
		for i, r := range w.rigs {
			sent[i] = map[string][]string{}
			for _, f := range r.tx(no).TakeAll() {
				// Even without fused connections, the order of some frames is not
				// fixed: frames of different megaflows, and frames of senders that NAT
				// maps to one address.
				connection := string(f[18:20]) + string(f[23:24]) + string(f[26:38])
				sent[i][connection] = append(sent[i][connection], string(f))
			}
		}
		if fmt.Sprint(sent[0]) != fmt.Sprint(sent[1]) {
			w.t.Fatalf("step %d, port %d: sent\n%x, without fusing\n%x", step, no, sent[0], sent[1])
		}
	}
	a, b := w.rigs[0], w.rigs[1]
	if a.sh.Counters.Drops != b.sh.Counters.Drops {
		w.t.Fatalf("step %d: dropped %v, without fusing %v", step, a.sh.Counters.Drops, b.sh.Counters.Drops)
	}
	for slot := range a.sh.Cache.Flows {
		f, g := a.sh.Cache.Flows[slot], b.sh.Cache.Flows[slot]
		if f.Packets != g.Packets || f.Bytes != g.Bytes || f.Generation != g.Generation {
			w.t.Fatalf("step %d, slot %d: %+v, without fusing %+v", step, slot, f, g)
		}
	}
	var lines [2][]string
	for i, r := range w.rigs {
		r.w.tracks.tracker.Each(r.w.now, func(e *conntrack.Entry) bool {
			lines[i] = append(lines[i], string(e.AppendTo(nil, conntrack.FormatOptions{Statistics: true})))
			return true
		})
		sort.Strings(lines[i])
	}
	if fmt.Sprint(lines[0]) != fmt.Sprint(lines[1]) {
		w.t.Fatalf("step %d: connections\n%v, without fusing\n%v", step, lines[0], lines[1])
	}
}

func FuzzFused(f *testing.F) {
	for seed := range int64(5) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) { tryFused(t, seed, 150) })
}

func TestFusedIsPlain(t *testing.T) {
	fused, frames := uint64(0), uint64(0)
	seeds := int64(25)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		w := tryFused(t, seed, 300)
		fused += w.rigs[0].w.fused.hits
		frames += w.rigs[0].sh.Counters.Frames
		if n := w.rigs[1].w.fused.hits; n != 0 {
			t.Fatalf("the worker without fusing fused %d frames", n)
		}
	}
	if fused < frames/25 {
		t.Fatalf("only %d of %d frames went by a fused entry", fused, frames)
	}
	t.Logf("%d of %d frames went by a fused entry", fused, frames)
}

func tryFused(t *testing.T, seed int64, steps int) *twins {
	w := newTwins(t, seed)
	for range 60 {
		w.change()
	}
	clock, calm := uint64(1<<50), false
	for step := range steps {
		if w.rng.Intn(8) == 0 {
			w.change()
		}
		if w.rng.Intn(10) == 0 {
			calm = !calm
		}
		inPort := uint32(w.rng.Intn(2) + 1)
		for range w.rng.Intn(20) + 1 {
			f := w.frame(inPort, calm)
			w.forEach(func(r *rig) { r.inject(inPort, append([]byte(nil), f...)) })
		}
		if w.rng.Intn(10) == 0 {
			clock += uint64(w.rng.Intn(60)) * 1_000_000_000
		}
		clock += 300_000
		if w.rng.Intn(40) == 0 { // ends one connection
			n := uint32(w.rng.Intn(4))
			w.forEach(func(r *rig) {
				r.w.tracks.tracker.Each(clock, func(e *conntrack.Entry) bool {
					if e.Ref.Number == n {
						r.command(AppendEndConnections(nil, []conntrack.Ref{e.Ref}))
					}
					return true
				})
			})
		}
		w.forEach(func(r *rig) {
			r.w.fixed = clock
			r.turn()
			for {
				up, ok := r.upcall()
				if !ok {
					break
				}
				r.command(AppendDropHeld(nil, up.Arg, packet.DropFlow))
			}
			r.turn()
		})
		w.compare(step)
	}
	return w
}
