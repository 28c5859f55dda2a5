// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/conntrack"
	"weft/flowtable"
)

// This file lends connections to the kernel: its BPF programs then forward the connection's frames, by the
// same pair of megaflows as fuse.go. A port's memory of lent connections is a conntrack.Kernel. Only the
// first receive queue of a port has it, so frames of other queues do not cause a connection to be lent.
// To take a connection back means that its frames come to the worker again.

const (
	// lendEveryNS is the interval in nanoseconds at which a worker restarts the timeouts of lent connections
	// whose frames the kernel has forwarded. A sleeping worker does so when it wakes up, at least every
	// maxSleepMS.
	lendEveryNS = 1_000_000_000
	// maxLentIdle is the number of intervals of lendEveryNS without a frame after which the worker takes a
	// connection back.
	maxLentIdle = 30
)

// lend lends a connection to the kernel. Frame number i of queue q belongs to the connection, has the key
// "key", and was just fused with pair p. lend does nothing if one of the pair's megaflows does not run in
// the kernel.
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
// It takes connections back that an earlier engine has lent.
func (f *kernelFlows) openQueue(q *rxQueue, now uint64) {
	k, is := q.rx.(conntrack.Kernel)
	if !is || f.tracks.tracker == nil {
		return
	}
	q.kernel, q.kernelNumber = k, f.tracks.tracker.AddKernel(k)
	f.renew(q, now, true)
}

// closeQueue takes all counts and lent connections of queue q back, before the worker gives up the queue.
// It also takes the counts of megaflows that the kernel no longer has.
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

// renew restarts the timeouts of the lent connections of queue q whose frames the kernel has forwarded
// since the last call. It takes back connections that have ended or that had no frame for maxLentIdle
// intervals. If endAll is true, it takes back all.
func (f *kernelFlows) renew(q *rxQueue, now uint64, endAll bool) {
	t := f.tracks.tracker
	for place, l, found := q.kernel.NextLease(0); found; place, l, found = q.kernel.NextLease(place + 1) {
		if l.Seen && !t.Renew(l.Ref, now) || l.Idle > maxLentIdle || endAll {
			t.TakeBack(q.kernelNumber, place, l.Ref, l.Dir)
		}
	}
}
