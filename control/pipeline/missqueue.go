// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"container/heap"
	"maps"

	"weft/datapath"
	"weft/internal/shm"
)

// missQueue selects the next miss of one worker to answer. It is the next miss of the sender whose
// misses have taken the least time so far. A sender is a port or, behind a tunnel, a VNI. If every
// frame of one sender misses, and each look-up takes long, a miss of another sender waits for one of
// them.
//
// The order is that of start-time fair queueing (Goyal, Vin and Cheng, 1996). Each sender has an
// account: the time that its misses have taken. A sender saves up no time while it has no misses.
// When it has one again, its account is at least that of the sender whose miss was answered last.
//
// A miss stays in the ring until all earlier misses are answered. The ring marks answered misses, so
// that the next control process skips them. The workers limit the number of misses of each sender
// (datapath's DropHeldShare).
type missQueue struct {
	ring     *shm.Consumer
	received fifo[takenUpcall] // in the ring's order
	first    uint64            // number of the first message in the slice received
	senders  map[uint32]*senderMisses
	turns    turns  // senders with misses
	turn     uint64 // account of the sender whose miss was the last to leave the queue
	pushes   uint64 // number of entries into turns so far
	batch    []poppedMiss
}

// poppedMiss is a miss that the last pop returned.
type poppedMiss struct {
	number  uint64
	sender  *senderMisses
	turn    uint64 // the sender's account before it was charged
	charged uint64 // time that pop has charged
}

// takenUpcall is a message from the ring. msg is nil if the message is answered. "behind" is the
// position in the ring after the message.
type takenUpcall struct {
	msg    []byte
	behind shm.Mark
}

// senderMisses has the misses of one sender, as message numbers in ring order.
type senderMisses struct {
	fifo[uint64]
	account uint64 // time that the sender's misses have taken, in nanoseconds
	usual   uint64 // moving average of the time that a miss of the sender takes, in nanoseconds
	place   int    // index in missQueue.turns
	entry   uint64 // value of missQueue.pushes when the sender entered turns
}

// turns is a heap of senders (container/heap). The sender with the smallest account, the least time
// of its misses so far, is first. Among equal accounts, the sender that entered the heap first is
// first.
type turns []*senderMisses

func (t turns) Len() int { return len(t) }
func (t turns) Less(i, j int) bool {
	if t[i].account != t[j].account {
		return t[i].account < t[j].account
	}
	return t[i].entry < t[j].entry
}
func (t turns) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].place, t[j].place = i, j
}
func (t *turns) Push(x any) {
	p := x.(*senderMisses)
	p.place = len(*t)
	*t = append(*t, p)
}
func (t *turns) Pop() any {
	last := len(*t) - 1
	p := (*t)[last]
	*t = (*t)[:last]
	return p
}

// maxIdleSenders is the number of senders from which on the queue forgets senders without misses
// when a new sender appears.
const maxIdleSenders = 1024

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
		p := q.sender(sender)
		if p.push(number); p.len() == 1 {
			p.account = max(p.account, q.turn)
			q.enter(p)
		}
	}
}

func (q *missQueue) sender(number uint32) *senderMisses {
	p := q.senders[number]
	if p == nil {
		if len(q.senders) >= maxIdleSenders {
			maps.DeleteFunc(q.senders, func(_ uint32, p *senderMisses) bool { return p.len() == 0 && p.account <= q.turn })
		}
		p = new(senderMisses)
		q.senders[number] = p
	}
	return p
}

func (q *missQueue) enter(p *senderMisses) {
	p.entry = q.pushes
	q.pushes++
	heap.Push(&q.turns, p)
}

// pop appends up to n queued misses to missList, in the order of the senders' accounts. It adds the
// average time of a miss of the sender to the sender's account. The method answered later replaces
// it by the real time.
func (q *missQueue) pop(missList []datapath.Upcall, n int) []datapath.Upcall {
	for len(missList) < n && len(q.turns) > 0 {
		p := heap.Pop(&q.turns).(*senderMisses)
		number, charged := p.pop(), max(p.usual, 1)
		q.turn = p.account
		p.account += charged
		if p.len() > 0 {
			q.enter(p)
		}
		up, _ := datapath.ParseUpcall(q.received.item(int(number - q.first)).msg) // MissedBy has looked at it
		missList, q.batch = append(missList, up), append(q.batch, poppedMiss{number, p, q.turn, charged})
	}
	return missList
}

// answered ends the first misses of those that the last pop returned. "costs" has an element for
// each of them: the time in nanoseconds that it took. The other misses go back to the queue.
func (q *missQueue) answered(costs []uint64) {
	for i := len(q.batch) - 1; i >= len(costs); i-- {
		b := &q.batch[i]
		b.sender.account -= b.charged
		if b.sender.unpop(b.number); b.sender.len() == 1 {
			q.enter(b.sender)
		} else {
			heap.Fix(&q.turns, b.sender.place)
		}
	}
	for i, cost := range costs {
		b := &q.batch[i]
		q.turn = b.turn
		t := q.received.item(int(b.number - q.first))
		datapath.Answered(t.msg)
		t.msg = nil
		b.sender.account += cost - b.charged // may wrap: the sum does not
		b.sender.usual = (7*b.sender.usual + cost) / 8
		if b.sender.len() > 0 {
			heap.Fix(&q.turns, b.sender.place)
		}
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

func (q *missQueue) waiting() bool { return len(q.turns) > 0 }

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

// unpop puts the item of the last pop back. No push may come between the pop and unpop.
func (f *fifo[T]) unpop(item T) {
	f.head--
	f.items[f.head] = item
}
