// SPDX-License-Identifier: Apache-2.0

package vhosttest

import (
	"sync/atomic"
	"unsafe"

	"weft/internal/shm"
	"weft/vhost"
)

// packedDesc is a descriptor of a packed ring (virtio 1.2 section 2.8.13). Its last
// word has the buffer id in the lower half and the flags in the upper half.
type packedDesc struct {
	addr    uint64
	n       uint32
	idFlags uint32
}

const _ = -(unsafe.Sizeof(packedDesc{}) - 16) // A packed descriptor has 16 bytes.

const (
	packedAvail = 1 << 7
	packedUsed  = 1 << 15
	packedWrap  = 1 << 15 // wrap counter of a position

	eventsOff = 1 << 16
	eventsAt  = 2 << 16
)

// packed is the driver's side of a packed ring. The driver writes chains to Queue.Descs and
// Queue.Table, which the device does not see. Offer copies the chains into the ring.
type packed struct {
	ring   []packedDesc
	tables []packedDesc // maxPieces descriptors for each slot
	driver []uint32     // driver event suppression structure in one word: position, then flags
	device []uint32     // device event suppression structure, in the same form
	next   uint16       // position of the next chain
	shown  uint16       // position up to which the chains are published
	used   uint16       // position of the next used element to take
	counts []uint16     // number of descriptors of each offered chain, by buffer id
	heads  []packedHead // chains offered but not published
}

type packedHead struct{ pos, id, flags uint16 }

func (q *Queue) newPacked(n int) {
	p := &packed{
		ring:   shm.View[packedDesc](q.g.mem, q.descOff, n),
		driver: shm.View[uint32](q.g.mem, q.availOff, 1),
		device: shm.View[uint32](q.g.mem, q.usedOff, 1),
		tables: shm.View[packedDesc](q.g.mem, q.tableOff, maxPieces*n),
		next:   uint16(int(q.g.Seed)%n) | packedWrap,
		counts: make([]uint16, n),
		heads:  make([]packedHead, 0, n),
	}
	p.shown, p.used = p.next, p.next
	q.packed, q.Descs, q.tables = p, make([]Desc, n), make([]Desc, maxPieces*n)
}

func (p *packed) advance(pos, n uint16) uint16 {
	place := int(pos&^packedWrap) + int(n)
	if place >= len(p.ring) {
		return uint16(place-len(p.ring)) | ^pos&packedWrap
	}
	return uint16(place) | pos&packedWrap
}

// lap returns the flags avail and used of an available descriptor at a position. They change with each
// lap through the ring (virtio 1.2 section 2.8.1).
func lap(pos uint16) uint16 {
	if pos&packedWrap != 0 {
		return packedAvail
	}
	return packedUsed
}

// offer copies a chain into the packed ring, except the flags of its first descriptor.
// If the next fields of the chain form a loop, the copy ends when the ring is full.
func (p *packed) offer(q *Queue, head uint16) {
	first, count, at := p.next, uint16(0), head
	for more := true; more && int(count) <= len(p.ring); count++ {
		d := q.Descs[at]
		e := &p.ring[p.next&^packedWrap]
		e.addr, e.n = d.Addr, d.Len
		flags := d.Flags&(Next|Write|Indirect) | lap(p.next)
		if count == 0 {
			p.heads = append(p.heads, packedHead{first, head, flags})
		} else {
			e.idFlags = uint32(head) | uint32(flags)<<16
		}
		more, at = d.Flags&Next != 0, d.Next
		p.next = p.advance(p.next, 1)
	}
	if q.Descs[head].Flags&Indirect != 0 {
		i := int(head) / q.perSlot
		for k, d := range q.Table(i) {
			p.tables[i*maxPieces+k] = packedDesc{d.Addr, d.Len, uint32(d.Flags&(Write|Indirect)) << 16}
		}
	}
	p.counts[head] = count
}

// publish writes the flags of the first descriptor of each offered chain. It writes the
// flags of the first chain last, so that the device sees all chains at once.
func (p *packed) publish(q *Queue) {
	for i := len(p.heads) - 1; i >= 0; i-- {
		h := p.heads[i]
		word := uint32(h.id) | uint32(h.flags)<<16
		at := &p.ring[h.pos&^packedWrap].idFlags
		if i > 0 {
			*at = word
		} else {
			// The store is sequentially consistent, so it precedes the load of the
			// device's event suppression in wantsKick. It pairs with the fence in
			// vhost.ring.arm.
			atomic.StoreUint32(at, word)
		}
	}
	p.heads = p.heads[:0]
	old := p.shown
	p.shown = p.next
	if p.wantsKick(old, q.g.Features) {
		q.Kicks++
		shm.SignalOwn(q.kick)
	}
}

// wantsKick reports whether the device wants a kick (the driver's notification) for the descriptors that
// publish has just made available. They are those from position "old" to just before position p.shown
// (virtio 1.2 section 2.8.10).
func (p *packed) wantsKick(old uint16, features uint64) bool {
	word := atomic.LoadUint32(&p.device[0])
	if word>>16 != 2 || features&vhost.FeatureEventIndex == 0 {
		return word>>16 == 0
	}
	for at := old; at != p.shown; at = p.advance(at, 1) {
		if at == uint16(word) {
			return true
		}
	}
	return false
}

func (p *packed) wantCalls(enabled bool, features uint64) {
	word := uint32(eventsOff)
	switch {
	case enabled && features&vhost.FeatureEventIndex != 0:
		word = eventsAt | uint32(p.used)
	case enabled:
		word = 0
	}
	atomic.StoreUint32(&p.driver[0], word)
}

// usedAt returns the used element at position pos; ok is false if the device has not written it. Its
// load of the flags pairs with the device's release of the flags.
func (p *packed) usedAt(pos uint16) (id uint16, n uint32, ok bool) {
	d := &p.ring[pos&^packedWrap]
	word := atomic.LoadUint32(&d.idFlags)
	want := uint32(0)
	if pos&packedWrap != 0 {
		want = packedAvail | packedUsed
	}
	if word>>16&(packedAvail|packedUsed) != want || pos == p.shown {
		return 0, 0, false
	}
	return uint16(word), d.n, true
}

func (p *packed) takeUsed() (id uint16, n uint32, ok bool) {
	if id, n, ok = p.usedAt(p.used); ok {
		p.used = p.advance(p.used, p.counts[id])
	}
	return id, n, ok
}

// ahead returns the number of used elements that the driver has not taken yet, and the
// position after them.
func (p *packed) ahead() (pos, n uint16) {
	for pos = p.used; ; n++ {
		id, _, ok := p.usedAt(pos)
		if !ok {
			return pos, n
		}
		pos = p.advance(pos, p.counts[id])
	}
}

func (p *packed) usedAhead() uint16 {
	_, n := p.ahead()
	return n
}

// withdraw takes back all descriptors that are available and that the device has not used.
func (p *packed) withdraw() {
	at, _ := p.ahead()
	p.heads = p.heads[:0]
	end := p.next
	p.next, p.shown = at, at
	for ; at != end; at = p.advance(at, 1) {
		if at&packedWrap != 0 {
			p.ring[at&^packedWrap].idFlags = 0
		} else {
			p.ring[at&^packedWrap].idFlags = (packedAvail | packedUsed) << 16
		}
	}
}

// Packed returns a descriptor of a packed ring. Next is the buffer id.
func (q *Queue) Packed(place int) Desc {
	d := q.packed.ring[place]
	return Desc{Addr: d.addr, Len: d.n, Next: uint16(d.idFlags), Flags: uint16(d.idFlags >> 16)}
}

// SetPacked overwrites a descriptor of a packed ring. The driver's own state stays
// unchanged.
func (q *Queue) SetPacked(place int, d Desc) {
	q.packed.ring[place] = packedDesc{d.Addr, d.Len, uint32(d.Next) | uint32(d.Flags)<<16}
}
