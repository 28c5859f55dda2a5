// SPDX-License-Identifier: Apache-2.0

package porttest

import (
	"sync/atomic"

	"weft/internal/shm"
	"weft/packet"
)

// Options configures a queue. Zero values mean the defaults.
type Options struct {
	Slots     int // maximum number of frames in a queue; default 256
	SlotBytes int // longest frame in bytes; default 2048
	// Header is the number of bytes that Recv copies into the header buffer (default
	// packet.InnerHeader). Span is the longest span in bytes (default: no limit).
	Header, Span int
	// Polled is the result of the receive queue's method Polled.
	Polled bool
	// Counted makes the receive queue a port.Counted. It needs Polled.
	Counted bool
	// MTU is the MTU of the transmit queue in bytes; the default is SlotBytes.
	MTU int
	// Takes is the set of offloads of the transmit queue; the default is none.
	Takes packet.Offloads
}

func (o Options) withDefaults() Options {
	if o.Slots == 0 {
		o.Slots = 256
	}
	if o.SlotBytes == 0 {
		o.SlotBytes = 2048
	}
	if o.Header == 0 {
		o.Header = packet.InnerHeader
	}
	if o.Span == 0 {
		o.Span = o.SlotBytes
	}
	if o.MTU == 0 {
		o.MTU = o.SlotBytes
	}
	return o
}

// Rx is a receive queue. One goroutine of the test injects frames; the worker receives them.
type Rx struct {
	memory
	o        Options
	lens     []uint32
	offloads []packet.Offload
	wait     int
	armed    atomic.Bool

	// number of frames that the test has injected; stored by Inject, loaded by Recv
	injected atomic.Uint64
	released atomic.Uint64 // number of frames released by the worker; pairs with Inject
	received uint64        // number of frames received by the worker
	replays  atomic.Int64  // number of frames that Recv must still repeat, see Replay

	// Retains makes ReleaseLate keep all frames unreleased until the next Release.
	Retains atomic.Bool

	// Uncounted makes Waits ignore the frames that are injected while it is true.
	Uncounted atomic.Bool
	counted   atomic.Uint64 // number of injected frames, without the uncounted ones at the end

	broken   atomic.Bool
	Recvs    atomic.Uint64 // number of calls of Recv
	Arms     atomic.Uint64 // number of calls of Arm
	Closed   atomic.Bool
	Releases atomic.Uint64 // number of calls of Release
}

// NewRx returns an empty queue. Close frees its memory.
func NewRx(o Options) *Rx {
	o = o.withDefaults()
	wait, err := shm.NewEvent()
	if err != nil {
		panic(err)
	}
	return &Rx{memory: newMemory(o.Slots * o.SlotBytes), o: o, lens: make([]uint32, o.Slots), offloads: make([]packet.Offload, o.Slots), wait: wait}
}

// Inject adds a copy of frame to the queue. It returns false if the queue is full.
func (r *Rx) Inject(frame []byte) bool { return r.InjectUndone(frame, packet.Offload{}) }

// InjectUndone does the same as Inject for a frame with the unfinished offload o.
func (r *Rx) InjectUndone(frame []byte, o packet.Offload) bool {
	at := r.injected.Load()
	if at-r.released.Load() == uint64(r.o.Slots) || len(frame) > r.o.SlotBytes {
		return false
	}
	slot := int(at % uint64(r.o.Slots))
	copy(r.bytes[slot*r.o.SlotBytes:], frame)
	r.lens[slot], r.offloads[slot] = uint32(len(frame)), o
	r.injected.Store(at + 1)
	if !r.Uncounted.Load() {
		r.counted.Store(at + 1)
	}
	if r.armed.Load() || r.o.Polled {
		shm.SignalOwn(r.wait)
	}
	return true
}

// Replay makes Recv return the injected frames again and again, n frames altogether.
func (r *Rx) Replay(n int64) {
	r.replays.Store(n)
	shm.SignalOwn(r.wait)
}

// Replayed reports whether Recv has returned all frames that Replay asked for.
func (r *Rx) Replayed() bool { return r.replays.Load() == 0 }

// Break makes every further Recv fail.
func (r *Rx) Break() { r.broken.Store(true) }

// Lent returns the number of injected frames that the worker has not released.
func (r *Rx) Lent() int { return int(r.injected.Load() - r.released.Load()) }

// Recv implements port.Rx.
func (r *Rx) Recv(b *packet.Batch) int {
	r.Recvs.Add(1)
	if r.broken.Load() {
		return -1
	}
	if left := r.replays.Load(); left > 0 {
		return r.replay(b, left)
	}
	n := 0
	for in := r.injected.Load(); r.received < in && b.Room() > 0; n++ {
		if !r.take(b, int(r.received%uint64(r.o.Slots))) {
			break
		}
		r.received++
	}
	return n
}

func (r *Rx) replay(b *packet.Batch, offloads int64) int {
	n := 0
	slots := min(r.injected.Load(), uint64(r.o.Slots))
	for int64(n) < offloads && b.Room() > 0 && r.take(b, int(r.received%slots)) {
		r.received++
		n++
	}
	r.replays.Store(offloads - int64(n))
	return n
}

func (r *Rx) take(b *packet.Batch, slot int) bool {
	f, head := b.Next()
	length := int(r.lens[slot])
	frame := r.bytes[slot*r.o.SlotBytes:][:length]
	headerLen := copy(head[:min(r.o.Header, packet.MaxHeader)], frame)
	f.Offload = r.offloads[slot]
	f.SetOrigin(address(frame))
	for at := headerLen; at < length; at += r.o.Span {
		if !b.AddSpan(f, address(frame[at:]), uint32(min(r.o.Span, length-at))) {
			b.Abandon(f)
			return false
		}
	}
	b.Commit(f, headerLen)
	return true
}

// Release implements port.Rx. After a Replay, more frames were received than injected; Release then
// releases nothing.
func (r *Rx) Release() {
	r.Releases.Add(1)
	if r.received <= r.injected.Load() {
		r.released.Store(r.received)
	}
}

// ReleaseLate implements port.Keeper. It calls Release unless Retains is set.
func (r *Rx) ReleaseLate() {
	if !r.Retains.Load() {
		r.Release()
	}
}

// MayKeep implements port.Keeper. It returns false for a polled queue: such a queue stands for a queue of the
// kernel, which loses unreleased frames if the engine process dies.
func (r *Rx) MayKeep() bool { return !r.o.Polled && 2*packet.BatchSize <= r.o.Slots/4 }

// Arm implements port.Rx.
func (r *Rx) Arm() bool {
	r.Arms.Add(1)
	r.armed.Store(true)
	return r.received < r.injected.Load() || r.replays.Load() > 0 || r.broken.Load()
}

// Disarm implements port.Rx.
func (r *Rx) Disarm() { r.armed.Store(false) }

// WaitFD implements port.Rx.
func (r *Rx) WaitFD() int { return r.wait }

// Armed reports whether the worker has requested a wake-up.
func (r *Rx) Armed() bool { return r.armed.Load() }

// Woken implements port.Rx.
func (r *Rx) Woken() { shm.DrainOwn(r.wait) }

// Polled implements port.Rx.
func (r *Rx) Polled() bool { return r.o.Polled }

// countedRx is an Rx that implements port.Counted.
type countedRx struct{ *Rx }

// Waits implements port.Counted. It returns true if Recv has not returned all counted frames.
func (r countedRx) Waits() bool { return r.received < r.counted.Load() }

// Fault implements port.Rx.
func (r *Rx) Fault() string {
	if r.broken.Load() {
		return "broken by the test"
	}
	return ""
}

// Close implements port.Rx.
func (r *Rx) Close() {
	if !r.Closed.Swap(true) {
		r.close()
		closeFD(r.wait)
	}
}
