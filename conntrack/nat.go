package conntrack

import (
	"math/bits"

	"weft/internal/cpu"
	"weft/packet"
)

// NATKind says what a ct action's nat argument asks for.
type NATKind uint8

// Kinds.
const (
	NATNone NATKind = iota
	// NATBare translates as the connection was set up to be.
	NATBare
	// NATSrc and NATDst do so too, and set a new connection up.
	NATSrc
	NATDst
)

// NAT is the nat argument of a ct action.
type NAT struct {
	Kind NATKind
	// Random and Hash say how the port is chosen; without either, the frame's own
	// is kept if it is in the range. Persistent has the choice of the address
	// depend on nothing but the frame's own.
	Random, Hash, Persistent bool
	IPv6                     bool // of Lo and Hi
	// Lo to Hi are the addresses, as in Tuple; Lo of 0: the frame's own. A range of
	// IPv6 is one of the lower halves.
	Lo, Hi [2]uint64
	// PortLo to PortHi are the ports; PortHi of 0: any.
	PortLo, PortHi uint16
}

// Limits of the search for a translation that is free.
const (
	// maxNATAddresses is how many addresses of the range are tried, maxNATPorts how
	// many ports with each: all of a range that has no more, of a larger one so many
	// chosen from all. With nine of ten ports in use ten tries find a free one. With
	// both used up another holder's goes or the connection is refused; see natsearch.go.
	maxNATAddresses = 4
	maxNATPorts     = 256
	// ephemeralLo is the first port chosen where the flow names no range.
	ephemeralLo = 1024
)

// connClash says that every reply tuple tried is another connection's. It is
// returned by translation, never stored.
const connClash uint16 = 1 << 15

// translation chooses how the connection of p is translated, and returns its
// reply tuple and the flags that say so. Lock held.
func (tr *Tracker) translation(p *probe, nat *NAT, now uint64) (reply probe, flags uint16) {
	if nat.Kind != NATSrc && nat.Kind != NATDst || nat.IPv6 != p.ipv6() && nat.Lo != [2]uint64{} {
		if isICMP(p.proto()) {
			plain := p.words.tuple(&p.long)
			reply = tr.reversed(&plain)
		} else {
			reply.words, reply.long = p.words.reversed(tr.head, &p.long)
			reply.hash = p.hash // that of both directions
		}
		if tr.taken(&reply, p, now) {
			return reply, connClash
		}
		return reply, 0
	}
	tr.search.begin(tr.from.holder(p.zone()), now)
	defer tr.search.end()
	plain := p.words.tuple(&p.long)
	addresses := addressesOf(nat, &plain)
	span := addresses.count
	first := tr.chooseAddress(nat, &plain, span)
	for i := range min(span, maxNATAddresses) {
		if tr.search.over() {
			break
		}
		at := first + i // modulo span
		if at -= span; first+i < span {
			at = first + i
		}
		want := plain
		if nat.Kind == NATSrc {
			want.Src = addresses.at(at)
		} else {
			want.Dst = addresses.at(at)
		}
		if reply, ok := tr.choosePort(p, nat, &plain, want, now); ok {
			return reply, flagsOf(&plain, &reply)
		}
	}
	if reply, ok := tr.takeOver(); ok {
		return reply, flagsOf(&plain, &reply)
	}
	return reply, connClash
}

// foresee fetches the buckets in which the replies of connections that may begin
// will be looked for first: of all frames at once.
func (tr *Tracker) foresee(frames []uint8, nat *NAT) {
	n := 0
	for _, i := range frames {
		i %= packet.BatchSize
		p := &tr.probes[i]
		if tr.numbers[i] != none || p.kind != kindFlow || nat.IPv6 != p.ipv6() && nat.Lo != [2]uint64{} {
			continue
		}
		want := p.words.tuple(&p.long)
		addresses := addressesOf(nat, &want)
		at := addresses.at(tr.chooseAddress(nat, &want, addresses.count))
		if nat.Kind == NATSrc {
			want.Src = at
		} else {
			want.Dst = at
		}
		reply := tr.reversed(&want)
		tr.lines[n%packet.BatchSize] = uint32(reply.hash) & tr.wrap
		n++
	}
	cpu.Prefetch(&tr.buckets[0], tr.lines[:n])
}

// flagsOf tells what reply translates.
func flagsOf(plain *Tuple, reply *probe) (flags uint16) {
	got := reply.words.tuple(&reply.long).Reverse() // what the original direction becomes
	if got.Src != plain.Src || got.SrcPort != plain.SrcPort {
		flags |= connSNAT | connTranslated
	}
	if got.Dst != plain.Dst || got.DstPort != plain.DstPort {
		flags |= connDNAT | connTranslated
	}
	return flags
}

// reversed is the probe of what answers want.
func (tr *Tracker) reversed(want *Tuple) (p probe) {
	if isICMP(want.Proto) {
		r := want.Reverse()
		p.words = r.words(tr.head)
		p.long = [4]uint64{r.Src[0], r.Src[1], r.Dst[0], r.Dst[1]}
	} else {
		p.words, p.long = want.words(tr.head).reversed(tr.head, &[4]uint64{want.Src[0], want.Src[1], want.Dst[0], want.Dst[1]})
	}
	p.hash = tr.head.hash(p.words, &p.long)
	return p
}

// taken tells whether another connection has the reply tuple. One whose time has
// run out makes way. A tuple that answers itself is free if it is the new one's.
func (tr *Tracker) taken(reply, p *probe, now uint64) bool {
	n, _ := tr.find(reply)
	tr.search.tries++
	if n == none {
		return false
	}
	if !tr.conns[n].expired(now) {
		tr.search.met(tr.Table, n, reply)
		return true
	}
	tr.erase(n, EndExpired)
	return false
}

// natRange is a range of addresses.
type natRange struct {
	lo    [2]uint64
	count uint64 // at least 1
}

func addressesOf(nat *NAT, plain *Tuple) natRange {
	if nat.Lo == [2]uint64{} {
		if nat.Kind == NATSrc {
			return natRange{plain.Src, 1}
		}
		return natRange{plain.Dst, 1}
	}
	r := natRange{nat.Lo, 1}
	if nat.Hi[0] == nat.Lo[0] && nat.Hi[1] > nat.Lo[1] {
		r.count = max(nat.Hi[1]-nat.Lo[1]+1, 1)
	}
	return r
}

func (r natRange) at(i uint64) [2]uint64 { return [2]uint64{r.lo[0], r.lo[1] + i} }

// persistentSeeds do not change with the table.
var persistentSeeds = [4]uint64{0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x082efa98ec4e6c89}

// chooseAddress returns which address of a range of span the choice begins with.
// It depends on the end that is translated, so that one guest keeps its address,
// and without persistent on the other end too.
func (tr *Tracker) chooseAddress(nat *NAT, plain *Tuple, span uint64) uint64 {
	if span == 1 {
		return 0
	}
	s := &persistentSeeds
	h := fold(plain.Src[0]^s[0], plain.Src[1]^s[1])
	if !nat.Persistent {
		h = fold(h^tr.head.seeds[10], tr.head.seeds[11]) ^ fold(plain.Dst[0]^s[2], plain.Dst[1]^s[3])
	}
	h = fold(h^s[2], s[3])
	at, _ := bits.Mul64(h, span)
	return at
}

// choosePort looks for a port with which want's reply tuple is free.
func (tr *Tracker) choosePort(p *probe, nat *NAT, plain *Tuple, want Tuple, now uint64) (probe, bool) {
	port := &want.SrcPort
	if nat.Kind == NATDst && !isICMP(want.Proto) {
		port = &want.DstPort
	}
	own, lo, hi := *port, nat.PortLo, nat.PortHi
	ranged := hi != 0 && !isICMP(want.Proto)
	inRange := !ranged || own >= lo && own <= hi
	if inRange && !nat.Random && !nat.Hash || !hasPorts(want.Proto) {
		if reply := tr.reversed(&want); !tr.taken(&reply, p, now) {
			return reply, true
		}
		if !hasPorts(want.Proto) {
			return probe{}, false
		}
	}
	if !ranged {
		lo, hi = ephemeralLo, 0xffff
		if isICMP(want.Proto) {
			lo = 0
		}
		// A destination port that the flow does not name is the service's own:
		// what gives way is the source port.
		port = &want.SrcPort
	}
	span := uint64(hi) - uint64(lo) + 1
	if hi < lo {
		return probe{}, false
	}
	choice := tr.random()
	if !nat.Random {
		// Of the frame as it came: guests that share an address begin elsewhere.
		s := &tr.head.seeds
		choice = fold(fold(plain.Src[0]^s[10], plain.Src[1]^s[11])^fold(plain.Dst[0]^s[11], plain.Dst[1]^s[12]),
			uint64(plain.SrcPort)<<16^uint64(plain.DstPort)^s[13])
	}
	first, _ := bits.Mul64(choice, span)
	for i := range min(span, maxNATPorts) {
		if tr.search.over() {
			break
		}
		at := (first + i) % span
		if span > maxNATPorts {
			// Anywhere: those next to one in use are likely to be in use as well.
			at, _ = bits.Mul64(choice, span)
			choice = (choice ^ choice>>29) * 0xbf58476d1ce4e5b9
		}
		*port = lo + uint16(at)
		if reply := tr.reversed(&want); !tr.taken(&reply, p, now) {
			return reply, true
		}
	}
	return probe{}, false
}

// random is a number nobody outside can tell from the ones before (xorshift* of a
// random seed suffices: ports are to be spread, secrets are not kept).
func (tr *Tracker) random() uint64 {
	x := tr.rng
	x ^= x >> 12
	x ^= x << 25
	x ^= x >> 27
	tr.rng = x
	return x * 0x2545f4914f6cdd1d
}
