// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"math/rand"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"weft/flowtable"
	"weft/packet"
	"weft/packet/packettest"
)

// togetherFrames returns frames of all protocols and families between a few
// endpoints.
func togetherFrames() (frames [][]byte) {
	for _, v := range []struct{ client, server, outside string }{
		{"10.0.0.1", "10.0.1.", natInside4}, {"fd00::1", "fd01::", natInside6},
	} {
		client, outside := netip.MustParseAddr(v.client), netip.MustParseAddr(v.outside)
		for i := range 6 {
			server := netip.MustParseAddr(v.server + port(i+1))
			for _, c := range conversations(client, server) {
				frames = append(frames, c.ask, c.answer)
				if c.announcement != nil {
					frames = append(frames, c.announcement)
				}
				frames = append(frames, errorFrame(server, client, map[bool]uint8{false: 3, true: 1}[client.Is6()], 1, c.ask, 60))
			}
			for _, c := range conversations(outside, server) {
				frames = append(frames, c.answer)
			}
			a, z := netip.AddrPortFrom(client, 1000).String(), netip.AddrPortFrom(server, 80).String()
			frames = append(frames,
				tcpFrame(a, z, tcpSegment{flags: "A", seq: 101, ack: 501, window: 60000, scale: -1, payload: 3}),
				tcpFrame(z, a, tcpSegment{flags: "RA", seq: 501, ack: 101, window: 60000, scale: -1}),
				tcpFrame(netip.AddrPortFrom(server, 20).String(), netip.AddrPortFrom(client, 5001).String(), tcpSegment{flags: "S", seq: 1, window: 60000, scale: -1}))
		}
	}
	return frames
}

const natInside4, natInside6 = "192.0.2.1", "2001:db8::1"

// together is one of the test's workers, which all use one table.
type together struct {
	*rig
	rng    *rand.Rand
	frames [][]byte
	sent   [packet.BatchSize][]byte
	order  []uint8
	req    Request
}

// round tracks a batch of a few frames. It returns an error if a result is wrong.
func (w *together) round(id, round int) error {
	w.b.Reset()
	w.arena.Reset()
	w.tr.Forget(^uint32(0))
	w.order = w.order[:0]
	for i := range w.rng.Intn(8) + 1 {
		w.sent[i] = w.frames[w.rng.Intn(len(w.frames))]
		f := w.arena.Add(&w.b, w.sent[i], packet.InnerHeader, 0)
		var k flowtable.Key
		flowtable.Extract(&w.b, f, &k)
		w.metas[i] = Meta{}
		w.order = append(w.order, uint8(i))
	}
	w.choose()
	w.now = uint64(1000+round/10) * second
	if w.rng.Intn(3) == 0 { // the path of fused connections
		set := uint32(1)<<len(w.order) - 1
		order, _ := w.tr.SeekFlows(&w.b, set, w.req.Zone)
		fused := uint32(0)
		for _, i := range slices.Clone(order) {
			if _, _, ok := w.tr.Settle(int(i)); ok {
				state, ok := w.tr.Fast(&w.b, int(i), w.req.NAT.Kind != NATNone, w.now)
				if err := w.whole(int(i), state); err != nil {
					return fmt.Errorf("Fast returned %t: %w", ok, err)
				}
				if ok {
					fused |= 1 << i
				}
			}
		}
		w.order = slices.DeleteFunc(w.order, func(i uint8) bool { return fused>>i&1 != 0 })
	}
	w.tr.Process(&w.b, w.order, &w.metas, &w.req, w.now)
	for _, i := range w.order {
		m := &w.metas[i]
		// Mark and label always change together.
		if m.Ref.Generation != 0 && (m.Label[0] != uint64(m.Mark) || m.Label[1] != m.Label[0]) || m.State&Tracked == 0 {
			return fmt.Errorf("mark and label of different changes: ct_state %s", stateText(m.State))
		}
		if m.Drop != packet.DropNone {
			continue
		}
		if err := w.whole(int(i), m.State); err != nil {
			return fmt.Errorf("ct_state %s: %w", stateText(m.State), err)
		}
		if m.State&Invalid == 0 && m.Ref.Generation != 0 && m.Orig.IPv6 != (w.sent[i][12] == 0x86) {
			return fmt.Errorf("original tuple %+v of a frame of the other family", m.Orig)
		}
		if w.rng.Intn(20) == 0 {
			w.tr.Flush(m.Ref)
		}
	}
	if id == 0 {
		w.tr.Sweep(w.now)
	}
	return nil
}

func (w *together) choose() {
	mark := w.rng.Uint32()
	w.req = Request{Zone: uint16(w.rng.Intn(2)), Commit: w.rng.Intn(3) > 0, Force: w.rng.Intn(9) == 0,
		Mark: mark, MarkMask: ^uint32(0), Label: [2]uint64{uint64(mark), uint64(mark)}, LabelMask: [2]uint64{^uint64(0), ^uint64(0)},
		ALG: ALG(w.rng.Intn(3))}
	switch w.rng.Intn(4) {
	case 0:
		w.req.NAT = natTo(NATSrc, natInside4, natInside4).NAT
	case 1:
		w.req.NAT = natTo(NATSrc, natInside6, natInside6).NAT
	case 2:
		w.req.NAT.Kind = NATBare
	}
}

// whole checks frame i, which was tracked with the ct_state "state". The frame must be unchanged, or one of
// its endpoints must be translated and all checksums must be right.
func (w *together) whole(i int, state uint8) error {
	got, was := packettest.Bytes(&w.b, &w.b.Frames[i]), w.sent[i]
	if state&(SNAT|DNAT) == 0 {
		if !slices.Equal(got, was) {
			return fmt.Errorf("%x became %x", was, got)
		}
		return nil
	}
	src, dst, n := 26, 30, 4
	inside, outside := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr(natInside4)
	if was[12] == 0x86 {
		src, dst, n = 22, 38, 16
		inside, outside = netip.MustParseAddr("fd00::1"), netip.MustParseAddr(natInside6)
	}
	at, want, same := src, outside, dst
	if state&DNAT != 0 {
		at, want, same = dst, inside, src
	}
	if !slices.Equal(got[at:at+n], want.AsSlice()) || !slices.Equal(got[same:same+n], was[same:same+n]) {
		return fmt.Errorf("%x became %x", was, got)
	}
	if !checksumsRight(got) {
		return fmt.Errorf("wrong checksum in %x, which was %x", got, was)
	}
	return nil
}

// checksumsRight verifies all checksums of a frame except SCTP's.
func checksumsRight(frame []byte) bool {
	var ends []byte
	var proto byte
	var l4 []byte
	if frame[12] == 0x86 {
		ends, proto, l4 = frame[22:54], frame[20], frame[54:]
	} else {
		ends, proto, l4 = frame[26:34], frame[23], frame[34:]
		if packet.Sum(frame[14:34]) != 0xffff {
			return false
		}
	}
	switch proto {
	case packet.ProtoICMP:
		return packet.Sum(l4) == 0xffff
	case packet.ProtoTCP, packet.ProtoUDP, packet.ProtoICMPv6:
		pseudo := append(slices.Clone(ends), 0, proto, byte(len(l4)>>8), byte(len(l4)))
		if len(l4)%2 != 0 {
			l4 = append(slices.Clone(l4), 0)
		}
		return packet.Sum(append(pseudo, l4...)) == 0xffff
	}
	return true
}

// While several workers share a small table, no frame gets an impossible result, and
// the table stays consistent.
func TestWorkersTogether(t *testing.T) {
	tab := Open(newMemory(t, 128), 4)
	frames := togetherFrames()
	var wg sync.WaitGroup
	errs := make(chan error, 4)
	for id := range 4 {
		w := &together{rig: newRigOf(t, tab), rng: rand.New(rand.NewSource(int64(id))), frames: frames}
		wg.Go(func() {
			for round := range 12_000 {
				if err := w.round(id, round); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
	check(t, tab)
}
