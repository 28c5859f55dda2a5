// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"bytes"
	"math/rand"
	"runtime"
	"testing"
)

func newRing(t testing.TB, size int) RingMem {
	t.Helper()
	var measure Layout
	CarveRing(&measure, size)
	r, err := Create("test", measure.Off)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return CarveRing(&Layout{Mem: r.Bytes()}, size)
}

// Messages of random lengths arrive unchanged and in order between two goroutines.
func TestRingOrder(t *testing.T) {
	m := newRing(t, 2*maxMessage)
	const count = 20000
	message := func(i int) []byte {
		rng := rand.New(rand.NewSource(int64(i)))
		b := make([]byte, rng.Intn(700))
		rng.Read(b)
		return b
	}
	go func() {
		p := NewProducer(m, -1)
		for i := 0; i < count; {
			if p.Push(message(i)) {
				i++
			} else {
				runtime.Gosched()
			}
		}
	}()
	c := NewConsumer(m)
	for i := 0; i < count; {
		got := c.Next()
		if got == nil {
			c.Release()
			runtime.Gosched()
			continue
		}
		if want := message(i); !bytes.Equal(got, want) {
			t.Fatalf("message %d: got %d bytes, want %d", i, len(got), len(want))
		}
		i++
	}
	c.Release()
	if p := NewProducer(m, -1); p.Done() != count {
		t.Fatalf("Done = %d, want %d", p.Done(), count)
	}
}

// ReleaseTo releases only the messages before the mark.
func TestRingReleaseTo(t *testing.T) {
	m := newRing(t, 2*maxMessage)
	p, c := NewProducer(m, -1), NewConsumer(m)
	for i := range byte(3) {
		p.Push([]byte{i})
	}
	c.Next()
	mark := c.Mark()
	second := c.Next()
	c.Next()
	c.ReleaseTo(mark)
	if p.Done() != 1 || second[0] != 1 {
		t.Errorf("%d released, the second is %d", p.Done(), second[0])
	}
	if again := NewConsumer(m).Next(); len(again) != 1 || again[0] != 1 {
		t.Errorf("a reopened end begins with %v", again)
	}
	c.Release()
	if p.Done() != 3 {
		t.Errorf("%d released", p.Done())
	}
}

// A full ring refuses further messages and keeps those that it has, even when both ends are opened
// again.
func TestRingFullAndReopen(t *testing.T) {
	m := newRing(t, 2*maxMessage)
	p := NewProducer(m, -1)
	msg := make([]byte, 1000)
	sent := 0
	for ; p.Push(msg); sent++ {
		msg[0]++
	}
	if sent < 250 {
		t.Fatalf("only %d messages fit", sent)
	}
	c := NewConsumer(m)
	c.Next()
	c.Next()
	c.Release()
	c.Next()           // not released, so it is received again
	c = NewConsumer(m) // restart of the consumer
	p = NewProducer(m, -1)
	for i := 2; i < sent; i++ {
		got := c.Next()
		if got == nil || got[0] != byte(i) {
			t.Fatalf("message %d after reopening: %v", i, got[:1])
		}
	}
	if c.Next() != nil {
		t.Fatal("more messages than sent")
	}
	if c.Release(); !p.Push(msg) {
		t.Fatal("an empty ring refused")
	}
}

// If the ring has a message, Sleep returns false. Otherwise the next message wakes the consumer.
func TestRingSleep(t *testing.T) {
	m := newRing(t, 2*maxMessage)
	fd, err := NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	p, c := NewProducer(m, fd), NewConsumer(m)
	if !c.Sleep() {
		t.Fatal("an empty ring refused Sleep")
	}
	p.Push([]byte("x"))
	var buf [8]byte
	if n, _ := readEvent(fd, buf[:]); n != 8 {
		t.Fatal("no wake-up")
	}
	if c.Sleep() {
		t.Fatal("slept over a message")
	}
}

func TestRingAllocatesNothing(t *testing.T) {
	m := newRing(t, 2*maxMessage)
	p, c := NewProducer(m, -1), NewConsumer(m)
	msg := make([]byte, 100)
	if n := testing.AllocsPerRun(1000, func() { p.Push(msg); c.Next(); c.Release() }); n != 0 {
		t.Fatalf("%v allocations a message", n)
	}
}
