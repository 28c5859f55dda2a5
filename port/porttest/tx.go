// SPDX-License-Identifier: Apache-2.0

package porttest

import (
	"sync/atomic"

	"weft/packet"
)

// Tx is a transmit queue that keeps the sent frames until the test takes them.
type Tx struct {
	memory
	o        Options
	lens     []uint32
	offloads []packet.Offload

	gathered  uint64        // number of frames gathered by the worker
	published atomic.Uint64 // number of frames published by the worker; pairs with Take
	taken     atomic.Uint64 // number of frames removed by Take; pairs with Send
	accepted  int           // result of the method Taken

	// Room is the number of frames that Send still accepts; -1: no limit.
	Room atomic.Int64
	// Discard lets Send overwrite frames that the test has not taken, for tests that do not call Take.
	Discard atomic.Bool
	// Patient makes every Postpone leave its work to a later Flush.
	Patient atomic.Bool
	Sends   atomic.Uint64 // number of calls of Send
	Flushes atomic.Uint64 // number of flushes with at least one frame
	Packets atomic.Uint64 // number of frames published
	Closed  atomic.Bool
}

// NewTx returns an empty queue. Close frees its memory.
func NewTx(o Options) *Tx {
	o = o.withDefaults()
	t := &Tx{memory: newMemory(o.Slots * o.SlotBytes), o: o, lens: make([]uint32, o.Slots),
		offloads: make([]packet.Offload, o.Slots)}
	t.Room.Store(-1)
	return t
}

// Send implements port.Tx. It panics if a frame has an offload that Options.Takes does not have.
func (t *Tx) Send(b *packet.Batch, order []uint8) int {
	t.Sends.Add(1)
	for n, i := range order {
		t.accepted = n
		f := &b.Frames[i]
		if !t.o.Takes.Takes(f) {
			panic("porttest: a frame with an offload that was not declared")
		}
		if f.SegmentLen() > t.o.MTU || f.Len() > t.o.SlotBytes {
			f.Drop = packet.DropOversizeFrame
			continue
		}
		room := t.Room.Load()
		if room == 0 || t.gathered-t.taken.Load() == uint64(t.o.Slots) && !t.Discard.Load() {
			return n
		}
		if room > 0 {
			t.Room.Store(room - 1)
		}
		slot := int(t.gathered % uint64(t.o.Slots))
		t.offloads[slot] = f.Offload
		t.lens[slot] = uint32(b.Gather(f, t.bytes[slot*t.o.SlotBytes:][:t.o.SlotBytes]))
		t.gathered++
	}
	t.accepted = len(order)
	return len(order)
}

// Taken implements port.TakingTx.
func (t *Tx) Taken() int { return t.accepted }

// Flush implements port.Tx.
func (t *Tx) Flush() {
	if was := t.published.Load(); t.gathered != was {
		t.Flushes.Add(1)
		t.Packets.Add(t.gathered - was)
		t.published.Store(t.gathered)
	}
}

// Postpone implements port.Tx.
func (t *Tx) Postpone() bool {
	if t.Patient.Load() {
		return true
	}
	t.Flush()
	return false
}

// MTU implements port.Tx.
func (t *Tx) MTU() int { return t.o.MTU }

// Offloads implements port.Tx.
func (t *Tx) Offloads() packet.Offloads { return t.o.Takes }

// Close implements port.Tx.
func (t *Tx) Close() {
	if !t.Closed.Swap(true) {
		t.close()
	}
}

// Take removes the oldest published frame and returns a copy, or nil if there is none.
func (t *Tx) Take() []byte {
	frame, _ := t.TakeUndone()
	return frame
}

// TakeUndone does the same as Take, and also returns the frame's unfinished offload.
func (t *Tx) TakeUndone() ([]byte, packet.Offload) {
	at := t.taken.Load()
	if at == t.published.Load() {
		return nil, packet.Offload{}
	}
	slot := int(at % uint64(t.o.Slots))
	frame, o := append([]byte{}, t.bytes[slot*t.o.SlotBytes:][:t.lens[slot]]...), t.offloads[slot]
	t.taken.Store(at + 1)
	return frame, o
}

// TakeAll removes all published frames and returns copies, the oldest first.
func (t *Tx) TakeAll() [][]byte {
	var all [][]byte
	for f := t.Take(); f != nil; f = t.Take() {
		all = append(all, f)
	}
	return all
}
