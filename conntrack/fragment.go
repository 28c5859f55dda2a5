package conntrack

import (
	"encoding/binary"

	"weft/packet"
)

// Fragments of IP datagrams: which belong together, and when all are there. The
// frames themselves are held by whoever asks; here they are numbers. A datagram
// whose fragments overlap is given up as a whole, with those still to come (RFC
// 5722 section 4, RFC 8200 section 4.5; for IPv4 RFC 1858 and Linux's practice); a
// fragment that comes twice is dropped alone.

// Limits of one worker.
const (
	// MaxDatagrams bounds the datagrams of which fragments are held; those of a
	// further one are dropped. A sender (Fragment.Sender) has as many as it leaves free:
	// one gets half of them at most, two a third each.
	MaxDatagrams = 256
	// MaxFragments bounds the fragments of a datagram: 64 KiB in pieces of 1 KiB.
	// One with more is given up.
	MaxFragments = 64
	// FragmentTimeoutNS is how long fragments wait for the rest.
	FragmentTimeoutNS = 1_800_000_000
	// MaxSenders bounds the senders that are told apart; see Fragment.Sender.
	MaxSenders = 2048
)

// FragmentKey is what fragments of one datagram have in common. The port they came in
// on is part of it, so that nobody else puts a piece into a datagram.
type FragmentKey struct {
	Src, Dst [2]uint64
	Port     uint32
	ID       uint32
	Zone     uint16
	Proto    uint8
	IPv6     bool
}

// Fragment is a piece of a datagram: its payload from byte From to before To.
type Fragment struct {
	Key      FragmentKey
	From, To uint32
	More     bool // it is not the last
	// Sender says whose share the datagram counts against, if the fragment is its first.
	// It is taken modulo MaxSenders.
	Sender uint32
}

// FragmentOf reads what f is a fragment of. ok is false where lengths or offset
// are none of a fragment's.
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

// fragmentHeader finds the fragment header of the IPv6 header at off.
func fragmentHeader(h []byte, off int) (at int, ok bool) {
	proto, at := h[off+6], off+packet.IPv6Len
	for at+8 <= len(h) {
		switch proto {
		case packet.ProtoFragment:
			return at, true
		case packet.ProtoHopByHop, packet.ProtoRouting, packet.ProtoDestOpts:
			proto, at = h[at], at+8+int(h[at+1])*8
		case packet.ProtoAH:
			proto, at = h[at], at+(int(h[at+1])+2)*4
		default:
			return 0, false
		}
	}
	return 0, false
}

// Fragments are the datagrams of one worker. The zero value is empty. Seed is random,
// so that nobody outside can choose datagrams that collide.
type Fragments struct {
	Seed     uint64
	Count    int
	bySender [MaxSenders]uint16   // of Count
	chains   [MaxDatagrams]uint16 // by hash: number of a datagram, plus one
	free     uint16               // first free one, plus one
	fresh    int                  // from here on none was ever used
	records  [MaxDatagrams]datagram
}

type datagram struct {
	key      FragmentKey
	sinceNS  uint64
	next     uint16 // of the hash or, if free, the next free one, plus one
	sender   uint16
	used     bool
	bad      bool   // given up: what comes is dropped
	complete bool   // being sent on
	total    uint32 // payload bytes, once the last fragment is there
	got      uint32
	count    int
	pieces   [MaxFragments]piece // by From
}

type piece struct{ from, to, slot uint32 }

// FragmentVerdict says what becomes of a fragment.
type FragmentVerdict uint8

// Verdicts.
const (
	// FragmentWaits: it was added under its slot.
	FragmentWaits FragmentVerdict = iota
	// FragmentCompletes: it was added, and the datagram is whole.
	FragmentCompletes
	// FragmentTwice: it is there already.
	FragmentTwice
	// FragmentBad: the datagram is given up; slots of it are to be dropped.
	FragmentBad
	// FragmentNoRoom: too many datagrams wait.
	FragmentNoRoom
)

// Add adds a fragment, held in slot, and returns the number of its datagram.
func (r *Fragments) Add(fr *Fragment, slot uint32, now uint64) (number int, v FragmentVerdict) {
	number = r.find(fr, now)
	if number < 0 {
		return number, FragmentNoRoom
	}
	d := &r.records[number]
	if d.bad || d.complete {
		return number, FragmentTwice // the rest of what is over
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
	d.got += fr.To - fr.From
	if !fr.More {
		d.total = fr.To
	}
	if d.total != 0 && d.got == d.total {
		d.complete = true
		return number, FragmentCompletes
	}
	return number, FragmentWaits
}

// find returns the number of the datagram of a fragment, a new one if there is none,
// or -1 if there is no room.
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
	d.key, d.sinceNS, d.used, d.bad, d.complete, d.total, d.got, d.count = fr.Key, now, true, false, false, 0, 0, 0
	d.sender, d.next, *first = uint16(fr.Sender%MaxSenders), *first, uint16(n+1)
	r.Count++
	*own++
	return n
}

// slot is the chain of a datagram.
func (r *Fragments) slot(k *FragmentKey) int {
	h := fold(k.Src[0]^k.Dst[1]^r.Seed^0x9e3779b97f4a7c15, k.Src[1]^uint64(k.ID)<<32^uint64(k.Zone)<<8^uint64(k.Proto)^0xbf58476d1ce4e5b9)
	return int(fold(h^uint64(k.Port), r.Seed^0x94d049bb133111eb) % MaxDatagrams)
}

// Slots appends the slots of a datagram, by offset.
func (r *Fragments) Slots(number int, to []uint32) []uint32 {
	d := &r.records[number]
	for i := range d.pieces[:d.count] {
		to = append(to, d.pieces[i].slot)
	}
	return to
}

// Total is the payload of a whole datagram in bytes, and First that of its first
// fragment.
func (r *Fragments) Total(number int) (total, first uint32) {
	d := &r.records[number]
	return d.total, d.pieces[0].to
}

// Empty forgets the slots of a datagram given up, which stays so that what is
// still to come is known; Free forgets the datagram.
func (r *Fragments) Empty(number int) { r.records[number].count = 0 }

// Free forgets a datagram.
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

// Expired returns the first datagram from number from on whose time is up, -1 if there
// is none. Complete ones do not expire.
func (r *Fragments) Expired(from int, now uint64) int {
	for n := from; n < r.fresh; n++ {
		if d := &r.records[n]; d.used && !d.complete && int64(now-d.sinceNS) > FragmentTimeoutNS {
			return n
		}
	}
	return -1
}

// TrackFirst takes the first fragment of a whole datagram through an action, for
// all of it: missing is the payload in the others, in bytes.
func (tr *Tracker) TrackFirst(b *packet.Batch, i uint8, missing uint32, metas *[packet.BatchSize]Meta, req *Request, now uint64) {
	tr.missing = missing
	tr.Process(b, []uint8{i}, metas, req, now)
	tr.missing = 0
}

// TrackLater gives a later fragment what the first got: m, whose translation is
// that of addresses alone.
func (tr *Tracker) TrackLater(b *packet.Batch, f *packet.Frame, m *Meta) {
	n := m.Ref.Number
	if m.State&(SNAT|DNAT) == 0 || n >= uint32(len(tr.conns)) || tr.conns[n].generation() != m.Ref.Generation {
		return
	}
	long := tr.longOf(n, 1-m.Dir&1)
	other := tr.conns[n].tuples[1-m.Dir&1].tuple(&long).Reverse()
	setAddresses(f, &other, m.State&SNAT != 0, m.State&DNAT != 0)
}
