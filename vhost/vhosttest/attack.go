// SPDX-License-Identifier: Apache-2.0

package vhosttest

import "math"

// Attack corrupts a ring as no correct driver does. It must break the attacker's device and no other
// device.
type Attack struct {
	Name string
	// Do corrupts a queue and makes the corruption visible to the device. The queue must have free
	// buffers if the guest transmits on it.
	Do func(q *Queue)
	// Indirect is set if the attack needs VIRTIO_F_INDIRECT_DESC.
	Indirect bool
	// Split is set if the attack is possible only on a split ring.
	Split bool
}

// spoil returns an attack that offers one corrupt chain. The attack first writes a valid descriptor
// for each buffer. The function change then corrupts some of them and makes a chain that begins with
// the first one. The flags that change gets are Write in a receive ring and 0 in a transmit ring.
func spoil(change func(q *Queue, d []Desc, flags uint16)) func(*Queue) {
	return func(q *Queue) {
		flags := uint16(0)
		if q.index%2 == 0 {
			flags = Write
			q.drop()
		}
		for i := range q.Descs {
			q.Descs[i] = Desc{Addr: q.SlotAddr(i % q.slots), Len: 64, Flags: flags}
		}
		change(q, q.Descs, flags)
		q.Offer(0)
		q.Publish()
	}
}

// drop withdraws all available chains, so that the device takes the chain of the attack next.
func (q *Queue) drop() {
	q.next = q.UsedIndex()
	if q.packed != nil {
		q.packed.withdraw()
	}
}

// jump returns an attack that sets the avail index to the used index plus distance, although the driver has
// offered no chain.
func jump(distance uint16) func(*Queue) {
	return func(q *Queue) { q.SetAvailIndex(q.UsedIndex() + distance) }
}

// Attacks lists the attacks that break receive rings as well as transmit rings.
var Attacks = []Attack{
	{Name: "address-zero", Do: spoil(func(_ *Queue, d []Desc, _ uint16) { d[0].Addr = 0 })},
	{Name: "address-beyond", Do: spoil(func(q *Queue, d []Desc, _ uint16) { d[0].Addr = GuestBase + uint64(len(q.g.mem)) })},
	{Name: "address-across-the-end", Do: spoil(func(q *Queue, d []Desc, _ uint16) {
		d[0].Addr, d[0].Len = GuestBase+uint64(len(q.g.mem))-32, 64
	})},
	{Name: "address-before", Do: spoil(func(_ *Queue, d []Desc, _ uint16) { d[0].Addr = GuestBase - 32 })},
	{Name: "address-wraps", Do: spoil(func(_ *Queue, d []Desc, _ uint16) { d[0].Addr = math.MaxUint64 - 31 })},
	{Name: "length-wraps", Do: spoil(func(_ *Queue, d []Desc, _ uint16) { d[0].Len = math.MaxUint32 })},
	{Name: "length-zero", Do: spoil(func(_ *Queue, d []Desc, _ uint16) { d[0].Len = 0 })},
	{Name: "length-zero-later", Do: spoil(func(_ *Queue, d []Desc, _ uint16) {
		d[0].Flags, d[0].Next, d[0].Len = d[0].Flags|Next, 1, 8
		d[1].Len = 0
	})},
	{Name: "wrong-direction", Do: spoil(func(_ *Queue, d []Desc, _ uint16) { d[0].Flags ^= Write })},
	{Name: "loop-on-itself", Do: spoil(func(_ *Queue, d []Desc, _ uint16) {
		d[0].Flags, d[0].Next, d[0].Len = d[0].Flags|Next, 0, 1
	})},
	{Name: "loop-of-all", Do: spoil(func(_ *Queue, d []Desc, flags uint16) {
		for i := range d {
			d[i].Len, d[i].Flags, d[i].Next = 1, flags|Next, uint16((i+1)%len(d))
		}
	})},
	{Name: "next-beyond", Split: true, Do: spoil(func(_ *Queue, d []Desc, _ uint16) {
		d[0].Flags, d[0].Next, d[0].Len = d[0].Flags|Next, uint16(len(d)), 8
	})},
	{Name: "head-beyond", Split: true, Do: func(q *Queue) {
		if q.index%2 == 0 {
			q.drop()
		}
		q.Offer(uint16(q.g.Num))
		q.Publish()
	}},
	{Name: "index-jumps", Split: true, Do: func(q *Queue) { q.SetAvailIndex(q.AvailIndex() + uint16(q.g.Num) + 1) }},
	{Name: "index-goes-back", Split: true, Do: jump(math.MaxUint16)},
	{Name: "table-empty", Indirect: true, Do: spoil(func(q *Queue, d []Desc, _ uint16) {
		d[0] = Desc{Addr: q.TableAddr(0), Len: 0, Flags: Indirect}
	})},
	{Name: "table-odd", Indirect: true, Do: spoil(func(q *Queue, d []Desc, _ uint16) {
		d[0] = Desc{Addr: q.TableAddr(0), Len: 17, Flags: Indirect}
	})},
	{Name: "table-outside", Indirect: true, Do: spoil(func(_ *Queue, d []Desc, _ uint16) {
		d[0] = Desc{Addr: 16, Len: 32, Flags: Indirect}
	})},
	{Name: "table-in-table", Indirect: true, Do: spoil(func(q *Queue, d []Desc, _ uint16) {
		q.Table(0)[0] = Desc{Addr: q.TableAddr(1), Len: 16, Flags: Indirect}
		d[0] = Desc{Addr: q.TableAddr(0), Len: 16, Flags: Indirect}
	})},
	{Name: "table-loops", Indirect: true, Split: true, Do: spoil(func(q *Queue, d []Desc, flags uint16) {
		q.Table(0)[0] = Desc{Addr: q.SlotAddr(0), Len: 1, Flags: flags | Next, Next: 1}
		q.Table(0)[1] = Desc{Addr: q.SlotAddr(0), Len: 1, Flags: flags | Next, Next: 0}
		d[0] = Desc{Addr: q.TableAddr(0), Len: 32, Flags: Indirect}
	})},
	{Name: "table-next-beyond", Indirect: true, Split: true, Do: spoil(func(q *Queue, d []Desc, flags uint16) {
		q.Table(0)[0] = Desc{Addr: q.SlotAddr(0), Len: 8, Flags: flags | Next, Next: 2}
		d[0] = Desc{Addr: q.TableAddr(0), Len: 32, Flags: Indirect}
	})},
	{Name: "table-huge", Indirect: true, Do: spoil(func(_ *Queue, d []Desc, flags uint16) {
		d[0] = Desc{Addr: GuestBase, Len: math.MaxUint32 &^ 15, Flags: Indirect}
	})},
	{Name: "table-with-successor", Indirect: true, Do: spoil(func(q *Queue, d []Desc, flags uint16) {
		q.Table(0)[0] = Desc{Addr: q.SlotAddr(0), Len: 64, Flags: flags}
		d[0] = Desc{Addr: q.TableAddr(0), Len: 16, Flags: Indirect | Next, Next: 1}
	})},
}

// TransmitAttacks lists the attacks that break only transmit rings.
var TransmitAttacks = []Attack{
	{Name: "shorter-than-header", Do: spoil(func(_ *Queue, d []Desc, _ uint16) { d[0].Len = 4 })},
	{Name: "longer-than-any-frame", Do: spoil(func(q *Queue, d []Desc, _ uint16) {
		for i := range d {
			d[i] = Desc{Addr: q.SlotAddr(0), Len: uint32(q.g.BufLen), Flags: Next, Next: uint16(i + 1)}
		}
		d[len(d)-1].Flags = 0
	})},
}

// OfferAgain makes every descriptor of a packed ring available, even descriptors that the device is
// using. n is the number of descriptors that the device has taken since its start.
func (q *Queue) OfferAgain(n int) {
	flags := uint16(0)
	if q.index%2 == 0 {
		flags = Write
	}
	num := q.g.Num
	for i := range num {
		at := int(q.g.Seed)%num + n + i
		wrap := uint16(packedWrap)
		if at/num%2 == 1 {
			wrap = 0
		}
		q.SetPacked(at%num, Desc{Addr: q.SlotAddr(at % num), Len: 128, Flags: flags | lap(wrap), Next: uint16(at % num)})
	}
}

// OfferLong replaces all chains of a receive ring by one chain of n descriptors. Each
// descriptor starts at its own buffer and ends at the end of guest memory.
func (q *Queue) OfferLong(n int) {
	q.drop()
	end := GuestBase + uint64(len(q.g.mem))
	for i := range n {
		at := q.SlotAddr(i)
		q.Descs[i] = Desc{Addr: at, Len: uint32(end - at), Flags: Write | Next, Next: uint16(i + 1)}
	}
	q.Descs[n-1].Flags = Write
	q.Offer(0)
	q.Publish()
}
