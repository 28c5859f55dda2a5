// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"math/bits"

	"weft/internal/cpu"
	"weft/packet"
)

// NATKind is the kind of translation that a ct action asks for with its argument nat.
type NATKind uint8

// Kinds of translation.
const (
	NATNone NATKind = iota
	// NATBare applies the connection's existing translation.
	NATBare
	// NATSrc and NATDst also choose a source or destination translation for a new
	// connection.
	NATSrc
	NATDst
)

// NAT has the arguments of nat in a ct action.
type NAT struct {
	Kind NATKind
	// With Random or Hash, the port is always chosen from the range of ports. Otherwise the frame keeps its
	// own port if that port is in the range and free. With Persistent, the chosen address depends only on
	// the frame's own source address.
	Random, Hash, Persistent bool
	IPv6                     bool // family of Lo and Hi
	// The range of addresses goes from Lo to Hi, encoded as in Tuple. If Lo is 0, the
	// frame keeps its address. In an IPv6 range only the lower 64 bits vary.
	Lo, Hi [2]uint64
	// The range of ports goes from PortLo to PortHi. If PortHi is 0, any port may be chosen.
	PortLo, PortHi uint16
}

// Limits of the search for a free translation.
const (
	// maxNATAddresses is the number of addresses that a search tries. maxNATPorts is
	// the number of ports that it tries for each address. If a range is larger, the
	// choice is random. If all tries fail, natsearch.go evicts a connection, or the new
	// connection is refused.
	maxNATAddresses = 4
	maxNATPorts     = 256
	// ephemeralLo is the lowest port that is chosen if the action gives no range of ports.
	ephemeralLo = 1024
)

// connClash is a result of the method translation: all reply tuples that it tried belong to
// other connections. No connection has this flag.
const connClash uint16 = 1 << 15

// translation chooses the translation of a new connection, whose tuple is in probe p. It
// sets replyTuple to the reply tuple and returns the flags of the connection. The caller holds
// the table's lock.
func (tr *Tracker) translation(p *probe, nat *NAT, replyTuple *probe, now uint64) (flags uint16) {
	if nat.Kind != NATSrc && nat.Kind != NATDst || nat.IPv6 != p.ipv6() && nat.Lo != [2]uint64{} {
		switch {
		case isICMP(p.proto()):
			plain := p.words.tuple(&p.long)
			*replyTuple = tr.reversed(&plain)
		case p.ipv6():
			replyTuple.words, replyTuple.long = p.words.reversed(tr.head, &p.long)
			replyTuple.hash = p.hash // both directions have the same hash
		default:
			w, _ := p.words.reversed(tr.head, &p.long)
			replyTuple.a, replyTuple.b, replyTuple.hash = w.a, w.b, p.hash
		}
		if tr.inUse(replyTuple, p, now) {
			return connClash
		}
		return 0
	}
	tr.search.begin(tr.sender.holder(p.zone()), now)
	defer tr.search.end()
	plain := p.words.tuple(&p.long)
	addresses := addressesOf(nat, &plain)
	span := addresses.count
	first := tr.chooseAddress(nat, &plain, span)
	for i := range min(span, maxNATAddresses) {
		if tr.search.exhausted() {
			break
		}
		at := first + i // this is (first + i) modulo span, computed without overflow
		if at -= span; first+i < span {
			at = first + i
		}
		want := plain
		if nat.Kind == NATSrc {
			want.Src = addresses.address(at)
		} else {
			want.Dst = addresses.address(at)
		}
		if r, ok := tr.choosePort(p, nat, &plain, want, now); ok {
			*replyTuple = r
			return flagsOf(&plain, replyTuple)
		}
	}
	if r, ok := tr.evictForTranslation(); ok {
		*replyTuple = r
		return flagsOf(&plain, replyTuple)
	}
	return connClash
}

// prefetchReplies prefetches index buckets for the new connections of a batch. For each
// of these connections, it prefetches the bucket of the reply tuple that is tried
// first.
func (tr *Tracker) prefetchReplies(frames []uint8, nat *NAT) {
	n := 0
	for _, i := range frames {
		i %= packet.BatchSize
		p := &tr.probes[i]
		if tr.numbers[i] != none || p.kind != kindFlow || nat.IPv6 != p.ipv6() && nat.Lo != [2]uint64{} {
			continue
		}
		want := p.words.tuple(&p.long)
		addresses := addressesOf(nat, &want)
		at := addresses.address(tr.chooseAddress(nat, &want, addresses.count))
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

// flagsOf returns the flags for the translation of a connection: "plain" is its original tuple, replyTuple
// its reply tuple.
func flagsOf(plain *Tuple, replyTuple *probe) (flags uint16) {
	got := replyTuple.words.tuple(&replyTuple.long).Reverse() // translated tuple of the original direction
	if got.Src != plain.Src || got.SrcPort != plain.SrcPort {
		flags |= connSNAT | connTranslated
	}
	if got.Dst != plain.Dst || got.DstPort != plain.DstPort {
		flags |= connDNAT | connTranslated
	}
	return flags
}

// reversed returns the probe (tuple with hash) of the answers to frames with the tuple "want".
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

// inUse reports whether another connection already has this reply tuple. If that
// connection has expired, inUse ends it.
func (tr *Tracker) inUse(reply, p *probe, now uint64) bool {
	n, _ := tr.find(reply)
	tr.search.tries++
	if n == none {
		return false
	}
	if !tr.conns[n].expired(now) {
		tr.search.met(tr.Table, n, reply)
		return true
	}
	tr.erase(n, endExpired)
	return false
}

// natRange is a range of addresses, which begins at lo.
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

func (r natRange) address(i uint64) [2]uint64 { return [2]uint64{r.lo[0], r.lo[1] + i} }

// persistentSeeds are constants, unlike the random seeds of a table. With the argument persistent, every
// table therefore chooses the same address for the same source.
var persistentSeeds = [4]uint64{0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x082efa98ec4e6c89}

// chooseAddress returns the index, below span, of the address in the range that is tried first. It depends on
// the source address, so that a guest keeps its translated address. Without Persistent, it also depends on
// the destination address.
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

// nextIdentifiers is the number of consecutive ICMP identifiers that are tried after one that
// is in use. Further tries are spread over all identifiers. These tries are among the
// freeNATTries.
const nextIdentifiers = 8

// choosePort looks for a port with which no other connection has the reply tuple. "want" is the translated
// tuple with the frame's own port. The results are the reply tuple and whether a port was found.
func (tr *Tracker) choosePort(p *probe, nat *NAT, plain *Tuple, want Tuple, now uint64) (probe, bool) {
	port := &want.SrcPort
	if nat.Kind == NATDst && !isICMP(want.Proto) {
		port = &want.DstPort
	}
	own, lo, hi := *port, nat.PortLo, nat.PortHi
	ranged := hi != 0 && !isICMP(want.Proto)
	inRange := !ranged || own >= lo && own <= hi
	// The arguments random and hash are about ports; an ICMP identifier stays unless it is in use.
	if inRange && !nat.Random && !nat.Hash || !hasPorts(want.Proto) || isICMP(want.Proto) {
		if reply := tr.reversed(&want); !tr.inUse(&reply, p, now) {
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
		// The destination port stands for the service, so the source port is changed.
		port = &want.SrcPort
	}
	if isICMP(want.Proto) {
		// The identifiers after the sender's own one are tried first. They are usually free, because few
		// identifiers are in use, and an operator recognizes them in a capture.
		for i := range uint16(nextIdentifiers) {
			*port = own + 1 + i
			if reply := tr.reversed(&want); !tr.inUse(&reply, p, now) {
				return reply, true
			}
		}
	}
	span := uint64(hi) - uint64(lo) + 1
	if hi < lo {
		return probe{}, false
	}
	choice := tr.random()
	if !nat.Random {
		// Guests behind the same address start the search at different ports.
		s := &tr.head.seeds
		choice = fold(fold(plain.Src[0]^s[10], plain.Src[1]^s[11])^fold(plain.Dst[0]^s[11], plain.Dst[1]^s[12]),
			uint64(plain.SrcPort)<<16^uint64(plain.DstPort)^s[13])
	}
	first, _ := bits.Mul64(choice, span)
	for i := range min(span, maxNATPorts) {
		if tr.search.exhausted() {
			break
		}
		at := (first + i) % span
		if span > maxNATPorts {
			// The tries are spread over the range, because used ports are often
			// neighbours.
			at, _ = bits.Mul64(choice, span)
			choice = (choice ^ choice>>29) * 0xbf58476d1ce4e5b9
		}
		*port = lo + uint16(at)
		if reply := tr.reversed(&want); !tr.inUse(&reply, p, now) {
			return reply, true
		}
	}
	return probe{}, false
}

// random returns a pseudorandom number (xorshift*), which protects no secret.
func (tr *Tracker) random() uint64 {
	x := tr.rng
	x ^= x >> 12
	x ^= x << 25
	x ^= x >> 27
	tr.rng = x
	return x * 0x2545f4914f6cdd1d
}
