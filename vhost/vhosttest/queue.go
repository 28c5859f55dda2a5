// SPDX-License-Identifier: Apache-2.0

package vhosttest

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
	"weft/vhost"
)

// Desc is a descriptor of a split ring (virtio 1.2 section 2.7.5).
type Desc struct {
	Addr  uint64
	Len   uint32
	Flags uint16
	Next  uint16
}

// Flags of a descriptor (virtio 1.2 section 2.7.5).
const (
	Next     = 1
	Write    = 2
	Indirect = 4
)

type usedElem struct{ id, n uint32 }

// Queue is the driver's side of one ring. The ring is packed if the guest's features
// include FeatureRingPacked. One goroutine drives the queue.
//
// Slot i is a buffer of BufLen bytes, together with the descriptors of its chain. The
// driver offers slots, and the device uses them.
type Queue struct {
	packed *packed // nil for a split ring
	g      *Guest
	index  int

	Descs  []Desc
	avail  []uint32 // one word: flags, idx
	ring   []uint16 // entries of the avail ring, then used_event
	used   []uint32 // one word: flags, idx
	elems  []usedElem
	event  []uint16 // avail_event, behind the used ring
	tables []Desc   // maxPieces descriptors for each slot
	bufs   []byte   // BufLen bytes for each slot

	descOff, availOff, usedOff, tableOff, bufOff int

	kick, call int
	slots      int
	perSlot    int // number of descriptors for each slot
	free       []uint16
	next       uint16 // avail index of the next chain; the device sees only the chains before published
	published  uint16
	seen       uint16 // number of used elements that the driver has taken
	flags      uint32 // flags of the avail ring
	inFlight   []bool // whether each slot is in flight
	// Kicks counts the kicks sent.
	Kicks int
	// Misused counts used elements that are corrupt, or that name a chain that is not in flight.
	Misused int
}

func queueSize(o Options) int {
	n := 16*o.Num + 64 // bytes of the descriptors
	n += 2*o.Num + 64
	n += 8*o.Num + 128
	n += 16*maxPieces*o.Num + 64
	n += o.BufLen*o.Num + 4096*4
	return (n + 4095) &^ 4095
}

func newQueue(g *Guest, index, base int) (*Queue, error) {
	q := &Queue{g: g, index: index, call: -1}
	n := g.Num
	take := func(size int) int {
		at := base
		base = (base + size + 63) &^ 63
		return at
	}
	q.descOff = take(16 * n)
	q.availOff = take(4 + 2*n + 2)
	q.usedOff = take(4 + 8*n + 2)
	q.tableOff = take(16 * maxPieces * n)
	// no cache line alignment, as with real drivers
	base = (base+4095)&^4095 + 64 - HeaderLen(g.Features)%4
	q.bufOff = take(g.BufLen * n)
	q.Descs = shm.View[Desc](g.mem, q.descOff, n)
	q.avail = shm.View[uint32](g.mem, q.availOff, 1)
	q.ring = shm.View[uint16](g.mem, q.availOff+4, n+1)
	q.used = shm.View[uint32](g.mem, q.usedOff, 1)
	q.elems = shm.View[usedElem](g.mem, q.usedOff+4, n)
	q.event = shm.View[uint16](g.mem, q.usedOff+4+8*n, 1)
	q.tables = shm.View[Desc](g.mem, q.tableOff, maxPieces*n)
	if g.Features&vhost.FeatureRingPacked != 0 {
		q.newPacked(n)
	}
	q.bufs = g.mem[q.bufOff : q.bufOff+g.BufLen*n]
	q.perSlot = 1
	if !g.Indirect {
		_, q.perSlot = g.Layout.pieces(g.BufLen, HeaderLen(g.Features))
	}
	q.slots = n / q.perSlot
	q.inFlight = make([]bool, n)
	for i := range q.slots {
		q.free = append(q.free, uint16(i))
	}
	q.next, q.published, q.seen = g.Seed, g.Seed, g.Seed
	if q.packed == nil {
		q.avail[0] = uint32(g.Seed) << 16
		q.used[0] = uint32(g.Seed) << 16
	}
	var err error
	if q.kick, err = newEvent(); err != nil {
		return nil, err
	}
	if g.Interrupts {
		if q.call, err = newEvent(); err != nil {
			return nil, err
		}
	}
	q.WantCalls(g.Interrupts)
	return q, nil
}

func (q *Queue) close() {
	unix.Close(q.kick)
	if q.call >= 0 {
		unix.Close(q.call)
	}
}

// Vring describes the ring for a device specification. Its Kick and Call are -1.
func (q *Queue) Vring() vhost.VringSpec {
	return vhost.VringSpec{Index: q.index, Num: q.g.Num, Desc: q.g.userAddr(q.descOff), Avail: q.g.userAddr(q.availOff),
		Used: q.g.userAddr(q.usedOff), LastAvail: q.Start(), Kick: -1, Call: -1, Enabled: true}
}

// Start returns the position of the ring's first chain.
func (q *Queue) Start() uint16 {
	if q.packed != nil {
		return uint16(int(q.g.Seed)%q.g.Num) | packedWrap
	}
	return q.g.Seed
}

// Position returns the position after the last used element.
func (q *Queue) Position() uint16 {
	if q.packed != nil {
		at, _ := q.packed.ahead()
		return at
	}
	return q.UsedIndex()
}

// Index returns the vring's index in the guest's device: even for receive rings, odd for transmit rings.
func (q *Queue) Index() int { return q.index }

// KickFD returns the eventfd by which the driver kicks the device. The queue owns the
// eventfd.
func (q *Queue) KickFD() int { return q.kick }

// CallFD returns the eventfd by which the device calls the driver, or -1 if the
// driver polls. The queue owns the eventfd.
func (q *Queue) CallFD() int { return q.call }

// Slots returns the number of slots, each with a buffer of BufLen bytes.
func (q *Queue) Slots() int { return q.slots }

// Free returns the number of buffers that the driver has not offered.
func (q *Queue) Free() int { return len(q.free) }

// Slot returns the buffer of slot i, in guest memory.
func (q *Queue) Slot(i int) []byte { return q.bufs[i*q.g.BufLen : (i+1)*q.g.BufLen] }

// SlotAddr returns the guest address of the buffer of slot i.
func (q *Queue) SlotAddr(i int) uint64 { return GuestBase + uint64(q.bufOff+i*q.g.BufLen) }

// TableAddr returns the guest address of the indirect table of slot i.
func (q *Queue) TableAddr(i int) uint64 { return GuestBase + uint64(q.tableOff+16*maxPieces*i) }

// Table returns slot i's indirect table: maxPieces descriptors, which the driver writes.
func (q *Queue) Table(i int) []Desc { return q.tables[i*maxPieces : (i+1)*maxPieces] }

// Withdraw takes back all chains that the device has not used. The caller makes sure that no device has the
// ring open.
func (q *Queue) Withdraw() {
	q.next = q.UsedIndex()
	q.published = q.next
	if q.packed != nil {
		q.packed.withdraw()
		return
	}
	atomic.StoreUint32(&q.avail[0], q.flags|uint32(q.next)<<16)
}

// chain writes the descriptors of slot i for a chain of n bytes, with these descriptor flags. It
// returns the index of the first one.
func (q *Queue) chain(i, n int, flags uint16) uint16 {
	pieces, count := q.g.Layout.pieces(n, HeaderLen(q.g.Features))
	descs, first := q.Descs[i*q.perSlot:], uint16(i*q.perSlot)
	if q.g.Indirect {
		q.Descs[i] = Desc{Addr: q.TableAddr(i), Len: uint32(16 * count), Flags: Indirect}
		descs, first = q.Table(i), 0
	}
	addr := q.SlotAddr(i)
	for k, size := range pieces[:count] {
		d := Desc{Addr: addr, Len: uint32(size), Flags: flags}
		if k < count-1 {
			d.Flags, d.Next = flags|Next, first+uint16(k)+1
		}
		descs[k] = d
		addr += uint64(size)
	}
	return uint16(i * q.perSlot)
}

// Offer puts the chain that begins at descriptor head into the avail ring. The device sees the chain
// only after Publish.
func (q *Queue) Offer(head uint16) {
	q.inFlight[int(head)/q.perSlot%len(q.inFlight)] = true
	if q.packed != nil {
		q.packed.offer(q, head)
		q.next++
		return
	}
	q.ring[int(q.next)&(q.g.Num-1)] = head
	q.next++
}

// Publish makes the offered chains visible to the device, and kicks the device if it asks for kicks.
func (q *Queue) Publish() {
	if q.next == q.published {
		return
	}
	old := q.published
	q.published = q.next
	if q.packed != nil {
		q.packed.publish(q)
		return
	}
	// The store is sequentially consistent, so it precedes the load that decides about
	// a kick. It pairs with the fence in vhost.ring.arm.
	atomic.StoreUint32(&q.avail[0], q.flags|uint32(q.next)<<16)
	if q.wantsKick(old) {
		q.Kicks++
		shm.SignalOwn(q.kick)
	}
}

// SetAvailIndex publishes any avail index, valid or not, and kicks the device.
func (q *Queue) SetAvailIndex(i uint16) {
	atomic.StoreUint32(&q.avail[0], q.flags|uint32(i)<<16)
	shm.SignalOwn(q.kick)
}

// AvailIndex returns the avail index after the last offered chain, even if it is not published.
func (q *Queue) AvailIndex() uint16 { return q.next }

func (q *Queue) wantsKick(old uint16) bool {
	if q.g.Features&vhost.FeatureEventIndex != 0 {
		return q.next-q.event[0]-1 < q.next-old
	}
	return atomic.LoadUint32(&q.used[0])&1 == 0
}

// WantCalls sets whether the driver requests calls for used buffers.
func (q *Queue) WantCalls(enabled bool) {
	if q.packed != nil {
		q.packed.wantCalls(enabled, q.g.Features)
		return
	}
	if q.g.Features&vhost.FeatureEventIndex != 0 {
		if enabled {
			q.ring[q.g.Num] = q.seen
		} else {
			q.ring[q.g.Num] = q.seen - 1
		}
	} else {
		q.flags = 1
		if enabled {
			q.flags = 0
		}
	}
	// The store is sequentially consistent. It pairs with the device's fence in
	// publish.
	atomic.StoreUint32(&q.avail[0], q.flags|uint32(q.published)<<16)
}

// UsedIndex returns the used index of a split ring. For a packed ring, it returns the number of used
// elements modulo 65536.
func (q *Queue) UsedIndex() uint16 {
	if q.packed != nil {
		return q.seen + q.packed.usedAhead()
	}
	return uint16(atomic.LoadUint32(&q.used[0]) >> 16)
}

// SetUsed overwrites the used index, as no correct driver does.
func (q *Queue) SetUsed(i uint16) { atomic.StoreUint32(&q.used[0], uint32(i)<<16) }

// takeUsed takes the next used element; ok is false if there is none. Its load of the index pairs with
// the device's release of used.idx.
func (q *Queue) takeUsed() (slot int, n int, ok bool) {
	if q.packed != nil {
		id, n, ok := q.packed.takeUsed()
		if ok {
			q.seen++
			q.returned(int(id))
		}
		return int(id) / q.perSlot, int(n), ok
	}
	if q.UsedIndex() == q.seen {
		return 0, 0, false
	}
	e := q.elems[int(q.seen)&(q.g.Num-1)]
	q.seen++
	q.returned(int(e.id))
	return int(e.id) / q.perSlot, int(e.n), true
}

func (q *Queue) returned(id int) {
	slot := id / q.perSlot
	if slot >= len(q.inFlight) || !q.inFlight[slot] {
		q.Misused++
		return
	}
	q.inFlight[slot] = false
}

// WaitCall waits for a call of the device, and reports whether it came before the timeout.
func (q *Queue) WaitCall(timeout time.Duration) bool {
	p := []unix.PollFd{{Fd: int32(q.call), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, int(timeout.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if n == 1 {
			shm.DrainOwn(q.call)
		}
		return n == 1
	}
}

// Send offers a frame on a transmit ring; Publish makes it visible to the device. It
// returns false if no buffer is free.
func (q *Queue) Send(frame []byte) bool { return q.SendHeaded([12]byte{}, frame) }

// SendHeaded does the same as Send, with the virtio-net header vnet.
func (q *Queue) SendHeaded(vnet [12]byte, frame []byte) bool {
	q.Reclaim()
	if len(q.free) == 0 {
		return false
	}
	i := int(q.free[len(q.free)-1])
	q.free = q.free[:len(q.free)-1]
	header := HeaderLen(q.g.Features)
	buf := q.Slot(i)
	copy(buf[:header], vnet[:])
	copy(buf[header:], frame)
	q.Offer(q.chain(i, header+len(frame), 0))
	return true
}

// Reclaim takes the used buffers of a transmit ring and returns their number.
func (q *Queue) Reclaim() int {
	for n := 0; ; n++ {
		i, _, ok := q.takeUsed()
		if !ok {
			return n
		}
		q.filled(i, 0)
	}
}

// fillReceive offers every free buffer of a receive ring, and publishes them.
func (q *Queue) fillReceive() {
	for _, i := range q.free {
		q.Offer(q.chain(int(i), q.g.BufLen, Write))
	}
	q.free = q.free[:0]
	q.Publish()
}

// Refill offers the buffers of all frames that Recv has taken to the device again.
func (q *Queue) Refill() { q.fillReceive() }

// Recv appends the next received frame to dst. It returns the extended slice and the frame's
// virtio-net header; ok is false if there is no frame. Refill offers the frame's buffers to the device
// again.
func (q *Queue) Recv(dst []byte) (frame []byte, header [12]byte, ok bool) {
	i, n, ok := q.takeUsed()
	if !ok {
		return dst, header, false
	}
	buf := q.filled(i, n)
	size := copy(header[:HeaderLen(q.g.Features)], buf)
	dst = append(dst, buf[size:]...)
	more := 1
	if q.g.Features&vhost.FeatureMergeable != 0 {
		more = int(binary.LittleEndian.Uint16(header[10:]))
	}
	for ; more > 1; more-- {
		i, n, ok := q.takeUsed()
		if !ok {
			return dst, header, false
		}
		dst = append(dst, q.filled(i, n)...)
	}
	return dst, header, true
}

// filled releases the buffer of a slot that the device has used, and returns the n bytes that the
// device has written to it. It returns nil if there is no such slot. It counts an element with a wrong
// length in Misused: a wrong length is a sign of two devices on one ring.
func (q *Queue) filled(slot, n int) []byte {
	if slot >= q.slots {
		return nil // counted by takeUsed
	}
	q.free = append(q.free, uint16(slot))
	if n > q.g.BufLen {
		q.Misused++
		n = q.g.BufLen
	}
	return q.Slot(slot)[:n]
}
