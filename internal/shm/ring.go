// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"encoding/binary"
	"sync/atomic"
)

// A ring carries messages of any length from one Producer to one Consumer through
// shared memory, without locks. Neither side waits for the other. A full ring refuses
// messages. The consumer of an empty ring sleeps on an eventfd, which the producer
// writes only if the consumer's sleeping flag is set.
//
// A message is a 32-bit length and its bytes, padded to 8. A message never wraps: if
// it does not fit before the end of the ring, a length of wrapMark skips to the
// start. Head and tail count bytes and only grow.
type ringHeader struct {
	head     atomic.Uint64 // number of bytes published; the producer writes it
	messages atomic.Uint64 // number of messages published; the producer writes it
	_        [48]byte
	tail     atomic.Uint64 // number of bytes released; the consumer writes it
	done     atomic.Uint64 // number of messages released; the consumer writes it
	sleeping atomic.Uint32 // set if the consumer sleeps or is about to; the consumer writes it
	_        [44]byte
}

const (
	wrapMark = 1<<32 - 1
	// MaxMessage is the longest message in bytes. A ring is at least twice as large.
	MaxMessage = 1 << 17
)

// RingMem is the memory of a ring in a region. Each side makes its end from it.
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

// Producer is the writing end of a ring. One goroutine owns it.
type Producer struct {
	RingMem
	wake     int
	head     uint64 // number of bytes written, published or not
	messages uint64
	reserved uint64 // value of head after the commit of the reserved message
}

// NewProducer opens the writing end. wake is the consumer's eventfd, or -1 if the
// consumer only polls. In a used ring it continues behind the last published message.
func NewProducer(m RingMem, wake int) *Producer {
	return &Producer{RingMem: m, wake: wake, head: m.hdr.head.Load(), messages: m.hdr.messages.Load()}
}

// Reserve returns n bytes in the ring for a message, at most MaxMessage, or nil if
// the ring is full. Another Reserve before Commit replaces the first one.
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

// Publish makes the committed messages visible and wakes the consumer if it sleeps.
// It returns the number of messages ever published. The consumer has released all of
// them when Done reaches this number.
func (p *Producer) Publish() uint64 {
	if p.head != p.hdr.head.Load() {
		p.hdr.messages.Store(p.messages)
		p.hdr.head.Store(p.head) // pairs with Next
		// The store above and the load below are sequentially consistent. Sleep
		// stores and loads in the opposite order, so at least one side sees the
		// other's store.
		if p.wake >= 0 && p.hdr.sleeping.Load() != 0 {
			SignalOwn(p.wake)
		}
	}
	return p.messages
}

// Push writes and publishes one message. If the ring is full, it changes nothing and
// returns false.
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

// Done returns the number of messages that the consumer has ever released.
func (p *Producer) Done() uint64 { return p.hdr.done.Load() }

// Consumer is the reading end of a ring. One goroutine owns it.
type Consumer struct {
	RingMem
	tail  uint64 // number of bytes read, released or not
	count uint64 // number of messages read, released or not
	head  uint64 // latest value of the producer's head read here
}

// NewConsumer opens the reading end. In a used ring it starts at the first message
// not released.
func NewConsumer(m RingMem) *Consumer {
	tail := m.hdr.tail.Load()
	return &Consumer{RingMem: m, tail: tail, head: tail, count: m.hdr.done.Load()}
}

// Next returns the next message in place, or nil. The message is valid until Release.
// A corrupt length makes the ring look empty.
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

// Release lets the producer reuse the space of all messages read so far.
func (c *Consumer) Release() { c.ReleaseTo(c.Mark()) }

// Mark is a position between two messages.
type Mark struct{ tail, count uint64 }

// Mark returns the position behind the latest message read.
func (c *Consumer) Mark() Mark { return Mark{c.tail, c.count} }

// ReleaseTo lets the producer reuse the space of all messages before m. Marks must be
// released in order.
func (c *Consumer) ReleaseTo(m Mark) {
	if c.hdr.tail.Load() != m.tail {
		c.hdr.done.Store(m.count)
		c.hdr.tail.Store(m.tail) // pairs with Reserve
	}
}

// Sleep asks the producer to wake the consumer at its next message. If a message
// waits already, Sleep cancels the request and returns false.
func (c *Consumer) Sleep() bool {
	c.hdr.sleeping.Store(1)
	if c.hdr.head.Load() != c.tail { // pairs with Publish
		c.hdr.sleeping.Store(0)
		return false
	}
	return true
}

// Awake cancels the request for a wake-up.
func (c *Consumer) Awake() { c.hdr.sleeping.Store(0) }
