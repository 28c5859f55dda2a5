// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/conntrack"
	"weft/flowtable"
)

// This file lends connections to the kernel: BPF programs of the kernel then forward the frames of a lent
// connection, by the same pair of megaflows as in fuse.go. To take a connection back means that its frames
// come to the worker again. A conntrack.Kernel is the memory in which the BPF programs of a port find its
// lent connections. Only the first receive queue of a port has one, so frames of other queues do not cause a
// connection to be lent.

const (
	// lendEveryNS is the interval in nanoseconds at which a worker restarts the timeouts of those connections
	// for which the kernel has forwarded frames. A sleeping worker does so when it wakes up, at least every
	// maxSleepMS.
	lendEveryNS = 1_000_000_000
	// maxLentIdle is a number of intervals of lendEveryNS. If the kernel has forwarded no frame of a connection
	// for so long, the worker takes the connection back from the kernel.
	maxLentIdle = 30
)

// lend lends the connection of frame number i of queue q to the kernel. The frame has the key "key", and the
// worker has just used the pair p of megaflows for it. lend does nothing if the kernel does not execute both
// megaflows.
func (f *kernelFlows) lend(q *rxQueue, i int, key *flowtable.Key, p *pair) {
	first, second := conntrack.Stage{Slot: p.slot, Serial: q.kernel.Serial(p.slot)}, conntrack.Stage{Slot: p.second, Serial: q.kernel.Serial(p.second)}
	if first.Serial == 0 || second.Serial == 0 || q.tunnel && key[flowtable.WTunIPv4] == 0 {
		return
	}
	scope := uint32(key[flowtable.WEthSrc] & (flowtable.VLANPresent | flowtable.VLANID))
	if q.tunnel {
		scope = uint32(key[flowtable.WTunID])
	}
	f.tracks.tracker.Lend(i, q.kernelNumber, conntrack.Lease{Scope: scope, Translates: p.translates, First: first, Second: second})
}

// openQueue prepares the lending of connections of queue q, if the port can have connections in the kernel.
// It takes back connections that an earlier engine process has lent.
func (f *kernelFlows) openQueue(q *rxQueue, now uint64) {
	k, is := q.rx.(conntrack.Kernel)
	if !is || f.tracks.tracker == nil {
		return
	}
	q.kernel, q.kernelNumber = k, f.tracks.tracker.AddKernel(k)
	f.renew(q, now, true)
}

// closeQueue is called before the worker gives up queue q. It takes back the connections of the queue that
// are lent to the kernel. It also adds the kernel's last counts of megaflows to the worker's counts, even
// those of megaflows that the kernel no longer executes.
func (f *kernelFlows) closeQueue(q *rxQueue, now uint64) {
	if q.offloaded != nil {
		for slot := range q.offloaded.OffloadSlots() {
			f.credit(q, slot, now)
		}
	}
	if q.kernel != nil {
		f.renew(q, now, true)
		f.tracks.tracker.RemoveKernel(q.kernelNumber)
		q.kernel = nil
	}
}

// renew restarts the timeouts of those connections of queue q for which the kernel has forwarded frames since
// the last call. It takes back from the kernel the connections that have ended, and those without a frame for
// maxLentIdle intervals. If endAll is true, it takes back all.
func (f *kernelFlows) renew(q *rxQueue, now uint64, endAll bool) {
	t := f.tracks.tracker
	for place, l, found := q.kernel.NextLease(0); found; place, l, found = q.kernel.NextLease(place + 1) {
		if l.Seen && !t.Renew(l.Ref, now) || l.Idle > maxLentIdle || endAll {
			t.TakeBack(q.kernelNumber, place, l.Ref, l.Dir)
		}
	}
}
