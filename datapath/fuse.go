// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math/bits"

	"weft/conntrack"
	"weft/flowtable"
	"weft/internal/cpu"
	"weft/internal/shm"
	"weft/packet"
)

// Fused connections. An established connection takes three decisions for each frame:
// the megaflow before tracking, the tracker, and the megaflow behind tracking. The
// worker remembers their common result with the connection: a hint for each direction
// names a pair of megaflows. A frame of such a connection is looked up once, among
// the connections. Its hint replaces both look-ups among the flows as long as
//
//   - both megaflows are unchanged (slot and generation),
//   - the connection's generation is unchanged, the frame has its tuple, and following
//     the frame leaves the connection established (conntrack.Fast),
//   - the frame's key agrees with both megaflows in every bit that the connection does
//     not determine.
//
// So no change has to invalidate a hint. The statistics of both megaflows are still
// counted. A frame behind another one of its connection that takes the plain way
// takes the plain way too, so that they stay in order.
//
// The zone is the first megaflow's. If most frames of a queue's batch were fused, the
// frames of the next batch are sought in the same zone first, and only the others are
// looked up in the flow cache.

// pair is two megaflows. Its serial names it until a newer pair, with a higher
// serial, replaces it.
type pair struct {
	slot, generation     uint32 // slot and generation of the megaflow with the ct action
	then, thenGeneration uint32 // the same of the megaflow after tracking; if there is none, equal to the first two
	serial               uint32
	to                   uint32 // port, if one output is all that follows tracking; else 0
	tunnels              bool   // actions of then contain a tunnel
	beyondAgreement      bool   // a mask matches words that an agreement does not hold
	translates           bool   // ct action of slot has nat
	_                    [5]byte
}

// DefaultFused is the number of pairs of megaflows that a worker remembers, a power
// of two. The oldest pair is replaced at the limit. Pairs take 1.5 MB, and the hints
// of 1,000,000 connections 16 MB; pages are allocated when they are first used.
const DefaultFused = 1 << 16

// fuseKind is the way in which an action list can be fused.
type fuseKind uint8

const (
	fuseNot    fuseKind = iota
	fuseThen            // tracking, then a second look-up
	fuseItself          // tracking, then actions that do not depend on it
)

// tupleBits are the key bits that an equal tuple determines. knownBits are the bits
// that a valid hint determines: the frame that made the hint agreed with the second
// megaflow and had the same connection and the same first megaflow.
var knownBits, tupleBits = func() (k, t flowtable.Key) {
	t[flowtable.WIP] = 0xff << 56
	t[flowtable.WIPv4] = ^uint64(0)
	t[flowtable.WL4] = 0xffffffff << 32
	for w := flowtable.WIPv6Src; w < flowtable.WTunID; w++ {
		t[w] = ^uint64(0)
	}
	k = t
	k[flowtable.WPort] = 0xffffffff // recirc_id, which the first megaflow determines
	for w := flowtable.WCT; w < flowtable.KeyWords; w++ {
		k[w] = ^uint64(0)
	}
	return k, t
}()

// fused is the hints of a worker, and the hints found for the batch in hand.
type fused struct {
	region *shm.Region
	hints  []conntrack.Hints // hints of the connections; index: number of the connection; their tags are serials
	pairs  []pair            // pairs of megaflows; index: low bits of the serial
	recent []uint32          // serials of recent pairs; index: hash of the pair
	last   uint32            // serial of the newest pair

	waiting uint32            // frames of the run in hand to execute behind the fused ones
	wanted  uint32            // frames that get a hint after their second look-up
	found   uint32            // frames with a hint, among those sought so far
	settled conntrack.Settled // result of the last search for hints
	agreed  agreement
	hits    uint64                   // number of frames that took the fused way
	serials [packet.BatchSize]uint32 // serial of each frame in found
	ends    [packet.BatchSize]conntrack.Ends
	first   [packet.BatchSize]begun // state of each frame in wanted
}

// begun is a frame between its tracking and its second look-up, which gives it a
// hint.
type begun struct {
	slot, generation uint32
	ref              conntrack.Ref
	dir              uint8
}

// kindOf returns how a list can be fused that begins with a ct action of n records.
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

// untracked reports whether a list neither tracks nor looks up again.
func untracked(actions []flowtable.Action) bool {
	for i := range actions {
		switch actions[i].Op {
		case flowtable.OpCT, flowtable.OpCTClear, flowtable.OpRecirc:
			return false
		}
	}
	return true
}

// openFused makes room for the hints of n connections in mapped memory, which the
// garbage collector neither counts nor scans.
func (w *Worker) openFused(n int) error {
	pairs := w.config.Fused
	if pairs == 0 {
		pairs = DefaultFused
	}
	u := &w.fused
	var l shm.Layout
	carve := func() {
		u.hints, u.pairs, u.recent = shm.Carve[conntrack.Hints](&l, n), shm.Carve[pair](&l, pairs), shm.Carve[uint32](&l, pairs)
	}
	carve()
	region, err := shm.Create("fused", l.Off)
	if err != nil {
		return err
	}
	l = shm.Layout{Mem: region.Bytes()}
	carve()
	u.region = region
	return nil
}

// seekHints looks up the frames of set among the connections of a zone, except those
// that were looked up before. It returns the frames of set that have a hint.
func (w *Worker) seekHints(set uint32, zone uint16) uint32 {
	u, tr := &w.fused, w.tracks.tracker
	order, lines := tr.SeekFlows(&w.batch, set, zone)
	if len(order) > 0 {
		cpu.Prefetch(&u.hints[0], lines[:len(order)])
		sought := uint32(0)
		for _, i := range order {
			sought |= 1 << i
		}
		u.found = u.found&^sought | w.hinted(order, 0)
	}
	return u.found & set
}

// hinted returns which of the frames being sought have a valid hint. alike is the set
// of frames whose key agrees with agreed.
func (w *Worker) hinted(order []uint8, alike uint32) (set uint32) {
	u, a := &w.fused, &w.fused.agreed
	u.settled = w.tracks.tracker.SettleAll(order, u.hints, &u.serials, a.serial, w.now)
	set = u.settled.Hinted
	for left := set &^ (u.settled.Usual & alike); left != 0; left &= left - 1 {
		i := bits.TrailingZeros32(left) % packet.BatchSize
		k, serial := &w.keys[i], u.serials[i]
		if !(a.serial == serial && a.like(k) || w.agrees(serial, k)) {
			set &^= 1 << i
		}
	}
	return set
}

// agrees reports whether a pair is still in place and key k agrees with both its
// megaflows in every bit that the connection does not determine. If so, it stores the
// agreement.
func (w *Worker) agrees(serial uint32, k *flowtable.Key) bool {
	u := &w.fused
	p := &u.pairs[serial&uint32(len(u.pairs)-1)]
	if p.serial != serial || !w.cache.Agrees(p.slot, p.generation, k, &tupleBits) ||
		p.then != p.slot && !w.cache.Agrees(p.then, p.thenGeneration, k, &knownBits) {
		return false
	}
	u.agreed.set(p, k)
	return true
}

// runFused tracks those frames of a run that have a usable hint, and returns the set of
// them. The run is the live frames from first to end-1. slot is the run's megaflow,
// whose ct request the caller has read.
func (w *Worker) runFused(first, end int, slot uint32) (done uint32) {
	u, t := &w.fused, &w.tracks
	run := w.live & (allOf(end) &^ allOf(first))
	found := w.seekHints(run, t.request.Zone)
	waiting := t.again
	for set := run; set != 0; set &= set - 1 {
		i := bits.TrailingZeros32(set) % packet.BatchSize
		if found>>i&1 != 0 && w.follows(i, slot, waiting) {
			done |= 1 << i
			u.hits++
		} else {
			waiting |= 1 << i
		}
	}
	if 2*bits.OnesCount32(done) >= w.batch.N {
		w.rxInUse.fuses, w.rxInUse.zone = true, t.request.Zone
	}
	return done
}

// follows tracks frame i by its hint. It reports false if the frame must be looked up
// without the hint. waiting is the set of earlier frames to be tracked without one.
func (w *Worker) follows(i int, slot, waiting uint32) bool {
	if waiting != 0 && w.overtakes(i, waiting) {
		return false
	}
	u, t := &w.fused, &w.tracks
	p := &u.pairs[u.serials[i]&uint32(len(u.pairs)-1)]
	if p.serial != u.serials[i] || p.slot != slot {
		return false // the pair was replaced, or belongs to another run
	}
	state, ok := t.tracker.Fast(&w.batch, i, t.request.NAT.Kind != conntrack.NATNone, w.now)
	if !ok {
		return false
	}
	w.slots[i] = p.then
	if state != 0 {
		t.rewritten |= 1 << i
		if p.tunnels && p.then != slot {
			// The tunnel hashes the key, and a plain second look-up would have
			// extracted the translated frame.
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

// agreement holds words of a key of the batch in hand that agreed with both megaflows
// of a pair. A key with equal words agrees too, at the cost of a comparison.
type agreement struct {
	serial uint32 // serial of the pair; 0: no agreement
	words  [5]uint64
}

// set records that k agrees with p. It records nothing if a mask of p matches words
// that an agreement does not hold.
func (a *agreement) set(p *pair, k *flowtable.Key) {
	if a.serial = p.serial; p.beyondAgreement {
		a.serial = 0
	}
	a.words = [5]uint64{k[flowtable.WPort], k[flowtable.WEthDst], k[flowtable.WEthSrc], k[flowtable.WIP], k[flowtable.WL4] & 0xffffffff}
}

// like reports whether k is equal in all words that the connection does not determine
// and that the megaflows may match.
func (a *agreement) like(k *flowtable.Key) bool {
	o := &a.words
	return (k[flowtable.WPort]^o[0])|(k[flowtable.WEthDst]^o[1])|
		(k[flowtable.WEthSrc]^o[2])|(k[flowtable.WIP]^o[3])|(k[flowtable.WL4]&0xffffffff^o[4]) == 0
}

// beyondAgreement reports whether a mask matches words that an agreement does not
// hold.
func beyondAgreement(mask *flowtable.Key) bool {
	bits := uint64(0)
	for w := flowtable.WTunID; w < flowtable.WCT; w++ {
		bits |= mask[w]
	}
	return bits != 0
}

// overtakes reports whether a waiting frame may belong to the connection of frame i.
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

// executeFused executes the second megaflows of the frames in set, which belong to a
// run.
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

// wantFused prepares hints for frames that took the plain way through tracking.
// Frames that need no second look-up get their hint now, the others after it.
func (w *Worker) wantFused(order []uint8, slot uint32, kind fuseKind) {
	u, t := &w.fused, &w.tracks
	const want = conntrack.Tracked | conntrack.Established
	const mask = want | conntrack.New | conntrack.Related | conntrack.Invalid
	generation := w.cache.Flow(slot).Generation
	for _, i := range order {
		i %= packet.BatchSize
		m := &t.metas[i]
		u.wanted &^= 1 << i
		proto := w.batch.Frames[i].Proto
		if m.State&mask != want || m.Drop != packet.DropNone || w.batch.Frames[i].L4 == 0 || proto != packet.ProtoTCP && proto != packet.ProtoUDP {
			continue
		}
		u.first[i] = begun{slot: slot, generation: generation, ref: m.Ref, dir: m.Dir}
		if kind == fuseItself {
			w.hint(int(i), slot, generation)
			continue
		}
		u.wanted |= 1 << i
	}
}

// fuse gives hints to the frames in wanted, after their second look-up.
func (w *Worker) fuse() {
	u := &w.fused
	for set := u.wanted & w.live; set != 0; set &= set - 1 {
		i := bits.TrailingZeros32(set) % packet.BatchSize
		if w.slots[i] == flowtable.NoSlot || w.tracks.rounds[i] != 1 || !untracked(w.cache.Actions(w.slots[i])) {
			continue
		}
		w.hint(i, w.slots[i], w.cache.Flow(w.slots[i]).Generation)
	}
	u.wanted = 0
}

// hint stores a hint for the connection and direction of frame i.
func (w *Worker) hint(i int, then, thenGeneration uint32) {
	u, f := &w.fused, &w.fused.first[i%packet.BatchSize]
	serial := w.serialOf(&pair{slot: f.slot, generation: f.generation, then: then, thenGeneration: thenGeneration})
	u.hints[f.ref.Number&uint32(len(u.hints)-1)][f.dir&1] = conntrack.Hint{Tag: serial, Generation: f.ref.Generation}
}

// serialOf returns the serial of pair p, and stores p if it is not there yet.
func (w *Worker) serialOf(p *pair) uint32 {
	u := &w.fused
	wrap := uint32(len(u.pairs) - 1)
	recent := &u.recent[(p.slot*0x9e3779b1^p.then*0x85ebca77)>>7&wrap]
	if o := &u.pairs[*recent&wrap]; o.serial == *recent && o.slot == p.slot && o.generation == p.generation &&
		o.then == p.then && o.thenGeneration == p.thenGeneration && o.serial != 0 {
		return o.serial
	}
	if u.last++; u.last == 0 { // after 4 billion pairs: no hint may carry an old serial again
		clear(u.hints)
		u.last = 1
	}
	actions := w.cache.Actions(p.then)
	p.serial, p.tunnels = u.last, tunnels(actions)
	first := w.cache.Actions(p.slot)
	p.translates = first[0].U32&flowtable.CTNAT != 0
	if p.then == p.slot {
		actions = actions[flowtable.CTRecords(first[0].U32):]
	}
	if len(actions) == 1 && actions[0].Op == flowtable.OpOutput {
		p.to = actions[0].U32
	}
	p.beyondAgreement = beyondAgreement(w.cache.MaskOf(p.slot)) || beyondAgreement(w.cache.MaskOf(p.then))
	u.pairs[u.last&wrap] = *p
	*recent = u.last
	return u.last
}
