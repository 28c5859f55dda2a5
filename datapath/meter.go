// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"

	"weft/flowtable"
	"weft/packet"
)

// Meter is one token bucket, in one cache line. The worker owns its configuration and counts; the control
// process reads the counts.
//
// All workers share the bucket, through the field Due of the first worker's meter. Due is the time at which
// all frames so far would have passed at the meter's rate (the virtual scheduling algorithm of ITU-T I.371).
// A frame costs one compare-and-swap. Each worker reads its clock once in each pass of the worker's loop, so
// the bucket is effectively deeper by the duration of the longest pass.
type Meter struct {
	Cost   uint64 // cost of one frame or bit, in units of 2^-16 ticks (meterTicks); 0: the meter is not set
	Depth  uint64 // largest number of ticks by which Due may exceed the current time
	Frames uint64 // 1: Cost is for each frame; 0: Cost is for each bit
	Due    uint64 // time in ticks of CLOCK_MONOTONIC, accessed with atomic operations
	// Packets and Bytes count all frames that reached the meter. DroppedPackets and
	// DroppedBytes count the frames that it dropped.
	Packets, Bytes               uint64
	DroppedPackets, DroppedBytes uint64
}

const (
	// meterTicks is the number of meter ticks per nanosecond. Costs have meterShift bits behind the
	// binary point.
	meterTicks = 16
	meterShift = 16
)

// NewMeter returns a meter with a rate in frames or kilobits per second and a bucket
// depth in frames or kilobits. rate and depth must not be 0.
func NewMeter(frames bool, rate, depth uint32) Meter {
	const second = meterTicks * 1_000_000_000 << meterShift
	if frames {
		cost := uint64(second) / uint64(rate)
		return Meter{Cost: cost, Depth: ticks(uint64(depth), cost), Frames: 1}
	}
	cost := uint64(second/1000) / uint64(rate)
	return Meter{Cost: cost, Depth: ticks(1000*uint64(depth), cost)}
}

// ticks returns n*cost in meter ticks. The result is at most 2^60, so that sums do not
// overflow.
func ticks(n, cost uint64) uint64 {
	hi, lo := bits.Mul64(n, cost)
	if hi >= 1<<meterShift>>4 {
		return 1 << 60
	}
	return hi<<(64-meterShift) | lo>>meterShift
}

// meterBytes is the length of the body of CmdMeter: cost, depth, frames.
const meterBytes = 24

// AppendMeter appends an encoded CmdMeter, which sets the meter in a slot to the configuration of m.
func AppendMeter(buf []byte, slot uint32, m *Meter) []byte {
	buf = appendHeader(buf, uint32(CmdMeter), slot)
	return appendWords(buf, []uint64{m.Cost, m.Depth, m.Frames})
}

// meters has the meters of a worker, and those of the first worker, whose token buckets all workers share.
type meters struct{ own, shared []Meter }

// set executes CmdMeter. It configures the meter, fills its token bucket and clears its counts. It
// returns false for an invalid command.
func (t *meters) set(slot uint32, body []byte) bool {
	if slot >= flowtable.MaxMeters || len(body) != meterBytes {
		return false
	}
	m := &t.own[slot]
	m.Cost, m.Depth = binary.LittleEndian.Uint64(body), binary.LittleEndian.Uint64(body[8:])
	m.Frames = binary.LittleEndian.Uint64(body[16:])
	m.Packets, m.Bytes, m.DroppedPackets, m.DroppedBytes = 0, 0, 0, 0
	atomic.StoreUint64(&t.due(slot).Due, 0) // pairs with the swap in admit
	return true
}

func (t *meters) due(slot uint32) *Meter {
	if t.shared != nil {
		return &t.shared[slot]
	}
	return &t.own[slot]
}

// admit counts frame f in the meter with index slot, and reports whether the frame may pass. The first
// segment of a large frame decides for the whole frame, because the bucket may be smaller than the
// frame. If the frame passes, all its segments are taken from the bucket.
func (t *meters) admit(f *packet.Frame, slot uint32, nowNS uint64) bool {
	slot %= flowtable.MaxMeters
	m := &t.own[slot]
	if m.Cost == 0 {
		return true // the control process has removed this meter and will remove its flows
	}
	n := uint64(max(1, f.SegmentCount()))
	size := uint64(f.Len())
	first, all := m.Cost, n*m.Cost
	if m.Frames == 0 {
		first, all = size*8/n*m.Cost, size*8*m.Cost
	}
	const half = 1 << (meterShift - 1) // rounds to the nearest tick, so that rounding errors do not add up
	first, all = (first+half)>>meterShift, (all+half)>>meterShift
	m.Packets += n
	m.Bytes += size
	due := &t.due(slot).Due
	now := nowNS * meterTicks
	for {
		was := atomic.LoadUint64(due)
		from := max(was, now)
		if from+first-now > m.Depth {
			m.DroppedPackets += n
			m.DroppedBytes += size
			return false
		}
		if atomic.CompareAndSwapUint64(due, was, from+all) {
			return true
		}
	}
}
