// SPDX-License-Identifier: Apache-2.0

package workers

import (
	"sync/atomic"

	"weft/datapath"
)

// Statistics sums the counts that the workers have for a megaflow. slot and generation
// identify the megaflow. usedNS is the time of its last hit (CLOCK_MONOTONIC).
func (w *Workers) Statistics(slot, generation uint32) (packets, bytes, usedNS uint64) {
	for _, sh := range w.shared {
		flow := &sh.Cache.Flows[slot]
		if g := atomic.LoadUint32(&flow.Generation); g != generation && g != generation+1 {
			continue
		}
		packets += atomic.LoadUint64(&flow.Packets)
		bytes += atomic.LoadUint64(&flow.Bytes)
		usedNS = max(usedNS, atomic.LoadUint64(&flow.UsedNS))
	}
	return packets, bytes, usedNS
}

// Generation returns the generation of a megaflow slot. agreed is false if the workers
// have different generations.
func (w *Workers) Generation(slot uint32) (generation uint32, agreed bool) {
	first := atomic.LoadUint32(&w.shared[0].Cache.Flows[slot].Generation)
	for _, sh := range w.shared[1:] {
		if atomic.LoadUint32(&sh.Cache.Flows[slot].Generation) != first {
			return 0, false
		}
	}
	return first, true
}

// HeldSince returns the time since which a worker holds a frame that the control process must decide
// about, in ns of CLOCK_MONOTONIC. ref is the frame's reference in the upcall.
func (w *Workers) HeldSince(worker int, ref uint32) uint64 {
	held := w.shared[worker].Held
	return atomic.LoadUint64(&held[datapath.SlotOf(ref)%uint32(len(held))].SinceNS)
}

// HeldFrame appends the first bytes of a frame to buf, up to buf's capacity. A worker holds the frame
// until the control process decides about it. length is the length of the whole frame. If the frame has
// expired meanwhile, nothing is appended. ref is the frame's reference in the upcall.
func (w *Workers) HeldFrame(worker int, ref uint32, buf []byte) (frame []byte, length int) {
	sh := w.shared[worker]
	slot := datapath.SlotOf(ref) % uint32(len(sh.Held))
	if !sh.Waits(ref) {
		return buf, 0
	}
	length = int(min(atomic.LoadUint32(&sh.Held[slot].Len), datapath.HeldBytes))
	start := int(slot) * datapath.HeldBytes
	frame = append(buf, sh.HeldBytes[start:start+min(length, cap(buf)-len(buf))]...)
	if !sh.Waits(ref) { // the worker may have reused the slot during the copy
		return buf, 0
	}
	return frame, length
}

// HeldBytes returns the length in bytes of a frame that a worker holds until the control process decides
// about it. ref is the frame's reference in the upcall.
func (w *Workers) HeldBytes(worker int, ref uint32) uint64 {
	held := w.shared[worker].Held
	return uint64(atomic.LoadUint32(&held[datapath.SlotOf(ref)%uint32(len(held))].Len))
}
