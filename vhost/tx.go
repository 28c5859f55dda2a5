// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"encoding/binary"

	"weft/packet"
)

// tx sends frames into the guest's receive ring. The worker owns it.
type tx struct {
	ring
	header    uint32 // size of the virtio-net header in bytes
	mergeable bool
	mtu       int
	maxFast   int // largest frame size that fillTargets handles; -1: none, because a dirty log is in use
	offloads  packet.Offloads
	accepted  int // number of frames that the last Send accepted
	pieces    int // number of excess pieces (see scatter) since the last Flush or Postpone

	// for each frame that fillTargets has prepared: the address at which its first byte goes, after
	// the virtio-net header
	targets [packet.BatchSize]uintptr
	sizes   [packet.BatchSize]uint32 // size of each frame with its virtio-net header in bytes
	chains  [maxMerged]chainRef      // chains of the frame being sent
}

// Send implements port.Tx. It stops at the first frame for which the guest has no chain.
func (q *tx) Send(b *packet.Batch, order []uint8) int {
	sent := 0
	q.accepted = 0
	for sent < len(order) {
		n := q.waiting()
		if n <= 0 {
			return sent
		}
		n = q.peek(min(n, len(order)-sent, packet.BatchSize))
		got := q.fill(b, order[sent:], n)
		sent += got
		if got == 0 {
			return sent
		}
	}
	q.prefetchAvail(0)
	return sent
}

// fill sends frames into the next n chains, whose heads are already in q.heads. It returns the number
// of frames sent. 0 means that the first frame was dropped or found too few chains, or that the device
// is broken.
func (q *tx) fill(b *packet.Batch, order []uint8, n int) int {
	prefetchWrite(&q.heads[0], n, q.cached.base-uintptr(q.cached.guest), uintptr(q.header))
	used, sent := 0, 0
	for sent < len(order) && used < n {
		if m := q.fillTargets(b, order[sent:], used, n); m > 0 {
			b.GatherAll(order[sent:][:m], q.targets[:m])
			q.takeSizes(q.heads[used:][:m], q.sizes[:m])
			sent, used = sent+m, used+m
			q.accepted += m
			continue
		}
		got := q.scatter(b, &b.Frames[order[sent]&(packet.BatchSize-1)])
		if got < 0 {
			return sent
		}
		sent, used = sent+1, used+got
		q.accepted++
	}
	return sent
}

// Taken implements port.TakingTx. It returns the number of frames that the last Send put into chains.
func (q *tx) Taken() int { return q.accepted }

// fillTargets prepares frames for the chains heads[from:n]: it sets q.targets and q.sizes, and writes
// the virtio-net headers. It handles only the usual form of chain: one writable descriptor in the
// memory region that was used last. It stops at a chain of another form, or at a frame that is too
// long. It returns the number of prepared frames.
func (q *tx) fillTargets(b *packet.Batch, order []uint8, from, n int) int {
	last, skip, maxFast, takes := q.cached, q.header, q.maxFast, q.offloads
	heads := q.heads[from:n]
	for i := range heads {
		if i >= len(order) {
			return i
		}
		f, h := &b.Frames[order[i]%packet.BatchSize], &heads[i]
		length := f.Len()
		need := uint32(length) + skip
		off := h.addr - last.guest
		if h.flags&(descNext|descWrite|descIndirect) != descWrite || off >= last.size || uint64(h.n) > last.size-off ||
			h.n < need || length > maxFast {
			return i
		}
		at := last.base + uintptr(off)
		writeHeader(at, skip)
		if takes != 0 && q.hasOffload(f) {
			f.EncodeVnet((*[packet.VnetLen]byte)(packet.Foreign(at, packet.VnetLen)))
		}
		q.targets[i%packet.BatchSize] = at + uintptr(skip)
		q.sizes[i%packet.BatchSize] = need
	}
	return len(heads)
}

// chainRef is a chain that receives a whole frame or a part of one: its id and its size in bytes.
type chainRef struct {
	id, room uint32
}

// maxMerged is the largest number of chains for one frame. A frame that needs more is
// dropped as DropOversizeFrame.
const maxMerged = 256

// freePieces is the number of pieces of a chain that scatter does not count as excess, even if they are
// small: a driver puts the virtio-net header into a piece of its own.
const freePieces = 2

// scatter sends one frame into one chain of any form or, with mergeable buffers, into
// several chains. It returns the number of chains used. If the frame is too long for
// the guest's chains, it returns 0 and sets the frame's Drop. If too few chains are
// available or the device is broken, it returns -1.
//
// scatter counts the excess pieces of a frame: those beyond one for each usualPiece bytes. It drops a
// frame with more than maxFramePieces of them. After maxVisitPieces excess pieces, it drops all frames
// until the next Flush. So the chains of a slow receiver cannot hold up the worker for long.
func (q *tx) scatter(b *packet.Batch, f *packet.Frame) int {
	need := uint64(f.Len()) + uint64(q.header)
	if f.SegmentLen() > q.mtu {
		f.Drop = packet.DropOversizeFrame
		return 0
	}
	if q.pieces >= maxVisitPieces {
		f.Drop = packet.DropSlowReceiver
		return 0
	}
	n, count, room := 0, 0, uint64(0)
	for pos := q.upcoming(); room < need; {
		h, after, got := q.headAt(pos)
		if got <= 0 {
			return -1
		}
		pos = after
		more, bytes := q.walk(&h, true, n)
		if more < 0 {
			return -1
		}
		room += bytes
		q.chains[count] = chainRef{id: h.id, room: uint32(min(bytes, 1<<31))}
		n, count = more, count+1
		if room < need && (!q.mergeable || count == maxMerged) {
			f.Drop = packet.DropOversizeFrame
			q.pieces += n
			return 0
		}
	}
	excess := max(n-int(need/usualPiece)-freePieces*count, 0)
	if q.pieces += excess; excess > maxFramePieces {
		f.Drop = packet.DropSlowReceiver
		return 0
	}
	q.copyOut(b, f, n, count)
	if q.log != nil {
		q.logWritten(uint32(need), n)
	}
	left := uint32(need)
	for _, c := range q.chains[:count] {
		filled := min(left, c.room)
		q.take(c.id, filled)
		left -= filled
	}
	return count
}

// logWritten marks the first n bytes of the frame's segments in the dirty log.
func (q *tx) logWritten(n uint32, segments int) {
	for _, s := range q.segments[:segments] {
		if n == 0 {
			return
		}
		filled := min(n, s.n)
		q.log.mark(s.addr, filled)
		n -= filled
	}
}

// copyOut writes the virtio-net header and the frame into the first n segments. count is the number of
// chains, which goes into the header as num_buffers.
func (q *tx) copyOut(b *packet.Batch, f *packet.Frame, n, count int) {
	var header [12]byte
	if q.hasOffload(f) {
		f.EncodeVnet((*[packet.VnetLen]byte)(header[:]))
	}
	binary.LittleEndian.PutUint16(header[10:], uint16(count))
	left := header[:q.header]
	cursor := b.Cursor(f)
	for _, s := range q.segments[:n] {
		dst := packet.Foreign(s.addr, s.n)
		m := copy(dst, left)
		left = left[m:]
		if len(left) == 0 && m < len(dst) && cursor.Read(dst[m:]) < len(dst)-m {
			return
		}
	}
}

// Flush implements port.Tx. It publishes the filled chains and calls the driver if the driver wants
// it.
func (q *tx) Flush() {
	q.pieces = 0
	q.publish(false)
}

// Postpone implements port.Tx. It may leave filled chains unpublished until the next Postpone or Flush.
func (q *tx) Postpone() bool {
	q.pieces = 0
	return q.publish(true)
}

// MTU implements port.Tx. It returns the largest frame size in bytes, with the Ethernet header.
func (q *tx) MTU() int { return q.mtu }

// Foreign implements port.ForeignTx. It marks the queue as one that writes to guest memory.
func (q *tx) Foreign() {}

// Close implements port.Tx. It does nothing, because the device owns all resources.
func (q *tx) Close() {}
