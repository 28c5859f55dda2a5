package datapath

import (
	"weft/flowtable"
	"weft/packet"
	"weft/port"
)

// classify finds the megaflow of every frame of the batch; what is malformed, or
// no business of ours, is dropped here.
func (w *Worker) classify(fromUplink bool) {
	b := &w.batch
	w.live, w.tunneled = uint32(1<<b.N-1), 0
	if fromUplink {
		w.decapsulate()
	}
	for i := range b.Frames[:b.N] {
		f := &b.Frames[i]
		if f.Drop == packet.DropNone {
			f.Drop = flowtable.Extract(b, f, &w.keys[i])
		}
		if f.Drop != packet.DropNone {
			w.drop(f, f.Drop)
			w.live &^= 1 << i
		}
	}
	w.lookUp()
}

// decapsulate takes the outer headers off what an uplink received.
func (w *Worker) decapsulate() {
	b := &w.batch
	for i := range b.Frames[:b.N] {
		f := &b.Frames[i]
		if f.Drop != packet.DropNone {
			continue
		}
		if f.Drop = w.ends.Decapsulate(b, f, &w.words[i]); f.Drop != packet.DropNone {
			continue
		}
		w.tunneled |= 1 << i
		p := &w.sh.Ports[f.InPort%port.MaxPorts]
		p.RxPackets++
		p.RxBytes += uint64(f.Len())
	}
}

// lookUp finds the megaflows of the live frames, whose keys are extracted.
func (w *Worker) lookUp() {
	for set, i := w.tunneled&w.live, 0; set != 0; set, i = set>>1, i+1 {
		if set&1 != 0 {
			*w.keys[i].Tunnel() = w.words[i]
		}
	}
	w.lookups = flowtable.LookupCounts{}
	w.cache.Lookup(&w.keys, w.live, &w.slots, &w.lookups)
	c := w.sh.Counters
	c.ExactHits += w.lookups.ExactHits
	c.MegaflowHits += w.lookups.MegaflowHits
	c.MasksSearched += w.lookups.MasksSearched
}
