// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/conntrack"
	"weft/flowtable"
)

// This file lends connections to the kernel (conntrack.Kernel), which then forwards their frames by the same
// pair of megaflows as fuse.go. The first queue of a port whose flows may run in the kernel has the memory
// for it; frames of other queues lend nothing.

const (
	// lendEveryNS is the interval in nanoseconds at which a worker restarts the timeouts of the connections
	// that the kernel has used. A sleeping worker does so when it wakes, at least every maxSleepMS.
	lendEveryNS = 1_000_000_000
	// maxLentIdle is the number of such intervals after which an unused connection leaves the kernel.
	maxLentIdle = 30
)

// lend lends the connection of frame i, which has followed the hint with pair p, to the kernel.
func (w *Worker) lend(i int, p *pair) {
	q, k := w.rxInUse, &w.keys[i]
	first, second := conntrack.Stage{Slot: p.slot, Serial: q.kernel.Serial(p.slot)}, conntrack.Stage{Slot: p.second, Serial: q.kernel.Serial(p.second)}
	if first.Serial == 0 || second.Serial == 0 || q.tunnel && k[flowtable.WTunIPv4] == 0 {
		return
	}
	scope := uint32(k[flowtable.WEthSrc] & (flowtable.VLANPresent | flowtable.VLANID))
	if q.tunnel {
		scope = uint32(k[flowtable.WTunID])
	}
	w.tracks.tracker.Lend(i, q.kernelNumber, conntrack.Lease{Scope: scope, Translates: p.translates, First: first, Second: second})
}

// openKernel begins to lend connections of queue q. It takes those back that an earlier engine has lent.
func (w *Worker) openKernel(q *rxQueue) {
	k, is := q.rx.(conntrack.Kernel)
	if !is || w.tracks.tracker == nil {
		return
	}
	q.kernel, q.kernelNumber = k, w.tracks.tracker.AddKernel(k)
	w.renewLent(q, true)
}

// closeKernel takes all connections of queue q back.
func (w *Worker) closeKernel(q *rxQueue) {
	if q.kernel != nil {
		w.renewLent(q, true)
		w.tracks.tracker.RemoveKernel(q.kernelNumber)
		q.kernel = nil
	}
}

// renewLent restarts the timeouts of the connections of queue q that the kernel has used. It takes those back
// that have ended or were not used for long, or all.
func (w *Worker) renewLent(q *rxQueue, endAll bool) {
	t := w.tracks.tracker
	for place, l, found := q.kernel.NextLease(0); found; place, l, found = q.kernel.NextLease(place + 1) {
		if l.Seen && !t.Renew(l.Ref, w.now) || l.Idle > maxLentIdle || endAll {
			t.TakeBack(q.kernelNumber, place, l.Ref, l.Dir)
		}
	}
}

// renewAllLent calls renewLent for all queues if it is due.
func (w *Worker) renewAllLent() {
	if w.queues.offloaded == 0 || w.now < w.lendNS {
		return
	}
	w.lendNS = w.now + lendEveryNS
	for at := range w.queues.count {
		if q := w.queues.queue(at); q.kernel != nil {
			w.renewLent(q, false)
		}
	}
}
