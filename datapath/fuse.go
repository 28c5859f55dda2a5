package datapath

import (
	"math/bits"

	"weft/conntrack"
	"weft/flowtable"
	"weft/internal/shm"
	"weft/packet"
)

// Fused connections. What the megaflow before tracking, the tracker and the
// megaflow behind it decided together for an established connection is one entry
// here, found under the frame's addresses and ports. A frame that hits is looked
// up once, in the flow cache; the entry stands for the other two look-ups as long
// as
//
//   - both megaflows are what they were (slot and generation),
//   - the connection's generation is what it was, the frame has its tuple, and
//     following the frame leaves the connection established (conntrack.Fast),
//   - the frame's key agrees with the second megaflow in all that the connection
//     does not determine.
//
// So nothing needs to be told of changes. Statistics of both megaflows go on.
// Frames that come behind another of their connection which takes the plain way
// take it too, so that they stay in order.

// fusedEntry is 32 bytes, two a cache line.
type fusedEntry struct {
	slot, generation     uint32 // of the megaflow that tracks
	then, thenGeneration uint32 // of the one behind; slot itself: none is looked up
	ref                  conntrack.Ref
	dir                  uint8
	_                    uint8
	tag                  uint16 // of the frame's hash
	_                    [4]byte
}

const (
	// DefaultFused is the number of entries of a worker, a power of two; 32 MB, taken
	// as they are used.
	DefaultFused = 1 << 20
	fusedWays    = 2
)

// fuseKind says which action lists can be fused.
type fuseKind uint8

const (
	fuseNot    fuseKind = iota
	fuseThen            // tracking, and then a further look-up
	fuseItself          // tracking, and then actions that know nothing of it
)

// knownBits are those of a key that an entry determines: what it was made of agreed
// with the second megaflow, and had the same connection and first megaflow.
var knownBits = func() (k flowtable.Key) {
	k[flowtable.WPort] = 0xffffffff // recirc_id: the first megaflow's
	k[flowtable.WIPv4] = ^uint64(0)
	k[flowtable.WL4] = 0xffffffff << 32
	for w := flowtable.WIPv6Src; w < flowtable.WTunID; w++ {
		k[w] = ^uint64(0)
	}
	for w := flowtable.WCT; w < flowtable.KeyWords; w++ {
		k[w] = ^uint64(0)
	}
	return k
}()

// fused is the entries of a worker, and what they say of the batch in hand.
type fused struct {
	region  *shm.Region
	entries []fusedEntry // pairs
	seeds   [2]uint64
	waiting uint32 // frames of the run in hand that are to be executed after it
	wanted  uint32 // frames whose second look-up makes an entry
	agreed  agreement
	hits    uint64 // frames that had an entry
	touched uint64 // keeps fetches from being optimised away
	at      [packet.BatchSize]uint32
	tags    [packet.BatchSize]uint16
	first   [packet.BatchSize]fusedEntry // slot and generation of the first, for wanted
	found   [packet.BatchSize]*fusedEntry
}

// kindOf tells how a list that begins with tracking, n actions long, can be fused.
func kindOf(actions []flowtable.Action, n int) fuseKind {
	if actions[0].U32&(flowtable.CTForce|flowtable.CTFTP|flowtable.CTTFTP) != 0 {
		return fuseNot
	}
	rest := actions[n:]
	if len(rest) == 1 && rest[0].Op == flowtable.OpRecirc {
		return fuseThen
	}
	if !untracked(rest) {
		return fuseNot
	}
	return fuseItself
}

// untracked tells whether a list neither tracks nor looks up again.
func untracked(actions []flowtable.Action) bool {
	for i := range actions {
		switch actions[i].Op {
		case flowtable.OpCT, flowtable.OpCTClear, flowtable.OpRecirc:
			return false
		}
	}
	return true
}

// fuseHash is where the pair of the frame's entry begins, and the entry's tag.
func (w *Worker) fuseHash(k *flowtable.Key) (at uint32, tag uint16) {
	s := &w.fused.seeds
	a, b := k[flowtable.WIPv4], k[flowtable.WL4]>>32|k[flowtable.WIP]>>56<<32
	if a == 0 {
		hi, lo := bits.Mul64(k[flowtable.WIPv6Src]^k[flowtable.WIPv6Dst+1]^s[1], k[flowtable.WIPv6Src+1]^bits.RotateLeft64(k[flowtable.WIPv6Dst], 17)^s[0])
		a = hi ^ lo
	}
	hi, lo := bits.Mul64(a^s[0], b^s[1])
	h := hi ^ lo
	return uint32(h) & uint32(len(w.fused.entries)-1) &^ (fusedWays - 1), uint16(h >> 48)
}

// runFused takes those frames of a run through tracking that have an entry, and
// returns them. slot is the run's megaflow, whose request has been read.
func (w *Worker) runFused(first, end int, slot uint32, kind fuseKind) (done uint32) {
	u, t := &w.fused, &w.tracks
	generation := w.cache.Flow(slot).Generation
	run := w.live & (allOf(end) &^ allOf(first))
	for set := run; set != 0; set &= set - 1 {
		i := bits.TrailingZeros32(set) % packet.BatchSize
		u.at[i], u.tags[i] = w.fuseHash(&w.keys[i])
	}
	for set := run; set != 0; set &= set - 1 { // all lines at once
		i := bits.TrailingZeros32(set) % packet.BatchSize
		u.found[i] = nil
		pair := (*[fusedWays]fusedEntry)(u.entries[u.at[i]:])
		for way := range pair {
			e := &pair[way]
			// The tag tells the pair apart; Fast is sure.
			if e.slot == slot && e.generation == generation && e.tag == u.tags[i] {
				u.found[i] = e
				u.touched += t.tracker.Touch(e.ref)
				break
			}
		}
	}
	waiting := t.again
	u.agreed.key = nil
	for set := run; set != 0; set &= set - 1 {
		i := bits.TrailingZeros32(set) % packet.BatchSize
		if e := u.found[i]; e != nil && w.follows(i, e, kind, waiting) {
			done |= 1 << i
			u.hits++
		} else {
			waiting |= 1 << i
		}
	}
	return done
}

// follows takes frame i through tracking by its entry; false: it must go the
// plain way.
func (w *Worker) follows(i int, e *fusedEntry, kind fuseKind, waiting uint32) bool {
	if waiting != 0 && w.overtakes(i, waiting) {
		return false
	}
	k, t := &w.keys[i], &w.tracks
	if kind == fuseThen && !w.fused.agreed.holds(e, k) {
		if !w.cache.Agrees(e.then, e.thenGeneration, k, &knownBits) {
			return false
		}
		w.fused.agreed = agreement{then: e.then, generation: e.thenGeneration, key: k}
		if beyondBase(w.cache.MaskOf(e.then)) {
			w.fused.agreed.key = nil
		}
	}
	state, ok := t.tracker.Fast(&w.batch, &w.batch.Frames[i], e.ref, e.dir, &t.request, w.now)
	if !ok {
		return false
	}
	w.slots[i] = e.then
	if state != 0 {
		t.rewritten |= 1 << i
		if kind == fuseThen && tunnels(w.cache.Actions(e.then)) {
			// It hashes the key, which behind a look-up is that of the frame as it is.
			w.extractAgain(i)
		}
	}
	return true
}

func tunnels(actions []flowtable.Action) bool {
	for i := range actions {
		if actions[i].Op == flowtable.OpTunnel {
			return true
		}
	}
	return false
}

// agreement is a key of the run in hand that agrees with a second megaflow, so that
// keys like it need no more than a comparison.
type agreement struct {
	then, generation uint32
	key              *flowtable.Key // nil: none
}

// holds tells whether k agrees too: it is like the other in all words that the
// connection does not determine and the megaflow may look at.
func (a *agreement) holds(e *fusedEntry, k *flowtable.Key) bool {
	o := a.key
	if o == nil || a.then != e.then || a.generation != e.thenGeneration {
		return false
	}
	return k[flowtable.WPort]^o[flowtable.WPort]|k[flowtable.WEthDst]^o[flowtable.WEthDst]|
		k[flowtable.WEthSrc]^o[flowtable.WEthSrc]|k[flowtable.WIP]^o[flowtable.WIP]|
		(k[flowtable.WL4]^o[flowtable.WL4])&0xffffffff == 0
}

// beyondBase tells whether a mask looks at words that agreement leaves out.
func beyondBase(mask *flowtable.Key) bool {
	bits := uint64(0)
	for w := flowtable.WTunID; w < flowtable.WCT; w++ {
		bits |= mask[w]
	}
	return bits != 0
}

// overtakes tells whether a frame that waits may be of the same connection.
func (w *Worker) overtakes(i int, waiting uint32) bool {
	k := &w.keys[i]
	for ; waiting != 0; waiting &= waiting - 1 {
		o := &w.keys[bits.TrailingZeros32(waiting)%packet.BatchSize]
		if o[flowtable.WL4] == k[flowtable.WL4] && o[flowtable.WIPv4] == k[flowtable.WIPv4] {
			return true
		}
	}
	return false
}

// executeFused carries the second megaflows out for frames set of a run.
func (w *Worker) executeFused(first, end int, set uint32) {
	w.fused.waiting = w.live &^ set
	w.live = set
	for i := first; i < end; {
		if w.live>>i&1 == 0 {
			i++
			continue
		}
		w.cursor = i
		i = w.executeRun(i, w.slots[i])
	}
	w.live, w.fused.waiting = w.fused.waiting, 0
}

// wantFused notes of frames that went the plain way through tracking which of
// them may have an entry next time; those that need no second look-up get it now.
func (w *Worker) wantFused(order []uint8, slot uint32, kind fuseKind) {
	u, t := &w.fused, &w.tracks
	const want = conntrack.Tracked | conntrack.Established
	const mask = want | conntrack.New | conntrack.Related | conntrack.Invalid
	for _, i := range order {
		i %= packet.BatchSize
		m := &t.metas[i]
		u.wanted &^= 1 << i
		proto := w.batch.Frames[i].Proto
		if m.State&mask != want || m.Drop != packet.DropNone || w.batch.Frames[i].L4 == 0 || proto != packet.ProtoTCP && proto != packet.ProtoUDP {
			continue
		}
		e := fusedEntry{tag: u.tags[i], slot: slot, generation: w.cache.Flow(slot).Generation, then: slot, ref: m.Ref, dir: m.Dir}
		if kind == fuseItself {
			w.putFused(int(i), &e)
			continue
		}
		u.first[i] = e
		u.wanted |= 1 << i
	}
}

// fuse makes the entries of frames whose second look-up has been done.
func (w *Worker) fuse() {
	u := &w.fused
	for set := u.wanted & w.live; set != 0; set &= set - 1 {
		i := bits.TrailingZeros32(set) % packet.BatchSize
		if w.slots[i] == flowtable.NoSlot || w.tracks.rounds[i] != 1 || !untracked(w.cache.Actions(w.slots[i])) {
			continue
		}
		e := &u.first[i]
		e.then, e.thenGeneration = w.slots[i], w.cache.Flow(w.slots[i]).Generation
		w.putFused(i, e)
	}
	u.wanted = 0
}

// putFused enters e: over an entry of the same tag, else over the one that was
// entered before the other.
func (w *Worker) putFused(i int, e *fusedEntry) {
	pair := (*[fusedWays]fusedEntry)(w.fused.entries[w.fused.at[i]:])
	if pair[1].tag == e.tag && pair[1].slot == e.slot {
		pair[1] = *e
		return
	}
	if pair[0].tag != e.tag || pair[0].slot != e.slot {
		pair[1] = pair[0]
	}
	pair[0] = *e
}
