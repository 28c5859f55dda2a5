package datapath

import (
	"math/bits"

	"weft/conntrack"
	"weft/flowtable"
	"weft/internal/cpu"
	"weft/internal/shm"
	"weft/packet"
)

// Fused connections. What the megaflow before tracking, the tracker and the
// megaflow behind it decided together for an established connection is remembered
// with the connection: a hint for each direction names a pair of megaflows. A frame
// of such a connection is looked up once, among the connections; the hint stands for
// both look-ups among the flows as long as
//
//   - both megaflows are what they were (slot and generation),
//   - the connection's generation is what it was, the frame has its tuple, and
//     following the frame leaves the connection established (conntrack.Fast),
//   - the frame's key agrees with both megaflows in all that the connection does
//     not determine.
//
// So nothing needs to be told of changes. Statistics of both megaflows go on.
// Frames that come behind another of their connection which takes the plain way
// take it too, so that they stay in order.
//
// The zone is the first megaflow's. Where most frames of a queue's batch were fused,
// those of the next are sought in the same zone before the flow cache is asked, and
// that is asked for the others alone.

// pair is two megaflows. A serial names it until it makes room for another, whose
// serial is higher.
type pair struct {
	slot, generation     uint32 // of the megaflow that tracks
	then, thenGeneration uint32 // of the one behind; slot itself: none is looked up
	serial               uint32
	to                   uint32 // port, if that is all that is left to do behind tracking; else 0
	tunnels              bool   // then has a tunnel among its actions
	beyondAgreement      bool   // one of them looks at words that agreement leaves out
	translates           bool   // the first one's ct action has nat
	_                    [5]byte
}

// DefaultFused is the number of pairs of megaflows that a worker remembers, a power
// of two; 1.5 MB, taken as they are used. The hints of 1,000,000 connections take
// 16 MB.
const DefaultFused = 1 << 16

// fuseKind says which action lists can be fused.
type fuseKind uint8

const (
	fuseNot    fuseKind = iota
	fuseThen            // tracking, and then a further look-up
	fuseItself          // tracking, and then actions that know nothing of it
)

// knownBits are those of a key that a hint determines: what it was made of agreed
// with the second megaflow, and had the same connection and first megaflow.
// tupleBits are those that having the same tuple determines.
var knownBits, tupleBits = func() (k, t flowtable.Key) {
	t[flowtable.WIP] = 0xff << 56
	t[flowtable.WIPv4] = ^uint64(0)
	t[flowtable.WL4] = 0xffffffff << 32
	for w := flowtable.WIPv6Src; w < flowtable.WTunID; w++ {
		t[w] = ^uint64(0)
	}
	k = t
	k[flowtable.WPort] = 0xffffffff // recirc_id: the first megaflow's
	for w := flowtable.WCT; w < flowtable.KeyWords; w++ {
		k[w] = ^uint64(0)
	}
	return k, t
}()

// fused is the hints of a worker, and what they say of the batch in hand.
type fused struct {
	region *shm.Region
	hints  []conntrack.Hints // index: number of the connection; tags are serials
	pairs  []pair            // index: serial
	recent []uint32          // serials, index: hash of the pair
	last   uint32            // serial

	waiting uint32            // frames of the run in hand that are to be executed after it
	wanted  uint32            // frames whose second look-up makes a hint
	found   uint32            // frames that have a hint, as far as they have been sought
	settled conntrack.Settled // of those sought last
	agreed  agreement
	hits    uint64                   // frames that went by a hint
	serials [packet.BatchSize]uint32 // of found
	ends    [packet.BatchSize]conntrack.Ends
	first   [packet.BatchSize]begun // of wanted
}

// begun is a frame that gets a hint once it has been looked up again.
type begun struct {
	slot, generation uint32
	ref              conntrack.Ref
	dir              uint8
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

// openFused makes room for the hints of n connections, in mapped memory, out of the
// collector's count.
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

// seekHints looks the frames of set up in a zone, unless that has been done, and
// returns those that have a hint.
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

// hinted tells which of the frames that are being sought have a hint; alike are those
// whose key agrees like the last one.
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

// agrees tells whether a pair is still there and a frame's key agrees with both its
// megaflows in what the connection does not determine.
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

// runFused takes those frames of a run through tracking that have a hint, and
// returns them. slot is the run's megaflow, whose request has been read.
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

// follows takes frame i through tracking by its hint; false: it must go the plain
// way.
func (w *Worker) follows(i int, slot, waiting uint32) bool {
	if waiting != 0 && w.overtakes(i, waiting) {
		return false
	}
	u, t := &w.fused, &w.tracks
	p := &u.pairs[u.serials[i]&uint32(len(u.pairs)-1)]
	if p.serial != u.serials[i] || p.slot != slot {
		return false // another pair has taken its place, or it is another run
	}
	state, ok := t.tracker.Fast(&w.batch, i, t.request.NAT.Kind != conntrack.NATNone, w.now)
	if !ok {
		return false
	}
	w.slots[i] = p.then
	if state != 0 {
		t.rewritten |= 1 << i
		if p.tunnels && p.then != slot {
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

// agreement is what a key of the batch in hand had that agreed with both megaflows
// of a pair, so that keys like it need no more than a comparison.
type agreement struct {
	serial uint32 // 0: none
	words  [5]uint64
}

// set notes that k agrees with p.
func (a *agreement) set(p *pair, k *flowtable.Key) {
	if a.serial = p.serial; p.beyondAgreement {
		a.serial = 0
	}
	a.words = [5]uint64{k[flowtable.WPort], k[flowtable.WEthDst], k[flowtable.WEthSrc], k[flowtable.WIP], k[flowtable.WL4] & 0xffffffff}
}

// like tells whether k agrees too: it is like the other in all words that the
// connection does not determine and the megaflows may look at.
func (a *agreement) like(k *flowtable.Key) bool {
	o := &a.words
	return (k[flowtable.WPort]^o[0])|(k[flowtable.WEthDst]^o[1])|
		(k[flowtable.WEthSrc]^o[2])|(k[flowtable.WIP]^o[3])|(k[flowtable.WL4]&0xffffffff^o[4]) == 0
}

// beyondAgreement tells whether a mask looks at words that agreement leaves out.
func beyondAgreement(mask *flowtable.Key) bool {
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
// them may have a hint next time; those that need no second look-up get it now.
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

// fuse gives the frames hints whose second look-up has been done.
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

// hint has frames of i's connection and direction fused.
func (w *Worker) hint(i int, then, thenGeneration uint32) {
	u, f := &w.fused, &w.fused.first[i%packet.BatchSize]
	serial := w.serialOf(&pair{slot: f.slot, generation: f.generation, then: then, thenGeneration: thenGeneration})
	u.hints[f.ref.Number&uint32(len(u.hints)-1)][f.dir&1] = conntrack.Hint{Tag: serial, Generation: f.ref.Generation}
}

// serialOf is the serial of a pair, which is kept if it is not there yet.
func (w *Worker) serialOf(p *pair) uint32 {
	u := &w.fused
	wrap := uint32(len(u.pairs) - 1)
	recent := &u.recent[(p.slot*0x9e3779b1^p.then*0x85ebca77)>>7&wrap]
	if o := &u.pairs[*recent&wrap]; o.serial == *recent && o.slot == p.slot && o.generation == p.generation &&
		o.then == p.then && o.thenGeneration == p.thenGeneration && o.serial != 0 {
		return o.serial
	}
	if u.last++; u.last == 0 { // after 4 billion pairs: no hint may be older
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
