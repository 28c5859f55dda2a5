// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"testing"

	"weft/conntrack"
	"weft/flowtable"
	"weft/packet"
	"weft/port"
	"weft/port/porttest"
)

// lendingRx is a receive queue whose connections the kernel may forward.
type lendingRx struct {
	offloadedRx
	serial uint64
	leases map[uint32]*conntrack.Lease
	usage  map[uint32]conntrack.LeaseUse
	room   int
}

func (q *lendingRx) PutLease(l conntrack.Lease) (place uint32, ok bool) {
	for q.leases[place] != nil {
		place++
	}
	if int(place) >= q.room {
		return 0, false
	}
	q.leases[place], q.usage[place] = &l, conntrack.LeaseUse{Ref: l.Ref, Dir: l.Dir}
	return place, true
}

func (q *lendingRx) ClearLease(place uint32) { delete(q.leases, place) }

func (q *lendingRx) HasLease(place uint32, first, second conntrack.Stage) bool {
	l := q.leases[place]
	return l != nil && l.First == first && l.Second == second
}

func (q *lendingRx) NextLease(from uint32) (place uint32, l conntrack.LeaseUse, found bool) {
	for place = from; int(place) < q.room; place++ {
		if q.leases[place] != nil {
			l = q.usage[place]
			l.Idle++
			if l.Seen {
				l.Idle = 0
			}
			q.usage[place] = conntrack.LeaseUse{Ref: l.Ref, Dir: l.Dir, Idle: l.Idle}
			return place, l, true
		}
	}
	return 0, l, false
}

func (q *lendingRx) Serial(uint32) uint64 { return q.serial }

// lender is a worker that lends connections between port 1 and port 2 to the kernel.
type lender struct {
	*rig
	rx *lendingRx
}

const (
	inside, outside = uint32(0x0a000001), uint32(0x0a000002)
	lentTranslation = 0xc0000201
)

// newLender returns a worker that lends connections. It translates their source address to
// lentTranslation.
func newLender(t *testing.T) *lender {
	r := &lender{rig: firewall(t)}
	snat := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit | flowtable.CTNAT | flowtable.CTNATSrc | flowtable.CTRange,
		Lo: [2]uint64{0, lentTranslation}, Hi: [2]uint64{0, lentTranslation}}
	const est, fresh = conntrack.Tracked | conntrack.Established, conntrack.Tracked | conntrack.New
	track := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTNAT}
	for _, slot := range []uint32{0, 1, 2} {
		r.command(AppendCommand(nil, CmdRemove, slot, nil))
	}
	for slot := range uint32(2) {
		r.megaflow(slot, slot+1, 0, 0, 0, append(track.AppendTo(nil), flowtable.Action{Op: flowtable.OpRecirc, U32: 9})...)
	}
	r.megaflow(2, 1, 9, est|conntrack.New, fresh, append(snat.AppendTo(nil), output(2))...)
	r.w.config.Sweeps = true
	r.w.detach(1)
	r.attach()
	return r
}

// attach adds port 1 with a queue whose connections may be lent. It first closes an earlier port 1.
func (r *lender) attach() {
	r.t.Helper()
	if d := r.ports[1]; d != nil {
		d.Close()
	}
	d := porttest.New(1, porttest.Options{})
	r.ports[1] = d
	if r.rx == nil {
		r.rx = &lendingRx{serial: 7, room: 4, leases: map[uint32]*conntrack.Lease{}, usage: map[uint32]conntrack.LeaseUse{}}
	}
	r.rx.offloadedRx = offloadedRx{Rx: d.RxQueues[0], counts: map[uint32]port.OffloadCounts{}}
	if err := r.w.addPort(&PortQueues{Port: 1, Rx: []port.Rx{r.rx}, Tx: d.Tx()[0]}); err != nil {
		r.t.Fatal(err)
	}
}

// receive lets frames arrive at a port, each in a pass of its own.
func (r *lender) receive(number uint32, frames ...[]byte) {
	r.t.Helper()
	for _, f := range frames {
		r.inject(number, f)
		r.turn()
	}
}

// open establishes a TCP connection and sends frames until the connection is lent.
func (r *lender) open() {
	r.t.Helper()
	r.receive(1, tcp(inside, outside, 1, 2, 0x02, 100, 0, 0))
	r.receive(2, tcp(outside, lentTranslation, 2, 1, 0x12, 500, 101, 0))
	r.receive(1, tcp(inside, outside, 1, 2, 0x10, 101, 501, 0))
	r.lent(0)
	r.receive(1, tcp(inside, outside, 1, 2, 0x10, 101, 501, 10), tcp(inside, outside, 1, 2, 0x10, 111, 501, 10), tcp(inside, outside, 1, 2, 0x10, 121, 501, 10))
	r.lent(1)
}

func (r *lender) lent(want int) {
	r.t.Helper()
	if len(r.rx.leases) != want {
		r.t.Errorf("%d connections are lent, want %d", len(r.rx.leases), want)
	}
}

// An established connection is lent with its megaflows and its translation. The worker takes it back when
// a side closes or resets it. The tracker then does not check sequence numbers, which it no longer knows.
func TestLendTCP(t *testing.T) {
	for name, last := range map[string][]byte{
		"FIN":          tcp(inside, outside, 1, 2, 0x11, 4_000_000, 90_000_000, 0),
		"RST":          tcp(inside, outside, 1, 2, 0x04, 4_000_000, 0, 0),
		"FIN of other": nil,
	} {
		t.Run(name, func(t *testing.T) {
			r := newLender(t)
			r.open()
			l := *r.rx.leases[0]
			l.Ref = conntrack.Ref{}
			want := conntrack.Lease{Proto: 6, Addresses: [4]uint64{uint64(inside)<<32 | uint64(outside)}, Ports: 1<<16 | 2, Translates: true,
				NewAddresses: [4]uint64{lentTranslation<<32 | uint64(outside)}, NewPorts: 1<<16 | 2, First: conntrack.Stage{Slot: 0, Serial: 7}, Second: conntrack.Stage{Slot: 3, Serial: 7}}
			if l != want {
				t.Errorf("%+v, want %+v", l, want)
			}
			r.receive(1, tcp(inside, outside, 1, 2, 0x10, 3_000_000, 80_000_000, 10))
			r.lent(1)
			sent := r.sh.Ports[2].TxPackets
			r.equal("frames sent", sent, 6)
			if last == nil {
				r.receive(2, tcp(outside, lentTranslation, 2, 1, 0x11, 90_000_000, 4_000_000, 0))
			} else {
				r.receive(1, last)
				r.equal("frames sent", r.sh.Ports[2].TxPackets, sent+1)
			}
			r.lent(0)
			r.receive(1, tcp(inside, outside, 1, 2, 0x10, 4_000_000, 90_000_001, 0))
			r.lent(0)
		})
	}
}

// A connection over IPv6 is lent with its addresses and those of its translation, in both directions.
func TestLendIPv6(t *testing.T) {
	r := newLender(t)
	inside, outside, translation := [2]uint64{0xfd00 << 48, 1}, [2]uint64{0xfd00 << 48, 2}, [2]uint64{0xfd00 << 48, 3}
	snat := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit | flowtable.CTNAT | flowtable.CTNATSrc | flowtable.CTRange | flowtable.CTIPv6, Lo: translation, Hi: translation}
	const est, fresh = conntrack.Tracked | conntrack.Established, conntrack.Tracked | conntrack.New
	r.command(AppendCommand(nil, CmdRemove, 2, nil))
	r.megaflow(2, 1, 9, est|conntrack.New, fresh, append(snat.AppendTo(nil), output(2))...)
	out, back := udp6(inside, outside, 1, 2), udp6(outside, translation, 2, 1)
	for range 3 {
		r.receive(1, out)
		r.receive(2, back)
	}
	r.lent(1)
	l := *r.rx.leases[0]
	l.Ref = conntrack.Ref{}
	want := conntrack.Lease{Proto: 17, IPv6: true, Addresses: [4]uint64{inside[0], inside[1], outside[0], outside[1]}, Ports: 1<<16 | 2, Translates: true,
		NewAddresses: [4]uint64{translation[0], translation[1], outside[0], outside[1]}, NewPorts: 1<<16 | 2, First: conntrack.Stage{Slot: 0, Serial: 7}, Second: conntrack.Stage{Slot: 3, Serial: 7}}
	if l != want {
		t.Errorf("%+v, want %+v", l, want)
	}
}

// udp6 returns a datagram over IPv6.
func udp6(src, dst [2]uint64, sport, dport uint16) []byte {
	f := append(make([]byte, 12), 0x86, 0xdd, 0x60, 0, 0, 0, 0, 18, packet.ProtoUDP, 64)
	for _, word := range []uint64{src[0], src[1], dst[0], dst[1]} {
		f = binary.BigEndian.AppendUint64(f, word)
	}
	f = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(f, sport), dport)
	f = append(f, 0, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	packet.UDP(f[54:]).SetChecksum(^packet.AddSums(packet.Sum(f[22:]), packet.ProtoUDP+18)) // the pseudo header has protocol and length, too
	return f
}

// A connection stays alive while the kernel forwards its frames. Without frames, the worker takes it back,
// and it expires from the table.
func TestLentTimeout(t *testing.T) {
	r := newLender(t)
	out, back := udp(inside, outside, 1, 2), udp(outside, lentTranslation, 2, 1)
	r.receive(1, out)
	r.receive(2, back)
	r.receive(1, out, out, out)
	r.lent(1)
	step := func(seen bool) {
		for place, l := range r.rx.usage {
			l.Seen = seen
			r.rx.usage[place] = l
		}
		r.w.fixed += lendEveryNS
		r.turn()
	}
	for range 300 { // the timeout is 120 s
		step(true)
	}
	r.lent(1)
	r.equal("connections", uint64(r.w.tracks.tracker.Count()), 1)
	for range maxLentIdle {
		step(false)
	}
	r.lent(1)
	step(false)
	r.lent(0)
	for range 120 {
		step(false)
	}
	r.equal("connections", uint64(r.w.tracks.tracker.Count()), 0)
}

// The worker takes a connection back when the connection ends and when the port is detached. If a
// megaflow changes, the connection is lent again with the new one. If the kernel's memory is full, the
// worker keeps the connection. When an engine opens the port, it takes back connections that an earlier
// engine has lent.
func TestLentConnectionsComeBack(t *testing.T) {
	r := newLender(t)
	out, back := udp(inside, outside, 1, 2), udp(outside, lentTranslation, 2, 1)
	r.receive(1, out)
	r.receive(2, back)
	r.receive(1, out, out)
	r.lent(1)
	r.rx.serial++
	r.receive(1, out)
	r.lent(1)
	if got := r.rx.leases[0].First.Serial; got != r.rx.serial {
		t.Errorf("serial %d, want %d", got, r.rx.serial)
	}
	r.rx.serial = 0 // the megaflows leave the kernel
	r.receive(1, out)
	r.lent(1)
	r.rx.serial = 9
	r.w.detach(1)
	r.lent(0)

	r.rx.leases[2] = &conntrack.Lease{Ref: conntrack.Ref{Number: 900, Generation: 5}}
	r.attach()
	r.lent(0)
	r.rx.room = 0
	r.receive(1, out)
	r.lent(0)
	r.rx.room = 1
	r.receive(1, out)
	r.lent(1)
	tracker := r.w.tracks.tracker
	tracker.Each(r.w.now, func(e *conntrack.Entry) bool { tracker.Flush(e.Ref); return true })
	r.lent(0)
}
