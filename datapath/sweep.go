// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math/bits"

	"weft/flowtable"
	"weft/internal/cpu"
	"weft/packet"
	"weft/port"
)

// sweep looks up the frames of the batch among the tracked connections, before the flow cache is
// asked. It returns the number of frames that have a hint (megaflows stored with the connection).
// It sends the first frames of the batch at once if their hints lead to a single output. For all
// other frames with a hint, it sets the megaflow in w.slots.
func (w *Worker) sweep(q *rxQueue) (count int) {
	u := &w.fused
	u.agreed = q.agreed
	w.keepAgreement()
	order, lines, alike := w.seekLive(q.zone)
	cpu.Prefetch(&u.hints[0], lines[:len(order)])
	u.found = w.hinted(order, alike)
	q.agreed = u.agreed
	at := 0
	if !q.tunnel { // frames from a tunnel are left to executeRun, which may merge them into large frames
		at = w.sweepOut(order)
	}
	for _, i := range order[at:] {
		i %= packet.BatchSize
		if u.found>>i&1 != 0 {
			w.slots[i] = u.pairs[u.serials[i]&uint32(len(u.pairs)-1)].slot
		}
	}
	count = at + bits.OnesCount32(u.found)
	if 2*count < bits.OnesCount32(w.live)+at {
		q.fuses = false
	}
	return count
}

// keepAgreement discards u.agreed, the stored key words that match both megaflows of a pair, if one of the
// two megaflows has changed since.
func (w *Worker) keepAgreement() {
	u := &w.fused
	p := &u.pairs[u.agreed.serial&uint32(len(u.pairs)-1)]
	if p.serial != u.agreed.serial || w.cache.Flow(p.slot).Generation != p.generation || w.cache.Flow(p.second).Generation != p.secondGeneration {
		u.agreed.serial = 0
	}
}

// seekLive begins the look-up of the live frames (not dropped) among the connections of a conntrack zone.
// order lists the frames that can be looked up. For each of them, "lines" has the number of its likely
// connection, for a prefetch of hints. equalKeys is the set of frames whose keys have the words in u.agreed.
func (w *Worker) seekLive(zone uint16) (order []uint8, lines *[packet.BatchSize]uint32, equalKeys uint32) {
	u, tr := &w.fused, w.tracks.tracker
	a := &u.agreed
	o0, o1, o2, o3, o4 := a.words[0], a.words[1], a.words[2], a.words[3], a.words[4]
	for live := w.live; live != 0; live &= live - 1 {
		i := bits.TrailingZeros32(live) % packet.BatchSize
		k := &w.keys[i]
		dst, ip, l4 := k[flowtable.WEthDst], k[flowtable.WIP], k[flowtable.WL4]
		if dst&0xffff != packet.EtherTypeIPv4 || ip>>56 != packet.ProtoTCP && ip>>56 != packet.ProtoUDP || ip>>32&0xff != 0 {
			// SeekEnds takes only unfragmented TCP and UDP over IPv4. SeekFlows skips frames that it cannot look up.
			order, lines = tr.SeekFlows(&w.batch, w.live, zone)
			return order, lines, 0
		}
		if (k[flowtable.WPort]^o0)|(dst^o1)|(k[flowtable.WEthSrc]^o2)|(ip^o3)|(l4&0xffffffff^o4) == 0 {
			equalKeys |= 1 << i
		}
		e := &u.ends[i]
		e.Addresses, e.Rest = k[flowtable.WIPv4], l4>>32<<32|ip>>56<<8
	}
	order, lines = tr.SeekEnds(w.live, &u.ends, zone)
	return order, lines, equalKeys
}

// sweepOut sends frames from the start of the list "order". It stops at the first frame without a valid hint
// (two megaflows stored with its connection), or whose hint does not lead to a single output. It returns the
// number of frames sent.
func (w *Worker) sweepOut(order []uint8) (sent int) {
	u := &w.fused
	for sent < len(order) {
		n := w.sweepRun(order[sent:])
		if n == 0 {
			break
		}
		sent += n
	}
	u.hits += uint64(sent)
	return sent
}

// sweepRun sends frames from the start of the list "order" that have the same hint: the pair of megaflows
// stored with their connection. It stops at the first frame with another hint, and returns the number of
// frames sent. It returns 0 if the first frame has no valid hint, or if the actions after tracking are not a
// single output.
func (w *Worker) sweepRun(order []uint8) int {
	u := &w.fused
	serial := u.serials[order[0]%packet.BatchSize]
	other := w.live &^ u.found
	if serial == u.settled.Expected {
		other |= w.live &^ u.settled.Usual
	} else {
		for set := u.found; set != 0; set &= set - 1 {
			if i := bits.TrailingZeros32(set) % packet.BatchSize; u.serials[i] != serial {
				other |= 1 << i
				break
			}
		}
	}
	run := w.live & (other&-other - 1) // live frames before the first one with another hint or none
	p := &u.pairs[serial&uint32(len(u.pairs)-1)]
	out := &w.ports[p.output%port.MaxPorts]
	if run == 0 || p.serial != serial || out.tx == nil {
		return 0
	}
	w.touch(out)
	n := bits.OnesCount32(run)
	if int(out.count)+n > packet.BatchSize {
		w.sendPending(out)
	}
	if p.translates || run&^u.settled.Quick != 0 {
		if sent := w.tracks.tracker.FastAll(&w.batch, order[:n], u.settled.Quick, p.translates, w.now); sent < n {
			n, run = sent, 0
			for _, i := range order[:n] {
				run |= 1 << i
			}
		}
	}
	if w.rxInUse.kernel != nil {
		for _, i := range order[:n] {
			i %= packet.BatchSize
			w.kernelFlows.lend(w.rxInUse, int(i), &w.keys[i], p)
		}
	}
	bytes, count := 0, out.count
	for _, i := range order[:n] {
		i %= packet.BatchSize
		out.pending[count%packet.BatchSize] = i
		count++
		bytes += w.batch.Frames[i].Len()
	}
	out.count = count
	w.countPair(p, uint64(n), uint64(bytes))
	w.live &^= run
	u.found &^= run
	return n
}

// countPair adds frames to the statistics of both megaflows of pair p (before and after
// tracking).
func (w *Worker) countPair(p *pair, packets, bytes uint64) {
	if packets == 0 {
		return
	}
	for _, slot := range [2]uint32{p.slot, p.second} {
		flow := w.cache.Flow(slot)
		flow.Packets += packets
		flow.Bytes += bytes
		flow.UsedNS = w.now
		if p.second == p.slot {
			return
		}
	}
}
