// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"weft/conntrack"
	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
)

// Unsuccessful searches for a free NAT port add to the debt (extra cost) of the queue.
func TestNATSearchesAreCharged(t *testing.T) {
	r := newRig(t, testSizes)
	r.w.config.Fused = 1 << 10
	if err := r.w.setConnections(ctTable(t)); err != nil {
		t.Fatal(err)
	}
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{}, false)
	r.tx(2).Discard.Store(true)
	c := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit | flowtable.CTNAT | flowtable.CTNATSrc | flowtable.CTRange,
		Lo: [2]uint64{0, 0xc0000201}, Hi: [2]uint64{0, 0xc0000204}, PortLo: 5000, PortHi: 5099}
	r.megaflow(0, 1, 0, 0, 0, append(c.AppendTo(nil), output(2))...)
	q := r.w.queues.queue(0)
	r.w.fixed = r.w.now
	for i := range uint16(400) {
		r.w.fixed += 1_000_000
		r.inject(1, udp(0x0a000001, 0x0a000002, 1000+i, 80))
		r.turn()
	}
	r.equal("connections", uint64(r.w.tracks.tracker.Count()), 400)
	r.w.fixed += 100_000_000
	r.turn()
	r.equal("debt before", q.debtNS, 0)
	r.inject(1, udp(0x0a000001, 0x0a000002, 2000, 80))
	r.turn()
	if q.debtNS < 300*conntrack.NATTryNS {
		t.Errorf("the queue owes %d ns", q.debtNS)
	}
	r.drops(map[packet.DropReason]uint64{packet.DropNATExhausted: 1})
}

// The quota of the zone counts a connection that came through a tunnel, even if its first frame was held.
// The quota of the input port counts any other connection.
func TestTunnelledFramesCountForTheirZone(t *testing.T) {
	r := firewall(t)
	shares := func() (list []conntrack.Share) {
		r.w.tracks.tracker.Shares(func(s conntrack.Share) { list = append(list, s) })
		return list
	}
	r.inject(1, udp(0x0a000001, 0x0a000002, 1, 2))
	r.turn()
	if got := shares(); len(got) != 1 || got[0].Port != 1 || got[0].Used != 1 {
		t.Fatalf("%+v", got)
	}
	w := r.w
	w.rxInUse = nil // as while held frames are resumed
	w.keys[1].Tunnel()[1] = 1
	if got := w.tunnelled([]uint8{0, 1}); got != 1<<1 {
		t.Errorf("tunnelled: %b", got)
	}
	w.rxInUse = w.queues.queue(0)
	if got := w.tunnelled([]uint8{0, 1}); got != 0 {
		t.Errorf("tunnelled of a guest's queue: %b", got)
	}
}

// Held frames from a tunnel use the quota of their VNI. All other held frames use the
// quota of their port.
func TestSenders(t *testing.T) {
	var none, five, seven [flowtable.TunnelWords]uint64
	five[0], five[1], seven[0], seven[1] = 5, 1, 7, 1
	seen := map[uint32]bool{}
	for _, s := range []uint32{senderOf(1, &none), senderOf(2, &none), senderOf(3, &five), senderOf(3, &seven)} {
		if seen[s] || s >= conntrack.MaxSenders {
			t.Errorf("sender %d of two", s)
		}
		seen[s] = true
	}
	if senderOf(3, &five) != senderOf(4, &five) {
		t.Error("a VNI is another sender on another port")
	}
}
