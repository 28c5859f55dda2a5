// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math/bits"

	"weft/flowtable"
	"weft/packet"
	"weft/port"
)

// lookup has the flow keys of the batch's frames and the megaflows found for them. The function classify
// fills it. If a frame is looked up again (lookAgain), the new result replaces the old one.
type lookup struct {
	keys  [packet.BatchSize]flowtable.Key
	words [packet.BatchSize][flowtable.TunnelWords]uint64 // tunnel words of frames that have any
	// Geneve options of each frame; valid if the tunnel words of the frame's key have a hash of options
	options [packet.BatchSize]flowtable.TunOptions
	slots   [packet.BatchSize]uint32 // slot of the megaflow of each frame, or flowtable.NoSlot
	dirty   uint32                   // set of frames with extended key words, see flowtable.ExtractAll
	lookups flowtable.LookupCounts
}

// decapsulate removes the outer headers of frames from an uplink. It returns the set of
// frames that had a tunnel header. It sets the field Drop of all other frames.
func (w *Worker) decapsulate() (tunneled uint32) {
	b := &w.batch
	for i := range b.Frames[:b.N] {
		f := &b.Frames[i]
		if f.Drop != packet.DropNone {
			continue
		}
		f.Drop = w.terminations.Decapsulate(b, f, &w.words[i], &w.options[i])
		if f.Drop != packet.DropNone && f.Drop != packet.Consumed {
			continue
		}
		tunneled |= 1 << i
		p := &w.sh.Ports[f.InPort%port.MaxPorts]
		p.RxPackets++
		p.RxBytes += uint64(f.Len())
		if f.Drop == packet.Consumed {
			f.Drop = w.receiveBFD(f, &w.words[i])
		}
	}
	return tunneled
}

// classify finds the megaflow of every frame of the batch. It drops malformed frames.
// tunneled is the set of frames that came through a tunnel.
func (w *Worker) classify(tunneled uint32) {
	b := &w.batch
	special := uint32(0)
	w.dirty, special = flowtable.ExtractAll(b, &w.keys, w.dirty)
	for ; special != 0; special &= special - 1 {
		i := bits.TrailingZeros32(special) % packet.BatchSize
		f := &b.Frames[i]
		if f.Undone() && f.Drop == packet.DropNone {
			if f.Drop = w.checkOffload(f); f.Drop == packet.DropNone {
				w.noteCuts(f)
			}
			w.undone |= 1 << i
		}
		if f.Drop != packet.DropNone {
			if f.Drop != packet.Consumed {
				w.drop(f, f.Drop)
			}
			w.live &^= 1 << i
		}
	}
	w.prefetchNext()
	w.lookUp(tunneled & w.live)
}

// lookUp finds the megaflows of the live frames (those not dropped). It first adds the tunnel fields
// in w.words to the keys of the frames in the set tunneled.
func (w *Worker) lookUp(tunneled uint32) {
	w.dirty |= tunneled
	for ; tunneled != 0; tunneled &= tunneled - 1 {
		i := bits.TrailingZeros32(tunneled)
		*w.keys[i].Tunnel() = w.words[i]
	}
	if w.tracks.looped != 0 {
		w.setTracked()
	}
	w.lookups = flowtable.LookupCounts{}
	if w.captures.everyFrame {
		w.captures.lookUp()
	} else {
		found := uint32(0)
		if q := w.rxInUse; q != nil && q.fuses && w.fuses() {
			w.lookups.ExactHits += uint64(w.sweep(q))
			found = w.fused.found
		}
		w.cache.Lookup(&w.keys, w.live&^found, &w.slots, &w.lookups)
	}
	c := w.sh.Counters
	c.ExactHits += w.lookups.ExactHits
	c.MegaflowHits += w.lookups.MegaflowHits
	c.MasksSearched += w.lookups.MasksSearched
}
