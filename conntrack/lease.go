// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"weft/packet"
)

// This file hands established connections over to the kernel. BPF programs (package offload) then forward
// and translate their frames without a worker. Each direction of a connection is handed over, or lent, by
// itself. The table still owns the connection. It takes a direction back when the connection ends, when its
// ct_* fields change, and when a side begins to close. All frames that cause this go through a worker.
// While the kernel uses a connection, the worker of the port restarts its timeout with Renew.
//
// The kernel does not check TCP sequence numbers. The tracker therefore no longer knows which sequence
// numbers of a lent connection are valid (the flag peerUnknown), and accepts all of them from then on.

// Kernel is the kernel's table of connections that it forwards for one port. Each entry is one direction of
// a connection; its index is called place. The caller of PutLease, ClearLease and HasLease holds the lock
// of the connection table.
type Kernel interface {
	// PutLease stores one direction of a connection in a free entry, and returns the entry's index. ok is
	// false if no entry for this direction is free.
	PutLease(l Lease) (place uint32, ok bool)
	// ClearLease removes the entry with the index place, which PutLease has stored. When it returns, the
	// kernel passes later frames of that direction of the connection to the worker.
	ClearLease(place uint32)
	// HasLease reports whether the entry with the index place is in use and refers to these two megaflows.
	HasLease(place uint32, first, second Stage) bool
	// NextLease returns the first entry in use whose index is "from" or more. The results are its index,
	// its direction of a connection, and what the kernel has done with it since the last call. found is
	// false if there is none. Only the port's worker calls NextLease.
	NextLease(from uint32) (place uint32, l LeaseUse, found bool)
	// Serial returns the serial number of the megaflow in this slot of the kernel's table; 0: no megaflow.
	// See Stage.
	Serial(slot uint32) uint64
}

// LeaseUse says how the kernel has used one direction of a connection.
type LeaseUse struct {
	Ref  Ref
	Dir  uint8
	Seen bool   // the kernel has forwarded a frame since the last call of NextLease
	Idle uint32 // number of consecutive calls of NextLease between which the kernel has forwarded no frame
}

// Stage refers to a megaflow in the kernel's table of megaflows. Serial tells apart the megaflows that use
// the same slot one after another; 0: no megaflow.
type Stage struct {
	Slot   uint32
	Serial uint64
}

// Lease is one direction of an established TCP or UDP connection, with all that the kernel needs to forward
// its frames.
type Lease struct {
	Ref   Ref
	Dir   uint8
	Proto uint8
	// Scope distinguishes equal tuples of different networks at a port: it is the VNI or the VLAN tag.
	Scope uint32
	IPv6  bool // the version of Addresses and NewAddresses
	// Addresses has the source and the destination: two words each for IPv6, and source<<32 | destination in
	// the first word for IPv4.
	Addresses     [4]uint64
	Ports         uint32 // source<<16 | destination
	Translates    bool   // the frames get NewAddresses and NewPorts
	NewAddresses  [4]uint64
	NewPorts      uint32
	First, Second Stage // megaflows before and after tracking; equal if one megaflow does both
}

// leases has the Kernel of each port. For each direction of a connection that the kernel forwards, it has
// the index of the kernel's entry.
type leases struct {
	kernels []Kernel           // indexed by the number from AddKernel; guarded by the table's lock
	places  [][2]atomic.Uint64 // indexed by connection and direction; see placeOf
}

// placeOf returns a word of leases.places. Its upper half is 1 + the number of a Kernel, its lower half the
// index of an entry there. The word is 0 for a direction that the kernel does not forward.
func placeOf(kernel, place uint32) uint64 { return uint64(kernel+1)<<32 | uint64(place) }

// leastLentNS is the shortest timeout of a connection that is lent to the kernel, in nanoseconds. It is
// several times the interval at which the worker calls Renew, so no connection expires while the kernel
// uses it.
const leastLentNS = 10_000_000_000

// AddKernel registers a port's Kernel. Lend and TakeBack take the number that it returns.
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

// RemoveKernel removes a port's Kernel; AddKernel may use its number again. The caller has called TakeBack
// for each entry of this Kernel.
func (t *Table) RemoveKernel(number uint32) {
	t.lock()
	t.lent.Load().kernels[number] = nil
	t.unlock()
}

// Lend lets the kernel forward one direction of a connection, that of frame i. kernel is the number of a
// port's Kernel. Fast must have returned ok for the frame. The caller sets these fields of l: Scope, First,
// Second and Translates (the ct action has nat). Lend does nothing if this Kernel has the direction
// already, with the same megaflows, or if lendable returns false.
func (tr *Tracker) Lend(i int, kernel uint32, l Lease) {
	i %= packet.BatchSize
	t, n, g, dir, s := tr.Table, tr.numbers[i], tr.generations[i], tr.dirs[i]&1, tr.lent.Load()
	if s == nil || n >= uint32(len(s.places)) {
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
	l.IPv6, l.Ports = c.tuples[dir].ipv6(), uint32(c.tuples[dir].b>>32)
	l.Translates = l.Translates && c.flags&connTranslated != 0
	if l.IPv6 {
		l.Addresses = t.longOf(n, dir)
	} else {
		l.Addresses[0] = c.tuples[dir].a
	}
	if l.Translates {
		l.NewPorts = bits.RotateLeft32(uint32(c.tuples[1-dir].b>>32), 16)
		if l.IPv6 {
			other := t.longOf(n, 1-dir)
			l.NewAddresses = [4]uint64{other[2], other[3], other[0], other[1]}
		} else {
			l.NewAddresses[0] = bits.RotateLeft64(c.tuples[1-dir].a, 32)
		}
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

// lendable reports whether the kernel may forward connection n. It requires that n still has generation g,
// is established in both directions, has no gateway (FTP or TFTP), was not announced by another connection,
// and has a timeout of at least leastLentNS.
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

// Renew restarts the timeout of a connection after the kernel has forwarded a frame of it. It returns false
// if the connection has ended or changed.
func (t *Table) Renew(ref Ref, now uint64) bool {
	if ref.Number >= uint32(len(t.conns)) {
		return false
	}
	c := &t.conns[ref.Number]
	class := c.class
	return c.hasGeneration(ref.Generation) && (class == tcpEstablished || class == udpMultiple) && t.keep(c, ref.Generation, class, now)
}

// TakeBack removes one direction of a connection from a Kernel, so that a worker handles its frames again.
// kernel is the number of the Kernel, and place the index of the entry there.
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

// take removes one direction of connection n from the kernel's table, if the kernel forwards it. The caller
// holds the table's lock.
func (s *leases) take(n uint32, dir uint8) {
	if at := s.places[n][dir].Load(); at != 0 {
		s.kernels[at>>32-1].ClearLease(uint32(at))
		s.places[n][dir].Store(0)
	}
}

// takeBoth removes both directions of connection n from the kernel's tables. The caller holds the lock of
// the connection table.
func (t *Table) takeBoth(n uint32) {
	if s := t.lent.Load(); s != nil {
		s.take(n, 0)
		s.take(n, 1)
	}
}

// isLent reports whether the kernel forwards at least one direction of connection n.
func (t *Table) isLent(n uint32) bool {
	s := t.lent.Load()
	return s != nil && s.places[n][0].Load()|s.places[n][1].Load() != 0
}

// takeBack does the work of takeBoth for a caller that does not hold the table's lock.
func (t *Table) takeBack(n uint32) {
	if t.isLent(n) {
		t.lock()
		t.takeBoth(n)
		t.unlock()
	}
}
