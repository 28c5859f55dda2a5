package shm

import (
	"encoding/binary"
	"sync/atomic"
)

// A ring carries messages of varying length from one Producer to one Consumer
// through shared memory, without locks. The two never wait for each other: a
// full ring refuses; an empty one is slept on through an eventfd that is
// written only if the consumer said it sleeps.
//
// A message is a 32-bit length followed by its bytes, padded to 8; it never
// wraps: where it does not fit before the end, a length of wrapMark skips to
// the start. Head and tail count bytes and only grow.
type ringHeader struct {
	head     atomic.Uint64 // bytes published; producer writes
	messages atomic.Uint64 // messages published; producer writes
	_        [48]byte
	tail     atomic.Uint64 // bytes released; consumer writes
	done     atomic.Uint64 // messages released; consumer writes
	sleeping atomic.Uint32 // the consumer sleeps or is about to; consumer writes
	_        [44]byte
}

const (
	wrapMark = 1<<32 - 1
	// MaxMessage is the longest message in bytes; a ring is at least twice as
	// large.
	MaxMessage = 1 << 17
)

// RingMem is a ring's place in a region, from which each side makes its end.
type RingMem struct {
	hdr  *ringHeader
	data []byte
}

// CarveRing takes a ring of size bytes (a power of two, at least 2*MaxMessage)
// from the layout. A zeroed region holds an empty ring.
func CarveRing(l *Layout, size int) RingMem {
	hdr := Carve[ringHeader](l, 1)
	data := Carve[byte](l, size)
	if l.Mem == nil {
		return RingMem{}
	}
	return RingMem{hdr: &hdr[0], data: data}
}

// Producer is the writing end. One goroutine owns it.
type Producer struct {
	RingMem
	wake     int
	head     uint64 // bytes written, published or not
	messages uint64
	reserved uint64 // head once the reserved message is committed
}

// NewProducer opens the writing end; wake is the consumer's eventfd, -1 if the
// consumer only polls. On a ring in use it goes on after the last message that
// was published.
func NewProducer(m RingMem, wake int) *Producer {
	return &Producer{RingMem: m, wake: wake, head: m.hdr.head.Load(), messages: m.hdr.messages.Load()}
}

// Reserve returns n bytes (at most MaxMessage) in the ring to write a message
// into, nil when the ring is full. Until Commit, a further Reserve starts over.
func (p *Producer) Reserve(n int) []byte {
	need := uint64(4+n+7) &^ 7
	size := uint64(len(p.data))
	at := p.head & (size - 1)
	skip := uint64(0)
	if at+need > size {
		skip = size - at
	}
	if n > MaxMessage || p.head+skip+need-p.hdr.tail.Load() > size { // pairs with Release
		return nil
	}
	if skip > 0 {
		binary.LittleEndian.PutUint32(p.data[at:], wrapMark)
		at = 0
	}
	binary.LittleEndian.PutUint32(p.data[at:], uint32(n))
	p.reserved = p.head + skip + need
	return p.data[at+4 : at+4+uint64(n) : at+4+uint64(n)]
}

// Commit adds the reserved message; it becomes visible with Publish.
func (p *Producer) Commit() {
	p.head = p.reserved
	p.messages++
}

// Publish makes the committed messages visible, wakes the consumer if it
// sleeps, and returns the number of messages published since the ring began:
// once the consumer's Done has reached it, all of them have been dealt with.
func (p *Producer) Publish() uint64 {
	if p.head != p.hdr.head.Load() {
		p.hdr.messages.Store(p.messages)
		p.hdr.head.Store(p.head) // pairs with Next
		// Store above, load below, both sequentially consistent; Sleep has them
		// the other way round, so that one of the two sees the other.
		if p.wake >= 0 && p.hdr.sleeping.Load() != 0 {
			SignalOwn(p.wake)
		}
	}
	return p.messages
}

// Push writes and publishes one message. It reports false, having changed
// nothing, when the ring is full.
func (p *Producer) Push(msg []byte) bool {
	buf := p.Reserve(len(msg))
	if buf == nil {
		return false
	}
	copy(buf, msg)
	p.Commit()
	p.Publish()
	return true
}

// Done is the number of messages the consumer has released since the ring began.
func (p *Producer) Done() uint64 { return p.hdr.done.Load() }

// Consumer is the reading end. One goroutine owns it.
type Consumer struct {
	RingMem
	tail  uint64 // bytes read, released or not
	count uint64 // messages read, released or not
	head  uint64 // the producer's head, as last seen
}

// NewConsumer opens the reading end. On a ring in use it starts with the first
// message that was not released.
func NewConsumer(m RingMem) *Consumer {
	tail := m.hdr.tail.Load()
	return &Consumer{RingMem: m, tail: tail, head: tail, count: m.hdr.done.Load()}
}

// Next returns the next message in place, nil if there is none. It stays valid
// until Release. A ring whose lengths make no sense counts as empty.
func (c *Consumer) Next() []byte {
	size := uint64(len(c.data))
	for {
		if c.tail == c.head {
			c.head = c.hdr.head.Load() // pairs with Publish
			if c.tail == c.head {
				return nil
			}
		}
		at := c.tail & (size - 1)
		n := uint64(binary.LittleEndian.Uint32(c.data[at:]))
		if n == wrapMark {
			c.tail += size - at
			continue
		}
		if n > MaxMessage || at+4+n > size {
			return nil
		}
		c.tail += (4 + n + 7) &^ 7
		c.count++
		return c.data[at+4 : at+4+n : at+4+n]
	}
}

// Release gives the room of all messages read so far back to the producer.
func (c *Consumer) Release() { c.ReleaseTo(c.Mark()) }

// Mark is a place between two messages.
type Mark struct{ tail, count uint64 }

// Mark is the place behind the message read last.
func (c *Consumer) Mark() Mark { return Mark{c.tail, c.count} }

// ReleaseTo gives the room of all messages before m back to the producer. Marks
// are released in their order.
func (c *Consumer) ReleaseTo(m Mark) {
	if c.hdr.tail.Load() != m.tail {
		c.hdr.done.Store(m.count)
		c.hdr.tail.Store(m.tail) // pairs with Reserve
	}
}

// Sleep tells the producer that its next message must wake the consumer. It
// reports false, with the wish taken back, if a message is waiting already.
func (c *Consumer) Sleep() bool {
	c.hdr.sleeping.Store(1)
	if c.hdr.head.Load() != c.tail { // pairs with Publish
		c.hdr.sleeping.Store(0)
		return false
	}
	return true
}

// Awake takes the wish for a wake-up back.
func (c *Consumer) Awake() { c.hdr.sleeping.Store(0) }
