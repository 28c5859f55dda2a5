package pipeline

import (
	"weft/datapath"
	"weft/internal/shm"
)

// missQueue has the ports of one worker take turns with their misses, so that one
// on which every frame misses does not delay the first frames of the others: these
// wait for the misses that are being answered, not for all that came before them.
//
// Misses stay in the ring until they and all before them are answered; those
// answered out of order are marked there. So the next control process finds what
// waits and nothing else. The worker's pool of held frames bounds them, and the
// share of a port in it (datapath's DropHeldShare).
type missQueue struct {
	ring  *shm.Consumer
	taken fifo[takenUpcall] // in the ring's order
	first uint64            // number of the first of them
	ports map[uint32]*portMisses
	turns fifo[*portMisses] // those with misses
	batch []uint64          // numbers of what next has returned
}

// takenUpcall is a message that was read; msg is nil once it is answered.
type takenUpcall struct {
	msg    []byte
	behind shm.Mark
}

// portMisses are numbers of a port's misses.
type portMisses struct{ fifo[uint64] }

func newMissQueue(ring *shm.Consumer) *missQueue {
	return &missQueue{ring: ring, ports: map[uint32]*portMisses{}}
}

// take reads all there is in the ring, and gives what is no miss to other.
func (q *missQueue) take(other func(msg []byte)) {
	for msg := q.ring.Next(); msg != nil; msg = q.ring.Next() {
		number := q.first + uint64(q.taken.len())
		no, missed := datapath.MissedOn(msg)
		if !missed {
			other(msg)
			msg = nil
		}
		q.taken.push(takenUpcall{msg, q.ring.Mark()})
		if !missed {
			continue
		}
		p := q.ports[no]
		if p == nil {
			p = new(portMisses)
			q.ports[no] = p
		}
		if p.push(number); p.len() == 1 {
			q.turns.push(p)
		}
	}
}

// gateway appends up to n misses, one of each port in turn.
func (q *missQueue) next(misses []datapath.Upcall, n int) []datapath.Upcall {
	for len(misses) < n && q.turns.len() > 0 {
		p := q.turns.pop()
		number := p.pop()
		if p.len() > 0 {
			q.turns.push(p)
		}
		up, _ := datapath.ParseUpcall(q.taken.at(int(number - q.first)).msg) // MissedOn has looked at it
		misses, q.batch = append(misses, up), append(q.batch, number)
	}
	return misses
}

// answered notes that what next has returned is answered.
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

// waiting tells whether misses are left for a further turn.
func (q *missQueue) waiting() bool { return q.turns.len() > 0 }

// fifo is a queue in a slice.
type fifo[T any] struct {
	items []T
	head  int
}

func (f *fifo[T]) len() int    { return len(f.items) - f.head }
func (f *fifo[T]) at(i int) *T { return &f.items[f.head+i] }

// push makes room by moving what is left to the start, at most once for as many
// as were taken.
func (f *fifo[T]) push(item T) {
	if f.head > 0 && f.head >= len(f.items)/2 && len(f.items) == cap(f.items) || f.len() == 0 {
		f.items = f.items[:copy(f.items, f.items[f.head:])]
		f.head = 0
	}
	f.items = append(f.items, item)
}

// pop takes the first item; there is one.
func (f *fifo[T]) pop() T {
	item := f.items[f.head]
	f.head++
	return item
}
