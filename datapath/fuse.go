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

// This file fuses connections. Each frame of an established connection needs three
// decisions: the megaflow before tracking, the tracker, and the megaflow after
// tracking. The worker stores the combined result with the connection as a hint: two
// megaflows for each direction. A frame with a valid hint needs one look-up, among the
// connections. A hint is valid if:
//
//   - Both megaflows are unchanged (slot and generation).
//   - The connection's generation is unchanged, the frame has the connection's tuple,
//     and the frame leaves the connection established (Tracker.Fast of conntrack).
//   - The frame's key agrees with both megaflows in every bit that the connection does
//     not determine.
//
// Each use of a hint checks these conditions, so no change has to invalidate a hint.
// Both megaflows still count the frame. To keep frames in order, a frame is not fused
// if an earlier frame of its connection in the batch is not.
//
// If most frames of a queue's last batch were fused, the worker looks up the next batch
// among the connections first.

// pair has two megaflows: the megaflow before connection tracking and the megaflow
// after it.
type pair struct {
	slot, generation         uint32 // megaflow before tracking
	second, secondGeneration uint32 // megaflow after tracking; equal to slot if there is none
	serial                   uint32
	output                   uint32 // output port if the actions after tracking are one output; else 0
	tunnels                  bool   // actions of the second megaflow contain a tunnel
	beyondAgreement          bool   // see the function beyondAgreement
	translates               bool   // ct action of slot has nat
	_                        [5]byte
}

// defaultFused is the default number of megaflow pairs that a worker stores for fused
// connections. It is a power of two. A new pair replaces the oldest. The pairs take 1.5
// MB; the hints (references to pairs) of 1,000,000 connections take 16 MB.
const defaultFused = 1 << 16

// fuseKind says how an action list can be fused with connection tracking (see the start
// of fuse.go).
type fuseKind uint8

const (
	fuseNot    fuseKind = iota
	fuseThen            // tracking, then a second look-up
	fuseItself          // tracking, then actions that ignore its result
)

// tupleBits are the key bits that the connection's tuple determines. knownBits are
// the key bits that a valid hint determines.
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

// fused is the worker's state for fused connections (frames that skip the look-ups
// before and after tracking).
type fused struct {
	region *shm.Region
	// hints by connection number; the Tag of a hint is the serial number of a pair
	hints  []conntrack.Hints
	pairs  []pair   // by the low bits of the pair's serial
	recent []uint32 // serial numbers of recently stored pairs, by the hash of both slots
	last   uint32   // serial of the newest pair

	waiting  uint32            // set of frames that are executed after the fused ones
	hintless uint32            // set of frames that still need a hint
	found    uint32            // set of frames with a valid hint
	settled  conntrack.Settled // result of the last search for hints
	agreed   agreement
	hits     uint64                   // number of frames that were fused
	serials  [packet.BatchSize]uint32 // serial of each frame in found
	ends     [packet.BatchSize]conntrack.Ends
	first    [packet.BatchSize]begun // state of each frame in hintless
}

// begun is the state of a frame between tracking and its second look-up.
type begun struct {
	slot, generation uint32
	ref              conntrack.Ref
	dir              uint8
}

// kindOf returns how an action list can be fused with connection tracking. Its first n
// elements are a ct action.
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

// openFused allocates the hints for n connections. They are in mapped memory, which the
// garbage collector does not scan.
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

// seekHints looks up the frames of frameSet among the connections of a zone. It returns the
// set of frames that have a valid hint (two megaflows stored with the connection).
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

// hinted returns the set of frames in the list order that have a valid hint. For frames
// in the set equalKeys, the keys are known to match and are not compared.
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

// agrees reports whether key k matches both megaflows of the pair with this serial
// number. If it does, agrees stores this fact in u.agreed.
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

// runFused tracks those frames of a run that have a valid hint, and returns their set.
// The run consists of the live frames from index firstIndex to end-1. slot is their
// megaflow.
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

// follows tracks frame i with the hint of its connection. It returns false if the hint
// cannot be used. waiting is the set of earlier frames that have no valid hint.
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
		w.lend(i, p)
	}
	if state != 0 {
		t.rewritten |= 1 << i
		if p.tunnels && p.second != slot {
			// The tunnel action hashes the key, so the key must show the translated
			// header.
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

// agreement has the words of a key that matched both megaflows of a pair. A later key
// with the same words matches, too, and needs no comparison under the masks.
type agreement struct {
	serial uint32 // serial number of the pair of megaflows; 0: nothing is stored
	words  [5]uint64
}

// The method set stores the words of key k, which matches both megaflows of pair p. It
// stores nothing if p depends on other words.
func (a *agreement) set(p *pair, k *flowtable.Key) {
	if a.serial = p.serial; p.beyondAgreement {
		a.serial = 0
	}
	a.words = [5]uint64{k[flowtable.WPort], k[flowtable.WEthDst], k[flowtable.WEthSrc], k[flowtable.WIP], k[flowtable.WL4] & 0xffffffff}
}

// The method like reports whether the relevant words of key k equal the stored words.
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

// overtakes reports whether frame i may belong to the same connection as a frame of the
// set waiting. If it were fused, it would overtake that frame.
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

// executeFused executes the actions of the second megaflow (after tracking) on the
// frames of set.
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

// wantFused prepares hints for the frames that were tracked without a hint.
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

// fuse stores hints for the frames in fused.hintless, when their second look-up is done.
func (w *Worker) fuse() {
	u := &w.fused
	for set := u.hintless & w.live; set != 0; set &= set - 1 {
		i := bits.TrailingZeros32(set) % packet.BatchSize
		if w.slots[i] == flowtable.NoSlot || w.tracks.rounds[i] != 1 {
			continue
		}
		// The record of a frame for the controller needs the key with the connection's
		// tuple, which fused frames do not have.
		if actions := w.cache.Actions(w.slots[i]); !untracked(actions) || controls(actions) {
			continue
		}
		w.hint(i, w.slots[i], w.cache.Flow(w.slots[i]).Generation)
	}
	u.hintless = 0
}

// The method hint stores a hint (two megaflows) for the connection and the direction of
// frame i.
func (w *Worker) hint(i int, second, secondGeneration uint32) {
	u, f := &w.fused, &w.fused.first[i%packet.BatchSize]
	serial := w.serialOf(&pair{slot: f.slot, generation: f.generation, second: second, secondGeneration: secondGeneration})
	u.hints[f.ref.Number&uint32(len(u.hints)-1)][f.dir&1] = conntrack.Hint{Tag: serial, Generation: f.ref.Generation}
}

// serialOf returns the serial number of pair p. If p is new, it stores p first.
func (w *Worker) serialOf(p *pair) uint32 {
	u := &w.fused
	wrap := uint32(len(u.pairs) - 1)
	recent := &u.recent[(p.slot*0x9e3779b1^p.second*0x85ebca77)>>7&wrap]
	if o := &u.pairs[*recent&wrap]; o.serial == *recent && o.slot == p.slot && o.generation == p.generation &&
		o.second == p.second && o.secondGeneration == p.secondGeneration && o.serial != 0 {
		return o.serial
	}
	if u.last++; u.last == 0 { // serial numbers repeat after 4 billion pairs, so all hints are cleared
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
