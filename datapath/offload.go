// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/port"
)

// This file adds the counts of megaflows that the kernel executes (package offload) to the worker's
// counts, so that control finds all counts of a megaflow, a port and a worker in one place. To take
// the kernel's counts means to read and reset them.

// offloadEveryNS is the interval in nanoseconds at which a worker takes the counts of flows in
// the kernel. A sleeping worker takes them when it wakes, at least every maxSleepMS.
const offloadEveryNS = 100_000_000

// takeOffloaded takes the counts of all megaflows in the kernel every offloadEveryNS.
func (w *Worker) takeOffloaded() {
	if w.queues.offloaded == 0 || w.now < w.offloadNS {
		return
	}
	w.offloadNS = w.now + offloadEveryNS
	for at := range w.queues.count {
		if q := w.queues.queue(at); q.offloaded != nil {
			for slot, found := q.offloaded.NextOffloaded(0); found; slot, found = q.offloaded.NextOffloaded(slot + 1) {
				w.creditOffloaded(q, slot)
			}
		}
	}
}

// takeLastOffloaded takes all counts of a queue that the worker is about to give up, and also those of
// megaflows that the kernel no longer has.
func (w *Worker) takeLastOffloaded(q *rxQueue) {
	for slot := range q.offloaded.OffloadSlots() {
		w.creditOffloaded(q, slot)
	}
}

// creditOffloadedSlot takes the counts of the megaflow in a slot, before a command removes the megaflow.
func (w *Worker) creditOffloadedSlot(slot uint32) {
	if w.queues.offloaded == 0 {
		return
	}
	for at := range w.queues.count {
		if q := w.queues.queue(at); q.offloaded != nil {
			w.creditOffloaded(q, slot)
		}
	}
}

// creditOffloaded takes the kernel's counts of a megaflow slot for frames of queue q. It adds them to the
// counts of the megaflow, the ports and the worker.
func (w *Worker) creditOffloaded(q *rxQueue, slot uint32) {
	n := q.offloaded.TakeCounts(slot)
	if n.Packets == 0 {
		return
	}
	if flows := w.cache.Flows(); int(slot) < len(flows) && flows[slot].Generation&1 != 0 {
		f := &flows[slot]
		f.Packets += n.Packets
		f.Bytes += n.Bytes
		f.UsedNS = max(f.UsedNS, min(n.UsedNS, w.now))
	}
	if n.Tracked {
		return
	}
	in, out := &w.sh.Ports[q.port%port.MaxPorts], &w.sh.Ports[n.Out%port.MaxPorts]
	in.RxPackets += n.Packets
	in.RxBytes += n.Bytes
	out.TxPackets += n.Packets
	out.TxBytes += n.Bytes + n.Packets*uint64(n.Growth)
	if t := &w.sh.Ports[n.Tunnel%port.MaxPorts]; n.Received {
		in.RxBytes += n.Packets * uint64(n.Outer)
		t.RxPackets += n.Packets
		t.RxBytes += n.Bytes
	} else if n.Tunnel != 0 {
		t.TxPackets += n.Packets
		t.TxBytes += n.Bytes + n.Packets*uint64(n.Growth) - n.Packets*uint64(n.Outer)
	}
	w.sh.Counters.Frames += n.Packets
	w.sh.Counters.MegaflowHits += n.Packets
	w.sh.Counters.OffloadedFrames += n.Packets
}
