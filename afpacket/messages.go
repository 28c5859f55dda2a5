// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"weft/internal/iovec"
	"weft/packet"
)

// This file sends ordinary frames, which need no segmentation. Frames with equal outer headers leave
// together as a train, which is one message of sendmmsg(2). Any other frame is a message of its own.
// One system call sends all messages (docs/decisions/0047). The frames of a connection stay in order,
// because they have the same outer addresses and ports.

// messageList divides consecutive ordinary frames of a batch into messages for sendmmsg(2). These frames are
// called a run.
type messageList struct {
	count    int
	heads    [packet.BatchSize]messageHead
	next     [packet.BatchSize]uint8  // index in the run of the next frame of the same message
	flows    [packet.BatchSize]uint64 // result of flowOf for each frame of the run
	messages []iovec.Message
	vnets    []byte // virtio-net header of each message
	outers   []byte // outer headers of each train
}

// messageHead describes one message of a messageList.
type messageHead struct {
	first  uint8 // index in the run of the first frame
	frames uint8 // number of frames
	size   int   // UDP payload of the first datagram of a train in bytes
	total  int   // UDP payload of a train in bytes
}

// lengths in bytes of the memory for each message
const (
	messageVnetLen  = 16
	messageOuterLen = 72
	messageListLen  = packet.BatchSize * (iovec.MessageSize + messageVnetLen + messageOuterLen)
)

// init places the list's arrays in messageListLen bytes of mapped memory.
func (l *messageList) init(mem []byte) {
	const vnetsAt = packet.BatchSize * iovec.MessageSize
	const outersAt = vnetsAt + packet.BatchSize*messageVnetLen
	l.messages, l.vnets, l.outers = iovec.Messages(mem, packet.BatchSize), mem[vnetsAt:outersAt], mem[outersAt:]
}

// sendOrdinary sends the ordinary frames at the start of the list order. It stops at the first frame that is
// large or too long. It returns the number of frames that it has handled. Frames that could not be sent have
// their Drop set. isFull says that the kernel is out of buffers.
//
// Memory of a guest may fault only before the first frame is sent.
func (q *txQueue) sendOrdinary(b *packet.Batch, order []uint8) (count int, isFull bool) {
	for _, i := range order {
		if f := &b.Frames[i]; f.Offload.GSO != packet.GSONone || f.SegmentLen() > q.Longest {
			break
		}
		count++
	}
	order = order[:count]
	q.ordinary.divide(b, order, q.trains, len(q.Vectors))
	q.ordinary.finishChecksums(b, order)
	return count, q.writeMessages(b, order)
}

// flowOf returns a number that is equal for frames of one outer flow. It consists of the last four
// bytes of the outer destination address and of the two ports. It returns 0 for a frame without a
// tunnel header.
func flowOf(f *packet.Frame) uint64 {
	if f.OuterL4 == 0 {
		return 0
	}
	h := f.Header()[f.OuterL4-4:]
	return binary.LittleEndian.Uint64(h)
}

// divide divides the frames in the list order into messages. A train is a message whose frames have equal
// outer headers and equal lengths; only the last frame may be shorter. vectors is the largest number of
// vectors of a train. A frame in GRE is always a message of its own. If trains is false, every frame is.
func (l *messageList) divide(b *packet.Batch, order []uint8, trains bool, vectors int) {
	l.count = 0
	for n, i := range order {
		l.flows[n] = flowOf(&b.Frames[i])
	}
	joined := uint32(0) // bit mask of the frames that earlier trains have taken
	for n, i := range order {
		if joined>>n&1 != 0 {
			continue
		}
		f := &b.Frames[i]
		head := &l.heads[l.count]
		*head = messageHead{first: uint8(n), frames: 1}
		l.count++
		if !trains || f.OuterL4 == 0 || f.Offload.Flags&packet.OffloadGRE != 0 {
			continue
		}
		outer := int(f.OuterL4) + packet.UDPLen
		head.size = f.Len() - outer
		head.total = head.size
		last, left := n, vectors-3-len(b.Spans(f)) // 3: virtio-net header, outer headers, header buffer
		for m := n + 1; m < len(order); m++ {
			if l.flows[m] != l.flows[n] || joined>>m&1 != 0 {
				continue
			}
			g := &b.Frames[order[m]]
			size := g.Len() - outer
			left -= 1 + len(b.Spans(g))
			if size > head.size || size <= 0 || head.total+size > maxTrain || left < 0 || !sameOuter(f, g) {
				break // a later frame of the flow must not overtake this one
			}
			joined |= 1 << m
			l.next[last] = uint8(m)
			last = m
			head.frames++
			head.total += size
			if size < head.size {
				break
			}
		}
	}
}

// finishChecksums computes those checksums that the device will not. The device computes one checksum for
// each frame. In a train, this is the outer checksum of each datagram, so finishChecksums computes the inner
// ones. If another frame lacks two checksums, finishChecksums computes both, because the virtio-net header
// can describe only one.
func (l *messageList) finishChecksums(b *packet.Batch, order []uint8) {
	for h := range l.heads[:l.count] {
		head := &l.heads[h]
		at := head.first
		if f := &b.Frames[order[at]]; head.frames == 1 {
			if f.Offload.Flags&packet.OffloadOuter != 0 {
				b.FinishChecksum(f)
			}
			continue
		}
		for range head.frames {
			f := &b.Frames[order[at]]
			f.Offload.Flags &^= packet.OffloadOuter
			b.FinishChecksum(f)
			at = l.next[at]
		}
	}
}

// writeMessages sends all messages of the list. It needs several system calls if the queue has too few I/O
// vectors for all messages. It returns true if the kernel is out of buffers.
func (q *txQueue) writeMessages(b *packet.Batch, order []uint8) (full bool) {
	l := &q.ordinary
	from, vectors := 0, 0
	for h := 0; h < l.count; h++ {
		more := q.gatherMessage(b, order, h, h-from, vectors)
		if more == 0 && h > from {
			if q.writeSome(b, order, from, h) {
				l.drop(b, order, h, l.count, packet.DropTxFull)
				return true
			}
			from = h
			more = q.gatherMessage(b, order, h, 0, 0)
		}
		if more == 0 { // the frame has too many pieces or none
			l.drop(b, order, h, h+1, packet.DropTxFailed)
			from = h + 1
		}
		vectors = more
	}
	return q.writeSome(b, order, from, l.count)
}

// gatherMessage fills messages[m] with the frames of heads[h]. It uses the queue's I/O vectors from number n
// on, and returns the number of the next free vector. It returns 0 if too few vectors are left.
func (q *txQueue) gatherMessage(b *packet.Batch, order []uint8, h, m, n int) int {
	l := &q.ordinary
	head, begin := &l.heads[h], n
	if n+2 > len(q.Vectors) {
		return 0
	}
	at := head.first
	f := &b.Frames[order[at]]
	vnet := l.vnets[m*messageVnetLen:][:packet.VnetLen]
	q.Vectors[n] = iovec.Vector{Base: iovec.Address(vnet), Len: packet.VnetLen}
	if head.frames == 1 {
		f.EncodeVnet((*[packet.VnetLen]byte)(vnet))
		if n = q.add(n+1, b, f, 0); n == 0 {
			return 0
		}
	} else {
		outer := int(f.OuterL4) + packet.UDPLen
		headers := l.outers[m*messageOuterLen:][:copy(l.outers[m*messageOuterLen:][:messageOuterLen], f.Header()[:outer])]
		finishOuter(vnet, headers, f, head.size, head.total)
		q.Vectors[n+1] = iovec.Vector{Base: iovec.Address(headers), Len: uintptr(outer)}
		n += 2
		for range head.frames {
			if n = q.add(n, b, &b.Frames[order[at]], outer); n == 0 {
				return 0
			}
			at = l.next[at]
		}
	}
	l.messages[m].Set(q.Vectors[begin:n])
	return n
}

// writeSome sends the messages of heads[from:to], which begin at messages[0]. It returns true if the
// kernel is out of buffers.
func (q *txQueue) writeSome(b *packet.Batch, order []uint8, from, to int) (full bool) {
	l := &q.ordinary
	for h := from; h < to; {
		sent, errno := 1, unix.Errno(0)
		if to-from == 1 { // writev costs 80 ns less than sendmmsg of one message
			errno = q.WriteTo(q.FD, int(l.messages[0].Count))
		} else {
			sent, errno = iovec.SendMessages(q.FD, l.messages[h-from:to-from])
		}
		if errno == 0 {
			h += sent
			continue
		}
		reason := dropReason(errno)
		if reason == packet.DropTxFull {
			l.drop(b, order, h, to, reason)
			return true
		}
		l.drop(b, order, h, h+1, reason)
		h++
	}
	return false
}

// drop sets Drop to reason in all frames of heads[from:to].
func (l *messageList) drop(b *packet.Batch, order []uint8, from, to int, reason packet.DropReason) {
	for h := from; h < to; h++ {
		at := l.heads[h].first
		for range l.heads[h].frames {
			b.Frames[order[at]].Drop = reason
			at = l.next[at]
		}
	}
}
