// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"

	"weft/packet"
)

// This file collects the fragments of each IP datagram until the datagram is complete. The caller
// stores the frames and passes only the number of each frame's slot. If fragments overlap, the whole
// datagram is discarded (RFC 5722 section 4, RFC 8200 section 4.5; for IPv4 RFC 1858). For an exact
// duplicate of a fragment, only the duplicate is dropped.

// Limits of one worker.
const (
	// MaxDatagrams is the number of records. Each incomplete datagram takes one. A sender may begin another
	// datagram only while it has fewer datagrams than there are free records. So one sender alone uses at
	// most half of the records, and two senders use a third each. Fragments beyond this limit are dropped.
	MaxDatagrams = 256
	// MaxFragments is the largest number of fragments of a datagram. A datagram with
	// more is discarded.
	MaxFragments = 64
	// fragmentTimeoutNS is the longest time for which the fragments of an incomplete datagram are kept.
	fragmentTimeoutNS = 1_800_000_000
	// MaxSenders is the number of counters that count datagrams by sender. Senders whose numbers are equal
	// modulo MaxSenders share a counter.
	MaxSenders = 2048
)

// FragmentKey identifies the datagram to which a fragment belongs. It includes the input
// port, so that one port cannot add fragments to another port's datagram. Src and Dst are
// encoded as in Tuple.
type FragmentKey struct {
	Src, Dst [2]uint64
	Port     uint32
	ID       uint32
	Zone     uint16
	Proto    uint8
	IPv6     bool
}

// Fragment describes a fragment, which carries the bytes From to To-1 of its datagram's
// payload.
type Fragment struct {
	Key      FragmentKey
	From, To uint32
	More     bool // further bytes of the datagram follow after To
	// Sender is the number of the sender. The datagram counts for the sender of the fragment that arrives
	// first; see MaxDatagrams.
	Sender uint32
}

// FragmentOf describes the fragment in frame f, whose ct zone is "zone". It leaves Sender to the
// caller. ok is false if the fragment's length or offset is invalid.
func FragmentOf(f *packet.Frame, zone uint16) (fr Fragment, ok bool) {
	h := f.Header()
	fr.Key.Zone, fr.Key.Port = zone, f.InPort
	if h[f.L3]>>4 == 4 {
		ip := packet.IPv4(h[f.L3:])
		fr.Key.Src[1], fr.Key.Dst[1] = uint64(ip.Src()), uint64(ip.Dst())
		fr.Key.ID, fr.Key.Proto = uint32(ip.ID()), ip.Proto()
		fr.From, fr.More = uint32(ip.FlagsFrag()&0x1fff)*8, ip.FlagsFrag()&0x2000 != 0
		fr.To = fr.From + uint32(ip.TotalLen()-ip.HeaderLen())
	} else {
		ip := packet.IPv6(h[f.L3:])
		fr.Key.IPv6 = true
		fr.Key.Src[0], fr.Key.Src[1] = ip.Src()
		fr.Key.Dst[0], fr.Key.Dst[1] = ip.Dst()
		at, found := fragmentHeader(h, int(f.L3))
		if !found {
			return fr, false
		}
		where := binary.BigEndian.Uint16(h[at+2:])
		fr.Key.Proto, fr.Key.ID = h[at], binary.BigEndian.Uint32(h[at+4:])
		fr.From, fr.More = uint32(where&0xfff8), where&1 != 0
		fr.To = fr.From + uint32(f.Len()-at-8)
	}
	n := fr.To - fr.From
	return fr, n > 0 && fr.To <= 0xffff && (!fr.More || n%8 == 0)
}

// fragmentHeader returns the offset of the IPv6 fragment header. ip is the offset of
// the IPv6 header.
func fragmentHeader(h []byte, ip int) (offset int, ok bool) {
	proto, offset := h[ip+6], ip+packet.IPv6Len
	for offset+8 <= len(h) {
		switch proto {
		case packet.ProtoFragment:
			return offset, true
		case packet.ProtoHopByHop, packet.ProtoRouting, packet.ProtoDestOpts:
			proto, offset = h[offset], offset+8+int(h[offset+1])*8
		case packet.ProtoAH:
			proto, offset = h[offset], offset+(int(h[offset+1])+2)*4
		default:
			return 0, false
		}
	}
	return 0, false
}

// Fragments collects the fragments that one worker receives. The zero value is empty. Seed must be random,
// so that no sender can choose datagrams whose hashes collide. Count is the number of datagrams that have a
// record.
type Fragments struct {
	Seed     uint64
	Count    int
	bySender [MaxSenders]uint16   // number of datagrams by sender
	chains   [MaxDatagrams]uint16 // 1 + the number of the first datagram, by hash
	free     uint16               // 1 + the number of the first free record
	fresh    int                  // first record that was never used
	records  [MaxDatagrams]datagram
}

type datagram struct {
	key      FragmentKey
	sinceNS  uint64
	next     uint16 // 1 + the number of the next record in the hash chain or free list
	sender   uint16
	used     bool
	bad      bool   // discarded: further fragments are dropped
	complete bool   // all fragments have arrived
	total    uint32 // payload length in bytes; 0: not known yet
	received uint32
	count    int
	pieces   [MaxFragments]piece // in order of their first byte
}

type piece struct{ from, to, slot uint32 }

// FragmentVerdict is the result of Add.
type FragmentVerdict uint8

// Results of Add.
const (
	// FragmentWaits means that the fragment was added and that others are missing.
	FragmentWaits FragmentVerdict = iota
	// FragmentCompletes means that the fragment was added and that the datagram is now complete.
	FragmentCompletes
	// FragmentTwice means that the fragment was not added: it is a duplicate, or its datagram
	// is already complete or discarded.
	FragmentTwice
	// FragmentBad means that the fragment contradicts the others, for example because it overlaps one, or
	// that the datagram has too many fragments. The datagram is discarded. The caller drops this frame and
	// the frames in the datagram's slots.
	FragmentBad
	// FragmentNoRoom means that the fragment begins a datagram beyond its sender's quota.
	FragmentNoRoom
)

// Add adds a fragment, whose frame the caller has stored in slot. It returns the number of the
// fragment's datagram (-1 for FragmentNoRoom) and the verdict on the fragment.
func (r *Fragments) Add(fr *Fragment, slot uint32, now uint64) (number int, v FragmentVerdict) {
	number = r.find(fr, now)
	if number < 0 {
		return number, FragmentNoRoom
	}
	d := &r.records[number]
	if d.bad || d.complete {
		return number, FragmentTwice // a late fragment of a finished datagram
	}
	at := 0
	for at < d.count && d.pieces[at].from < fr.From {
		at++
	}
	if at < d.count && d.pieces[at].from == fr.From && d.pieces[at].to == fr.To {
		return number, FragmentTwice
	}
	switch {
	case at > 0 && d.pieces[at-1].to > fr.From, at < d.count && d.pieces[at].from < fr.To, d.count == MaxFragments,
		d.total != 0 && fr.To > d.total, !fr.More && (d.total != 0 || d.count > 0 && d.pieces[d.count-1].to > fr.To):
		d.bad = true
		return number, FragmentBad
	}
	copy(d.pieces[at+1:d.count+1], d.pieces[at:d.count])
	d.pieces[at] = piece{fr.From, fr.To, slot}
	d.count++
	d.received += fr.To - fr.From
	if !fr.More {
		d.total = fr.To
	}
	if d.total != 0 && d.received == d.total {
		d.complete = true
		return number, FragmentCompletes
	}
	return number, FragmentWaits
}

// find returns the number of a fragment's datagram. If the datagram is new, find
// allocates a record. It returns -1 if the sender may not use another record.
func (r *Fragments) find(fr *Fragment, now uint64) int {
	first := &r.chains[r.slot(&fr.Key)]
	for at := *first; at != 0; at = r.records[at-1].next {
		if r.records[at-1].key == fr.Key {
			return int(at - 1)
		}
	}
	own := &r.bySender[fr.Sender%MaxSenders]
	if int(*own) >= MaxDatagrams-r.Count {
		return -1
	}
	n := int(r.free) - 1
	if n < 0 {
		n = r.fresh
		r.fresh++
	} else {
		r.free = r.records[n].next
	}
	d := &r.records[n]
	d.key, d.sinceNS, d.used, d.bad, d.complete, d.total, d.received, d.count = fr.Key, now, true, false, false, 0, 0, 0
	d.sender, d.next, *first = uint16(fr.Sender%MaxSenders), *first, uint16(n+1)
	r.Count++
	*own++
	return n
}

func (r *Fragments) slot(k *FragmentKey) int {
	h := fold(k.Src[0]^k.Dst[1]^r.Seed^0x9e3779b97f4a7c15, k.Src[1]^uint64(k.ID)<<32^uint64(k.Zone)<<8^uint64(k.Proto)^0xbf58476d1ce4e5b9)
	return int(fold(h^uint64(k.Port), r.Seed^0x94d049bb133111eb) % MaxDatagrams)
}

// Slots appends the slots of a datagram's fragments to dst, ordered by their offset in the datagram.
func (r *Fragments) Slots(number int, dst []uint32) []uint32 {
	d := &r.records[number]
	for i := range d.pieces[:d.count] {
		dst = append(dst, d.pieces[i].slot)
	}
	return dst
}

// Total returns the payload lengths of a complete datagram and of its first fragment, in bytes.
func (r *Fragments) Total(number int) (total, first uint32) {
	d := &r.records[number]
	return d.total, d.pieces[0].to
}

// Empty removes the fragments of a discarded datagram, whose frames the caller has dropped. The
// datagram's record stays until Free, so that Add recognizes later fragments of it.
func (r *Fragments) Empty(number int) { r.records[number].count = 0 }

// Free removes a datagram. Later fragments of it begin a new one.
func (r *Fragments) Free(number int) {
	d := &r.records[number]
	if !d.used {
		return
	}
	at := &r.chains[r.slot(&d.key)]
	for *at != uint16(number+1) {
		at = &r.records[*at-1].next
	}
	*at = d.next
	d.used, d.next, r.free = false, r.free, uint16(number+1)
	r.Count--
	r.bySender[d.sender]--
}

// Expired returns the first number, not less than "from", of an incomplete datagram that has waited
// longer than fragmentTimeoutNS. It returns -1 if there is none.
func (r *Fragments) Expired(from int, now uint64) int {
	for n := from; n < r.fresh; n++ {
		if d := &r.records[n]; d.used && !d.complete && int64(now-d.sinceNS) > fragmentTimeoutNS {
			return n
		}
	}
	return -1
}

// TrackFirst runs the first fragment of a datagram, frame i, through a ct action. metas[i] is then
// valid for the whole datagram. missingBytes is the number of payload bytes in the other fragments.
func (tr *Tracker) TrackFirst(b *packet.Batch, i uint8, missingBytes uint32, metas *[packet.BatchSize]Meta, req *Request, now uint64) {
	tr.missing = missingBytes
	tr.Process(b, []uint8{i}, metas, req, now)
	tr.missing = 0
}

// TrackLater translates the addresses of a later fragment, which has no ports, as those of the
// first fragment. m is the first fragment's Meta.
func (tr *Tracker) TrackLater(b *packet.Batch, f *packet.Frame, m *Meta) {
	n := m.Ref.Number
	if m.State&(SNAT|DNAT) == 0 || n >= uint32(len(tr.conns)) || tr.conns[n].generation() != m.Ref.Generation {
		return
	}
	long := tr.longOf(n, 1-m.Dir&1)
	other := tr.conns[n].tuples[1-m.Dir&1].tuple(&long).Reverse()
	setAddresses(f, &other, m.State&SNAT != 0, m.State&DNAT != 0)
}
