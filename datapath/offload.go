// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/flowtable"
	"weft/port"
)

// This file adds the counts of megaflows that the kernel executes (package offload) to the worker's counts.
// So the control process finds all counts of a megaflow, a port and a worker in one place. To take the
// kernel's counts means to read and reset them.

// offloadEveryNS is the interval in nanoseconds at which a worker reads and resets the kernel's counts of
// flows. A sleeping worker does so when it wakes, at least every maxSleepMS.
const offloadEveryNS = 100_000_000

// kernelFlows is the worker's part in the megaflows and connections that the kernel executes for its ports.
// Its methods read the kernel's counts of megaflows (offload.go), and lend connections to the kernel
// (lend.go). The worker owns it.
type kernelFlows struct {
	sh      *Shared
	cache   *flowtable.Cache
	queues  *queueTable
	tracks  *tracks
	countNS uint64 // time from which "work" takes the counts again
	renewNS uint64 // time from which "work" looks at lent connections again
}

// work is called in each pass of the worker's loop. Every offloadEveryNS, it adds the kernel's counts of all
// megaflows to the worker's counts. Every lendEveryNS, it restarts the timeouts of the connections that the
// kernel forwards.
func (f *kernelFlows) work(now uint64) {
	if f.queues.offloaded == 0 || now < f.countNS && now < f.renewNS {
		return
	}
	counts, renews := now >= f.countNS, now >= f.renewNS
	if counts {
		f.countNS = now + offloadEveryNS
	}
	if renews {
		f.renewNS = now + lendEveryNS
	}
	for at := range f.queues.count {
		q := f.queues.queue(at)
		if counts && q.offloaded != nil {
			for slot, found := q.offloaded.NextOffloaded(0); found; slot, found = q.offloaded.NextOffloaded(slot + 1) {
				f.credit(q, slot, now)
			}
		}
		if renews && q.kernel != nil {
			f.renew(q, now, false)
		}
	}
}

// creditSlot adds the kernel's counts of the megaflow in a slot to the worker's counts. It is called before a
// command removes the megaflow.
func (f *kernelFlows) creditSlot(slot uint32, now uint64) {
	if f.queues.offloaded == 0 {
		return
	}
	for at := range f.queues.count {
		if q := f.queues.queue(at); q.offloaded != nil {
			f.credit(q, slot, now)
		}
	}
}

// credit takes the kernel's counts of a megaflow slot for frames of queue q. It adds them to the counts of
// the megaflow, the ports and the worker. If the megaflow has only tracked the frames, credit adds them only
// to the megaflow's counts, because another megaflow counts them for the ports.
func (f *kernelFlows) credit(q *rxQueue, slot uint32, now uint64) {
	n := q.offloaded.TakeCounts(slot)
	if n.Packets == 0 {
		return
	}
	if flows := f.cache.Flows(); int(slot) < len(flows) && flows[slot].Generation&1 != 0 {
		flow := &flows[slot]
		flow.Packets += n.Packets
		flow.Bytes += n.Bytes
		flow.UsedNS = max(flow.UsedNS, min(n.UsedNS, now))
	}
	if n.Tracked {
		return
	}
	in, out := &f.sh.Ports[q.port%port.MaxPorts], &f.sh.Ports[n.Out%port.MaxPorts]
	in.RxPackets += n.Packets
	in.RxBytes += n.Bytes
	out.TxPackets += n.Packets
	out.TxBytes += n.Bytes + n.Packets*uint64(n.Growth)
	if t := &f.sh.Ports[n.Tunnel%port.MaxPorts]; n.Received {
		in.RxBytes += n.Packets * uint64(n.Outer)
		t.RxPackets += n.Packets
		t.RxBytes += n.Bytes
	} else if n.Tunnel != 0 {
		t.TxPackets += n.Packets
		t.TxBytes += n.Bytes + n.Packets*uint64(n.Growth) - n.Packets*uint64(n.Outer)
	}
	f.sh.Counters.Frames += n.Packets
	f.sh.Counters.MegaflowHits += n.Packets
	f.sh.Counters.OffloadedFrames += n.Packets
}
