// SPDX-License-Identifier: Apache-2.0

package upcalls

import (
	"weft/datapath"
	"weft/internal/shm"
)

// missQueue answers the misses of one worker, round robin over the senders. A sender is
// a port or, behind a tunnel, a VNI. If every frame of one sender misses, the misses of
// another sender wait for at most one batch.
//
// A miss stays in the ring until all earlier misses are answered. The ring marks
// answered misses for the next control process. The quota of held frames limits the
// misses of a sender (datapath's DropHeldShare).
type missQueue struct {
	ring     *shm.Consumer
	received fifo[takenUpcall] // in the ring's order
	first    uint64            // number of the first message in the slice received
	senders  map[uint32]*senderMisses
	turns    fifo[*senderMisses] // senders with misses
	batch    []uint64            // numbers of the misses that the last pop returned, in ring order
}

// takenUpcall is a message from the ring. msg is nil after the message is answered.
type takenUpcall struct {
	msg    []byte
	behind shm.Mark
}

// senderMisses has the message numbers of one sender's misses, in ring order.
type senderMisses struct{ fifo[uint64] }

func newMissQueue(ring *shm.Consumer) *missQueue {
	return &missQueue{ring: ring, senders: map[uint32]*senderMisses{}}
}

// take reads the ring. It queues misses, and passes all other messages to handle.
func (q *missQueue) take(handle func(msg []byte)) {
	for msg := q.ring.Next(); msg != nil; msg = q.ring.Next() {
		number := q.first + uint64(q.received.len())
		sender, missed := datapath.MissedBy(msg)
		if !missed {
			handle(msg)
			msg = nil
		}
		q.received.push(takenUpcall{msg, q.ring.Mark()})
		if !missed {
			continue
		}
		p := q.senders[sender]
		if p == nil {
			p = new(senderMisses)
			q.senders[sender] = p
		}
		if p.push(number); p.len() == 1 {
			q.turns.push(p)
		}
	}
}

// pop appends up to n queued misses to misses, round robin over the senders.
func (q *missQueue) pop(misses []datapath.Upcall, n int) []datapath.Upcall {
	for len(misses) < n && q.turns.len() > 0 {
		p := q.turns.pop()
		number := p.pop()
		if p.len() > 0 {
			q.turns.push(p)
		}
		up, _ := datapath.ParseUpcall(q.received.item(int(number - q.first)).msg) // MissedBy has looked at it
		misses, q.batch = append(misses, up), append(q.batch, number)
	}
	return misses
}

func (q *missQueue) answered() {
	for _, number := range q.batch {
		t := q.received.item(int(number - q.first))
		datapath.Answered(t.msg)
		t.msg = nil
	}
	q.batch = q.batch[:0]
	first := q.first
	var behind shm.Mark
	for q.received.len() > 0 && q.received.item(0).msg == nil {
		behind = q.received.pop().behind
		q.first++
	}
	if q.first != first {
		q.ring.ReleaseTo(behind)
	}
}

func (q *missQueue) waiting() bool { return q.turns.len() > 0 }

// fifo is a queue in a slice.
type fifo[T any] struct {
	items []T
	head  int
}

func (f *fifo[T]) len() int      { return len(f.items) - f.head }
func (f *fifo[T]) item(i int) *T { return &f.items[f.head+i] }

func (f *fifo[T]) push(item T) {
	if f.head > 0 && f.head >= len(f.items)/2 && len(f.items) == cap(f.items) || f.len() == 0 {
		f.items = f.items[:copy(f.items, f.items[f.head:])]
		f.head = 0
	}
	f.items = append(f.items, item)
}

func (f *fifo[T]) pop() T {
	item := f.items[f.head]
	f.head++
	return item
}
