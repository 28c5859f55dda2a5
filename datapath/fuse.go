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

// This file replaces three look-ups of a frame by one. Without it, each frame of an established connection
// needs a look-up of the megaflow before tracking, of the connection, and of the megaflow after tracking. The
// worker stores the two megaflows as a pair. For each direction of a connection it stores a reference to a
// pair, the hint. A frame with a valid hint needs only the look-up of the connection. A hint is valid if:
//
//   - Both megaflows are unchanged (slot and generation).
//   - The connection's generation is unchanged, the frame has the connection's tuple, and the frame leaves
//     the connection established (Tracker.Fast of conntrack).
//   - The frame's key agrees with both megaflows in every bit that the connection does not determine.
//
// Each use of a hint checks these conditions, so no change has to invalidate a hint. Both megaflows still
// count the frame. A frame is called fused if the worker uses its hint. If an earlier frame of the same
// connection in the batch is not fused, the later one is not fused either, so that the frames stay in order.
//
// If at least half of the frames of a queue's last batch were fused, the worker looks up the next batch among
// the connections first (sweep.go).

// pair has two megaflows with their generations: the megaflow before connection tracking and the
// megaflow after it.
type pair struct {
	slot, generation         uint32 // megaflow before tracking
	second, secondGeneration uint32 // megaflow after tracking; equal to slot if there is none
	serial                   uint32 // number of the pair, from 1 on; hints name the pair by it
	output                   uint32 // output port if the actions after tracking are one output; else 0
	tunnels                  bool   // the actions after tracking contain OpTunnel
	beyondAgreement          bool   // an agreement cannot cover the pair, see the function beyondAgreement
	translates               bool   // the ct action of the first megaflow has nat
	_                        [5]byte
}

// defaultFused is the default number of pairs of megaflows that a worker stores for established connections.
// It is a power of two. A new pair replaces the oldest. The pairs take 2 MB. For 1,000,000 connections, the
// references to pairs (hints) take 16 MB.
const defaultFused = 1 << 16

// fuseKind says whether and how the worker can replace the look-ups for an action list that begins with ct
// (see the start of this file).
type fuseKind uint8

const (
	fuseNot    fuseKind = iota
	fuseThen            // tracking, then a second look-up, which finds the second megaflow of the pair
	fuseItself          // tracking, then the other actions of the same list: there is no second megaflow
)

// A hint is a pair of megaflows that is stored with a connection. A look-up by a hint does not compare all
// bits of the key with the megaflows. For the first megaflow it omits tupleBits, which the connection's tuple
// determines. For the second one it omits knownBits: tupleBits, recirc_id and the ct_* fields, which the hint
// determines.
var knownBits, tupleBits = func() (k, t flowtable.Key) {
	t[flowtable.WIP] = 0xff << 56
	t[flowtable.WIPv4] = ^uint64(0)
	t[flowtable.WL4] = 0xffffffff << 32
	for w := flowtable.WIPv6Src; w < flowtable.WTunID; w++ {
		t[w] = ^uint64(0)
	}
	k = t
	k[flowtable.WPort] = 0xffffffff // recirc_id
	for w := flowtable.WCT; w < flowtable.KeyWords; w++ {
		k[w] = ^uint64(0)
	}
	return k, t
}()

// fused is the worker's state for fused connections, whose frames skip the look-ups before and after
// tracking. Sets of frames have one bit for each frame of the batch.
type fused struct {
	region *shm.Region
	// hints of each connection; index: number of the connection. The Tag of a hint is the serial number of a
	// pair of megaflows.
	hints  []conntrack.Hints
	pairs  []pair   // index: low bits of the pair's serial
	recent []uint32 // serials of recently stored pairs; index: hash of both slots
	last   uint32   // serial of the newest pair

	waiting  uint32            // frames that are executed after the fused ones
	hintless uint32            // frames that get a hint after their second look-up
	found    uint32            // frames with a valid hint that are not sent yet
	settled  conntrack.Settled // result of the last search for hints
	agreed   agreement
	hits     uint64                   // number of frames that were fused
	serials  [packet.BatchSize]uint32 // serial of the pair of each frame in found
	ends     [packet.BatchSize]conntrack.Ends
	first    [packet.BatchSize]begun // state of each frame in hintless
}

// begun has the data of a tracked frame that a hint for its connection needs: the megaflow before tracking,
// the connection and the direction.
type begun struct {
	slot, generation uint32
	ref              conntrack.Ref
	dir              uint8
}

// kindOf returns the fuseKind of an action list. The first n elements of the list are a ct action.
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

// untracked reports whether an action list has no ct action and no look-up.
func untracked(actions []flowtable.Action) bool {
	for i := range actions {
		switch actions[i].Op {
		case flowtable.OpCT, flowtable.OpCTClear, flowtable.OpRecirc:
			return false
		}
	}
	return true
}

// controls reports whether an action list sends frames to the controller.
func controls(actions []flowtable.Action) bool {
	for i := range actions {
		if actions[i].Op == flowtable.OpController {
			return true
		}
	}
	return false
}

// openFused allocates the pairs of megaflows, and for n connections the hints (references to pairs). They are
// in mapped memory, which the garbage collector does not scan. Close frees them.
func (w *Worker) openFused(n int) error {
	pairs := w.config.Fused
	if pairs == 0 {
		pairs = defaultFused
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

// seekHints looks up the frames of frameSet among the connections of a conntrack zone, except for frames
// that were looked up before. It returns the set of those frames of frameSet that have a valid hint
// (two megaflows stored with the connection).
func (w *Worker) seekHints(frameSet uint32, zone uint16) uint32 {
	u, tr := &w.fused, w.tracks.tracker
	order, lines := tr.SeekFlows(&w.batch, frameSet, zone)
	if len(order) > 0 {
		cpu.Prefetch(&u.hints[0], lines[:len(order)])
		sought := uint32(0)
		for _, i := range order {
			sought |= 1 << i
		}
		u.found = u.found&^sought | w.hinted(order, 0)
	}
	return u.found & frameSet
}

// hinted returns the set of frames in the list "order" that have a valid hint (a pair of megaflows stored
// with their connection). u.agreed has key words that match both megaflows of one pair. equalKeys is the set
// of frames whose keys have these words. If the hint of such a frame is the same pair, its key needs no
// further comparison.
func (w *Worker) hinted(order []uint8, equalKeys uint32) (set uint32) {
	u, a := &w.fused, &w.fused.agreed
	u.settled = w.tracks.tracker.SettleAll(order, u.hints, &u.serials, a.serial, w.now)
	set = u.settled.Hinted
	for left := set &^ (u.settled.Usual & equalKeys); left != 0; left &= left - 1 {
		i := bits.TrailingZeros32(left) % packet.BatchSize
		k, serial := &w.keys[i], u.serials[i]
		if !(a.serial == serial && a.like(k) || w.agrees(serial, k)) {
			set &^= 1 << i
		}
	}
	return set
}

// agrees reports whether key k matches both megaflows of the pair with this serial number: the megaflow
// before and that after tracking. If it does, agrees stores the key's words in u.agreed for the next frames.
func (w *Worker) agrees(serial uint32, k *flowtable.Key) bool {
	u := &w.fused
	p := &u.pairs[serial&uint32(len(u.pairs)-1)]
	if p.serial != serial || !w.cache.Agrees(p.slot, p.generation, k, &tupleBits) ||
		p.second != p.slot && !w.cache.Agrees(p.second, p.secondGeneration, k, &knownBits) {
		return false
	}
	u.agreed.set(p, k)
	return true
}

// runFused tracks those frames of a run that have a valid hint (two megaflows stored with the connection),
// and returns the set of these frames. A run consists of consecutive frames with the same megaflow: here the
// live frames from index firstIndex to end-1. slot is this megaflow.
func (w *Worker) runFused(firstIndex, end int, slot uint32) (tracked uint32) {
	u, t := &w.fused, &w.tracks
	run := w.live & (allOf(end) &^ allOf(firstIndex))
	found := w.seekHints(run, t.request.Zone)
	waiting := t.repeats
	for set := run; set != 0; set &= set - 1 {
		i := bits.TrailingZeros32(set) % packet.BatchSize
		if found>>i&1 != 0 && w.follows(i, slot, waiting) {
			tracked |= 1 << i
			u.hits++
		} else {
			waiting |= 1 << i
		}
	}
	if 2*bits.OnesCount32(tracked) >= w.batch.N {
		w.rxInUse.fuses, w.rxInUse.zone = true, t.request.Zone
	}
	return tracked
}

// follows tracks frame i by the hint of its connection (a pair of megaflows) and sets the frame's megaflow to
// the second one, for the actions after tracking. It returns false if the hint cannot be used. waiting is the
// set of earlier frames that are executed after the frames with a hint.
func (w *Worker) follows(i int, slot, waiting uint32) bool {
	if waiting != 0 && w.overtakes(i, waiting) {
		return false
	}
	u, t := &w.fused, &w.tracks
	p := &u.pairs[u.serials[i]&uint32(len(u.pairs)-1)]
	if p.serial != u.serials[i] || p.slot != slot {
		return false // the pair was replaced in the meantime, or belongs to another run
	}
	state, ok := t.tracker.Fast(&w.batch, i, t.request.NAT.Kind != conntrack.NATNone, w.now)
	if !ok {
		return false
	}
	w.slots[i] = p.second
	if w.rxInUse.kernel != nil {
		w.kernelFlows.lend(w.rxInUse, i, &w.keys[i], p)
	}
	if state != 0 {
		t.rewritten |= 1 << i
		if p.tunnels && p.second != slot {
			// The tunnel action hashes the key for the outer source port, so the key must have the
			// translated addresses and ports.
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

// agreement has words of a flow key that matched both megaflows of a pair, that before and that after
// tracking. If a later key has the same words, it matches too, and needs no comparison under the megaflows'
// masks.
type agreement struct {
	serial uint32 // serial of the pair; 0: no words are stored
	words  [5]uint64
}

// The method set stores the words of key k, which matches both megaflows of pair p. If the megaflows also
// match other words of the key, set clears the agreement instead.
func (a *agreement) set(p *pair, k *flowtable.Key) {
	if a.serial = p.serial; p.beyondAgreement {
		a.serial = 0
	}
	a.words = [5]uint64{k[flowtable.WPort], k[flowtable.WEthDst], k[flowtable.WEthSrc], k[flowtable.WIP], k[flowtable.WL4] & 0xffffffff}
}

// The method like reports whether key k has the stored words.
func (a *agreement) like(k *flowtable.Key) bool {
	o := &a.words
	return (k[flowtable.WPort]^o[0])|(k[flowtable.WEthDst]^o[1])|
		(k[flowtable.WEthSrc]^o[2])|(k[flowtable.WIP]^o[3])|(k[flowtable.WL4]&0xffffffff^o[4]) == 0
}

// beyondAgreement reports whether a mask covers key words that an agreement (stored
// words of a matching key) does not have.
func beyondAgreement(mask *flowtable.Key) bool {
	bits := uint64(0)
	for w := flowtable.WTunID; w < flowtable.WCT; w++ {
		bits |= mask[w]
	}
	return bits != 0
}

// overtakes reports whether frame i may belong to the same connection as a frame of the set "waiting". The
// frames of this set are executed later. If frame i were executed by its hint now, it would overtake a frame
// of its connection.
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

// executeFused executes the actions of the second megaflow (after tracking) on the frames of "set", which
// are among those from index "first" to end-1.
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

// wantFused prepares hints (pairs of megaflows for a connection) for frames that were tracked without one.
// Only established TCP and UDP connections get hints. slot is the frames' megaflow before tracking. If the
// action list has no look-up after tracking, wantFused stores the hints at once. Otherwise the function fuse
// stores them after that look-up.
func (w *Worker) wantFused(order []uint8, slot uint32, kind fuseKind) {
	u, t := &w.fused, &w.tracks
	const want = conntrack.Tracked | conntrack.Established
	const mask = want | conntrack.New | conntrack.Related | conntrack.Invalid
	generation := w.cache.Flow(slot).Generation
	for _, i := range order {
		i %= packet.BatchSize
		m := &t.metas[i]
		u.hintless &^= 1 << i
		proto := w.batch.Frames[i].Proto
		if m.State&mask != want || m.Drop != packet.DropNone || w.batch.Frames[i].L4 == 0 || proto != packet.ProtoTCP && proto != packet.ProtoUDP {
			continue
		}
		u.first[i] = begun{slot: slot, generation: generation, ref: m.Ref, dir: m.Dir}
		if kind == fuseItself {
			w.hint(int(i), slot, generation)
			continue
		}
		u.hintless |= 1 << i
	}
}

// fuse stores hints (two megaflows for a connection) for the frames in fused.hintless. It is called right
// after the look-up of these frames that follows their tracking.
func (w *Worker) fuse() {
	u := &w.fused
	for set := u.hintless & w.live; set != 0; set &= set - 1 {
		i := bits.TrailingZeros32(set) % packet.BatchSize
		if w.slots[i] == flowtable.NoSlot || w.tracks.rounds[i] != 1 {
			continue
		}
		// The record of a frame that goes to the controller has the frame's key, with the ct_* fields.
		// The keys of fused frames lack them.
		if actions := w.cache.Actions(w.slots[i]); !untracked(actions) || controls(actions) {
			continue
		}
		w.hint(i, w.slots[i], w.cache.Flow(w.slots[i]).Generation)
	}
	u.hintless = 0
}

// The method hint stores the hint for the connection and the direction of frame i: the megaflow in
// fused.first, which was found before tracking, and the megaflow "second", which was found after it.
func (w *Worker) hint(i int, second, secondGeneration uint32) {
	u, f := &w.fused, &w.fused.first[i%packet.BatchSize]
	serial := w.serialOf(&pair{slot: f.slot, generation: f.generation, second: second, secondGeneration: secondGeneration})
	u.hints[f.ref.Number&uint32(len(u.hints)-1)][f.dir&1] = conntrack.Hint{Tag: serial, Generation: f.ref.Generation}
}

// serialOf returns the serial number of pair p, whose caller has set only slots and generations. If the pair
// is new, serialOf fills in the other fields and stores it.
func (w *Worker) serialOf(p *pair) uint32 {
	u := &w.fused
	wrap := uint32(len(u.pairs) - 1)
	recent := &u.recent[(p.slot*0x9e3779b1^p.second*0x85ebca77)>>7&wrap]
	if o := &u.pairs[*recent&wrap]; o.serial == *recent && o.slot == p.slot && o.generation == p.generation &&
		o.second == p.second && o.secondGeneration == p.secondGeneration && o.serial != 0 {
		return o.serial
	}
	if u.last++; u.last == 0 { // serials repeat after 4 billion pairs, so old hints must go
		clear(u.hints)
		u.last = 1
	}
	actions := w.cache.Actions(p.second)
	p.serial, p.tunnels = u.last, tunnels(actions)
	first := w.cache.Actions(p.slot)
	p.translates = first[0].U32&flowtable.CTNAT != 0
	if p.second == p.slot {
		actions = actions[flowtable.CTRecords(first[0].U32):]
	}
	if len(actions) == 1 && actions[0].Op == flowtable.OpOutput {
		p.output = actions[0].U32
	}
	p.beyondAgreement = beyondAgreement(w.cache.MaskOf(p.slot)) || beyondAgreement(w.cache.MaskOf(p.second))
	u.pairs[u.last&wrap] = *p
	*recent = u.last
	return u.last
}
