// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"weft/packet"
)

// This file lends connections to the kernel, which then tracks and translates the frames of one
// direction without a worker (package offload). The table stays the owner: it takes a direction back
// before the connection ends, before its ct_* fields change, and when a side begins to close. All
// frames that do so go through a worker. The worker of the port tells the table which connections
// the kernel still uses (Renew).
//
// The kernel does not check TCP sequence numbers, so the table checks none of a connection that
// was lent (peerUnknown).

// Kernel is a port's memory of connections that the kernel uses. The table's lock guards its calls.
type Kernel interface {
	// PutLease adds a direction of a connection. It returns false if there is no room.
	PutLease(l Lease) (place uint32, ok bool)
	// ClearLease removes the direction at a place. When it returns, later frames go to the worker.
	ClearLease(place uint32)
	// HasLease reports whether the direction at a place still has these megaflows.
	HasLease(place uint32, first, second Stage) bool
	// NextLease returns the first direction from a place on, and whether the kernel has used it since the
	// last call. Only the worker of the port calls it.
	NextLease(from uint32) (place uint32, l LeaseUse, found bool)
	// Serial returns the serial of the megaflow in a slot, see Stage.
	Serial(slot uint32) uint64
}

// LeaseUse is the use of a lent direction by the kernel.
type LeaseUse struct {
	Ref  Ref
	Dir  uint8
	Seen bool   // the kernel has forwarded a frame since the last call of NextLease
	Idle uint32 // number of calls in a row without a frame
}

// Stage names a megaflow in the kernel. Serial distinguishes the megaflows of a slot; 0: none.
type Stage struct {
	Slot   uint32
	Serial uint64
}

// Lease is one direction of an established TCP or UDP connection over IPv4.
type Lease struct {
	Ref   Ref
	Dir   uint8
	Proto uint8
	// Scope is what distinguishes equal tuples of a port: the VNI or the VLAN tag.
	Scope         uint32
	Addresses     uint64 // source<<32 | destination
	Ports         uint32 // source<<16 | destination
	Translates    bool   // the frames get NewAddresses and NewPorts
	NewAddresses  uint64
	NewPorts      uint32
	First, Second Stage // megaflows before and after tracking; equal if one megaflow does both
}

// leases has the places of lent directions.
type leases struct {
	kernels []Kernel           // by number; guarded by the table's lock
	places  [][2]atomic.Uint64 // by connection and direction; see placeOf
}

// placeOf returns 1 + the number of a kernel in the upper half and a place in the lower half. 0 means
// that the direction is not lent.
func placeOf(kernel, place uint32) uint64 { return uint64(kernel+1)<<32 | uint64(place) }

// leastLentNS is the shortest timeout in nanoseconds of a lent connection. It is several times the
// interval of Renew.
const leastLentNS = 10_000_000_000

// AddKernel makes a port's memory known to Lend, by the number that it returns.
func (t *Table) AddKernel(k Kernel) (number uint32) {
	if t.lent.Load() == nil {
		t.lent.CompareAndSwap(nil, &leases{places: make([][2]atomic.Uint64, len(t.conns))})
	}
	s := t.lent.Load()
	t.lock()
	defer t.unlock()
	if at := slices.Index(s.kernels, nil); at >= 0 {
		s.kernels[at] = k
		return uint32(at)
	}
	s.kernels = append(s.kernels, k)
	return uint32(len(s.kernels) - 1)
}

// RemoveKernel forgets a port's memory. The caller has taken all its directions back.
func (t *Table) RemoveKernel(number uint32) {
	t.lock()
	t.lent.Load().kernels[number] = nil
	t.unlock()
}

// Lend lends the connection and the direction of frame i to a kernel. Fast must have returned ok for
// the frame. The caller sets Scope, First, Second and Translates (the ct action has nat) of l. Lend does
// nothing if the direction is lent already.
func (tr *Tracker) Lend(i int, kernel uint32, l Lease) {
	i %= packet.BatchSize
	t, n, g, dir, s := tr.Table, tr.numbers[i], tr.generations[i], tr.dirs[i]&1, tr.lent.Load()
	if s == nil || n >= uint32(len(s.places)) || tr.probes[i].ipv6() {
		return
	}
	t.lock()
	defer t.unlock()
	c, at := &t.conns[n], s.places[n][dir].Load()
	if at>>32 == uint64(kernel)+1 && s.kernels[kernel].HasLease(uint32(at), l.First, l.Second) || !t.lendable(n, g) {
		return
	}
	s.take(n, dir)
	l.Ref, l.Dir, l.Proto = Ref{n, g}, dir, c.tuples[dir].proto()
	l.Addresses, l.Ports = c.tuples[dir].a, uint32(c.tuples[dir].b>>32)
	if l.Translates = l.Translates && c.flags&connTranslated != 0; l.Translates {
		other := c.tuples[1-dir]
		l.NewAddresses, l.NewPorts = bits.RotateLeft64(other.a, 32), bits.RotateLeft32(uint32(other.b>>32), 16)
	}
	if l.Proto == packet.ProtoTCP {
		if !t.lockConn(c, g) {
			return
		}
		for side := range t.peers[n] {
			t.peers[n][side].flags |= peerUnknown
		}
		t.unlockConn(c, g)
	}
	if place, ok := s.kernels[kernel].PutLease(l); ok {
		s.places[n][dir].Store(placeOf(kernel, place))
	}
}

// lendable reports whether connection n still has generation g and is established in both
// directions.
func (t *Table) lendable(n, g uint32) bool {
	c := &t.conns[n]
	if c.flags&(connFTP|connTFTP|connRelated|connReplied) != connReplied || c.class != tcpEstablished && c.class != udpMultiple {
		return false
	}
	if c.class == tcpEstablished && (t.peers[n][0].phase != phaseEstablished || t.peers[n][1].phase != phaseEstablished) {
		return false
	}
	lasts, _ := t.timeout(c.policy, c.class)
	return lasts >= leastLentNS && c.hasGeneration(g)
}

// Renew restarts the timeout of a lent connection whose frames the kernel has seen. It returns false if
// the connection has ended or changed.
func (t *Table) Renew(ref Ref, now uint64) bool {
	if ref.Number >= uint32(len(t.conns)) {
		return false
	}
	c := &t.conns[ref.Number]
	class := c.class
	return c.hasGeneration(ref.Generation) && (class == tcpEstablished || class == udpMultiple) && t.keep(c, ref.Generation, class, now)
}

// TakeBack takes a direction of a connection back from a kernel.
func (t *Table) TakeBack(kernel uint32, place uint32, ref Ref, dir uint8) {
	s := t.lent.Load()
	t.lock()
	defer t.unlock()
	if ref.Number < uint32(len(s.places)) && s.places[ref.Number][dir&1].Load() == placeOf(kernel, place) {
		s.take(ref.Number, dir&1)
		return
	}
	s.kernels[kernel].ClearLease(place) // lent by an earlier engine
}

// take takes a direction of connection n back, if it is lent. The caller holds the table's lock.
func (s *leases) take(n uint32, dir uint8) {
	if at := s.places[n][dir].Load(); at != 0 {
		s.kernels[at>>32-1].ClearLease(uint32(at))
		s.places[n][dir].Store(0)
	}
}

// takeBoth takes both directions of connection n back. The caller holds the table's lock.
func (t *Table) takeBoth(n uint32) {
	if s := t.lent.Load(); s != nil {
		s.take(n, 0)
		s.take(n, 1)
	}
}

// isLent reports whether a direction of connection n is lent.
func (t *Table) isLent(n uint32) bool {
	s := t.lent.Load()
	return s != nil && s.places[n][0].Load()|s.places[n][1].Load() != 0
}

// takeBack takes both directions of connection n back.
func (t *Table) takeBack(n uint32) {
	if t.isLent(n) {
		t.lock()
		t.takeBoth(n)
		t.unlock()
	}
}
