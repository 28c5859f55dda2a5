// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"weft/datapath"
	"weft/internal/shm"
)

// missQueue answers the misses in one worker's ring by sender, in turn. A sender is a
// port or, behind a tunnel, a VNI. A sender whose every frame misses therefore does
// not delay the first frames of other senders by more than the batch in progress.
//
// A miss stays in the ring until it and all earlier misses are answered. A miss that
// is answered out of order is marked in the ring, so that the next control process
// does not answer it again. The worker's pool of held frames limits the number of
// misses, and a sender's quota of the pool limits the misses of one sender
// (datapath's DropHeldShare).
type missQueue struct {
	ring    *shm.Consumer
	taken   fifo[takenUpcall] // in the ring's order
	first   uint64            // number of the first message in taken
	senders map[uint32]*senderMisses
	turns   fifo[*senderMisses] // senders with misses
	batch   []uint64            // numbers of the misses that the method next has returned, in the order of the ring
}

// takenUpcall is a message that was read from the ring; msg is nil once the message
// is answered.
type takenUpcall struct {
	msg    []byte
	behind shm.Mark
}

// senderMisses has the numbers of one sender's misses, in the order of the ring.
type senderMisses struct{ fifo[uint64] }

func newMissQueue(ring *shm.Consumer) *missQueue {
	return &missQueue{ring: ring, senders: map[uint32]*senderMisses{}}
}

// take reads all messages in the ring. It queues the misses, and calls the function
// other for each message that is not a miss.
func (q *missQueue) take(other func(msg []byte)) {
	for msg := q.ring.Next(); msg != nil; msg = q.ring.Next() {
		number := q.first + uint64(q.taken.len())
		sender, missed := datapath.MissedBy(msg)
		if !missed {
			other(msg)
			msg = nil
		}
		q.taken.push(takenUpcall{msg, q.ring.Mark()})
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

// next appends queued misses to the slice misses, one from each sender in turn, until
// the slice has n misses or the queue is empty.
func (q *missQueue) next(misses []datapath.Upcall, n int) []datapath.Upcall {
	for len(misses) < n && q.turns.len() > 0 {
		p := q.turns.pop()
		number := p.pop()
		if p.len() > 0 {
			q.turns.push(p)
		}
		up, _ := datapath.ParseUpcall(q.taken.at(int(number - q.first)).msg) // MissedBy has looked at it
		misses, q.batch = append(misses, up), append(q.batch, number)
	}
	return misses
}

// answered marks the misses that the method next has returned as answered.
func (q *missQueue) answered() {
	for _, number := range q.batch {
		t := q.taken.at(int(number - q.first))
		datapath.Answered(t.msg)
		t.msg = nil
	}
	q.batch = q.batch[:0]
	first := q.first
	var behind shm.Mark
	for q.taken.len() > 0 && q.taken.at(0).msg == nil {
		behind = q.taken.pop().behind
		q.first++
	}
	if q.first != first {
		q.ring.ReleaseTo(behind)
	}
}

// waiting reports whether the queue has misses.
func (q *missQueue) waiting() bool { return q.turns.len() > 0 }

// fifo is a queue in a slice.
type fifo[T any] struct {
	items []T
	head  int
}

func (f *fifo[T]) len() int    { return len(f.items) - f.head }
func (f *fifo[T]) at(i int) *T { return &f.items[f.head+i] }

// push appends an item. If the slice is full, push first moves the items to the start
// of the slice, provided that at least half of the slice was popped.
func (f *fifo[T]) push(item T) {
	if f.head > 0 && f.head >= len(f.items)/2 && len(f.items) == cap(f.items) || f.len() == 0 {
		f.items = f.items[:copy(f.items, f.items[f.head:])]
		f.head = 0
	}
	f.items = append(f.items, item)
}

// pop removes and returns the first item. The queue must not be empty.
func (f *fifo[T]) pop() T {
	item := f.items[f.head]
	f.head++
	return item
}
