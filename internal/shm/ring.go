// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"encoding/binary"
	"sync/atomic"
)

// A ring carries messages from one Producer to one Consumer through shared memory, without locks. A
// full ring refuses messages. The consumer of an empty ring sleeps on an eventfd. The producer writes
// to the eventfd only if the flag "sleeping" is set.
//
// A message in the ring is a 32-bit length and the message's bytes, padded to 8
// bytes. If a message does not fit before the end of the ring, the producer writes
// the length wrapMark, and the message begins at the start of the ring. Head and tail
// count bytes and only grow.
type ringHeader struct {
	head          atomic.Uint64 // number of published bytes; only the producer writes it
	messages      atomic.Uint64 // number of published messages; only the producer writes it
	_             [48]byte
	tail          atomic.Uint64 // number of released bytes; only the consumer writes it
	releasedCount atomic.Uint64 // number of released messages; only the consumer writes it
	sleeping      atomic.Uint32 // 1: the consumer sleeps or is about to; the consumer writes it
	_             [44]byte
}

const (
	wrapMark = 1<<32 - 1
	// maxMessage is the length of the longest message in bytes.
	maxMessage = 1 << 17
)

// RingMem is the memory of a ring, in which one process opens the Producer and another one the Consumer.
type RingMem struct {
	hdr  *ringHeader
	data []byte
}

// CarveRing takes the memory of a ring of size bytes from the layout. The size is a
// power of two and at least 2*maxMessage. Zeroed memory is an empty ring.
func CarveRing(l *Layout, size int) RingMem {
	hdr := Carve[ringHeader](l, 1)
	data := Carve[byte](l, size)
	if l.Mem == nil {
		return RingMem{}
	}
	return RingMem{hdr: &hdr[0], data: data}
}

// Producer is the writing end of a ring. One goroutine owns it.
type Producer struct {
	RingMem
	wake     int
	head     uint64 // number of committed bytes
	messages uint64
	reserved uint64 // value of head after Commit of the reserved message
}

// NewProducer opens the writing end of a ring, after the last published message. wake is the
// consumer's eventfd; -1: the consumer only polls.
func NewProducer(m RingMem, wake int) *Producer {
	return &Producer{RingMem: m, wake: wake, head: m.hdr.head.Load(), messages: m.hdr.messages.Load()}
}

// Reserve returns n bytes for a message, at most maxMessage. It returns nil if the ring is full. A
// second Reserve before Commit replaces the first one.
func (p *Producer) Reserve(n int) []byte {
	need := uint64(4+n+7) &^ 7
	size := uint64(len(p.data))
	at := p.head & (size - 1)
	skip := uint64(0)
	if at+need > size {
		skip = size - at
	}
	if n > maxMessage || p.head+skip+need-p.hdr.tail.Load() > size { // pairs with Release
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

// Commit appends the reserved message. The consumer sees the message after Publish.
func (p *Producer) Commit() {
	p.head = p.reserved
	p.messages++
}

// Publish makes the committed messages visible to the consumer, and wakes it if it sleeps. It returns
// the number of messages published so far. The consumer has released all of them when Done returns
// this number.
func (p *Producer) Publish() uint64 {
	if p.head != p.hdr.head.Load() {
		p.hdr.messages.Store(p.messages)
		p.hdr.head.Store(p.head) // pairs with Next
		// Sequentially consistent: the producer stores head and then loads the flag "sleeping".
		// Consumer.Sleep stores the flag and then loads head. At least one side sees the other's
		// store.
		if p.wake >= 0 && p.hdr.sleeping.Load() != 0 {
			SignalOwn(p.wake)
		}
	}
	return p.messages
}

// Push writes and publishes one message. If the ring is full, Push returns false and
// changes nothing.
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

// Done returns the number of messages that the consumer has released so far.
func (p *Producer) Done() uint64 { return p.hdr.releasedCount.Load() }

// Consumer is the reading end of a ring. One goroutine owns it.
type Consumer struct {
	RingMem
	tail  uint64 // number of bytes read, released or not
	count uint64 // number of messages read
	head  uint64 // head of the producer when the consumer loaded it last
}

// NewConsumer opens the reading end of a ring, at the first unreleased message.
func NewConsumer(m RingMem) *Consumer {
	tail := m.hdr.tail.Load()
	return &Consumer{RingMem: m, tail: tail, head: tail, count: m.hdr.releasedCount.Load()}
}

// Next returns the next message without a copy, or nil if there is none. The message
// is valid until Release. If a message's length is corrupt, the ring looks empty.
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
		if n > maxMessage || at+4+n > size {
			return nil
		}
		c.tail += (4 + n + 7) &^ 7
		c.count++
		return c.data[at+4 : at+4+n : at+4+n]
	}
}

// Release releases the space of all messages that Next has returned.
func (c *Consumer) Release() { c.ReleaseTo(c.Mark()) }

// Mark is a position between two messages of a ring, for ReleaseTo.
type Mark struct{ tail, count uint64 }

// Mark returns the position after the last message that Next has returned.
func (c *Consumer) Mark() Mark { return Mark{c.tail, c.count} }

// ReleaseTo releases the space of all messages before the mark m, which must not be before an earlier
// m.
func (c *Consumer) ReleaseTo(m Mark) {
	if c.hdr.tail.Load() != m.tail {
		c.hdr.releasedCount.Store(m.count)
		c.hdr.tail.Store(m.tail) // pairs with Reserve
	}
}

// Sleep asks the producer to signal the eventfd with the next message. If a message waits already,
// Sleep returns false and asks for nothing.
func (c *Consumer) Sleep() bool {
	c.hdr.sleeping.Store(1)
	if c.hdr.head.Load() != c.tail { // pairs with Publish
		c.hdr.sleeping.Store(0)
		return false
	}
	return true
}

// Awake cancels the request that Sleep has made.
func (c *Consumer) Awake() { c.hdr.sleeping.Store(0) }
