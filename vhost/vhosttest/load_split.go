// SPDX-License-Identifier: Apache-2.0

package vhosttest

import (
	"bytes"
	"encoding/binary"
)

// This file has Step for split rings. It handles whole batches, because the guests must cost little:
// the benchmark measures the switch.

// stepSplit does the work of Step for split rings.
func (l *Load) stepSplit(e *end) (frames, bad int) {
	e.reclaimSplit()
	frames, bad = l.forwardSplit(e)
	e.rx.Publish()
	e.tx.Publish()
	return frames, bad
}

// reclaimSplit does the work of reclaim for split rings.
func (e *end) reclaimSplit() {
	tx, rx := e.tx, e.rx
	n := int(tx.UsedIndex() - tx.seen)
	if n == 0 || n > len(tx.elems) {
		return
	}
	mask := uint16(len(tx.elems) - 1)
	elems, ring, was, is := tx.elems, rx.ring, tx.inFlight, rx.inFlight
	from, to := tx.seen, rx.next
	for range n {
		id := elems[from&mask].id
		from++
		if int(id) >= len(was) || int(id) >= len(is) || !was[id] {
			tx.Misused++
			continue
		}
		was[id] = false
		e.sent++
		if e.offered >= e.target {
			e.spare = append(e.spare, uint16(id))
			continue
		}
		is[id] = true
		ring[to&mask] = uint16(id)
		to++
		e.offered++
	}
	tx.seen, rx.next = from, to
}

// forwardSplit sends the frames in a split receive ring on, and returns their number and the number of
// bad ones.
func (l *Load) forwardSplit(e *end) (frames, bad int) {
	tx, rx := e.tx, e.rx
	n := int(rx.UsedIndex() - rx.seen)
	if n == 0 || n > len(rx.elems) {
		return 0, 0
	}
	mask := uint16(len(rx.elems) - 1)
	elems, ring, was, is := rx.elems, tx.ring, rx.inFlight, tx.inFlight
	plain := (l.config.Flows == 1 || l.config.Keep) && !l.config.Check && l.config.Vary == nil && l.config.SampleOne == 0 && !l.config.Touch
	from, to := rx.seen, tx.next
	for range n {
		u := elems[from&mask]
		from++
		if int(u.id) >= len(was) || int(u.id) >= len(is) || !was[u.id] {
			rx.Misused++
			continue
		}
		was[u.id], is[u.id] = false, true
		if !plain {
			bad += l.inspect(e, int(u.id), int(u.n))
			if l.config.Touch {
				l.touch(e, int(u.id))
			}
			l.prepare(e, int(u.id))
		}
		ring[to&mask] = uint16(u.id)
		to++
		frames++
	}
	rx.seen, tx.next = from, to
	e.offered -= frames
	e.received += uint64(frames)
	return frames, bad
}

// inspect compares a received frame with the expected one, if Check or SampleOne selects it. It
// returns 1 for a bad frame and 0 otherwise.
func (l *Load) inspect(e *end, buffer, n int) int {
	ok := true
	switch {
	case l.config.Check:
		ok = l.good(e, buffer, n)
	case l.config.SampleOne == 0:
	case e.unread > 0:
		e.unread--
	default:
		e.unread = l.config.SampleOne - 1
		ok = l.like(e.rx.Slot(buffer), n)
	}
	if ok {
		return 0
	}
	return 1
}

// like reports whether a received frame equals the sent frame. Its UDP ports may
// differ: they may be the ports of any flow of the load.
func (l *Load) like(buf []byte, n int) bool {
	header := HeaderLen(l.config.Features)
	if n != header+l.config.FrameSize {
		return false
	}
	f := buf[header:]
	return binary.BigEndian.Uint16(f[loadPorts:])-1024 < 1<<14 &&
		bytes.Equal(f[:loadPorts], l.frame[:loadPorts]) &&
		bytes.Equal(f[loadPorts+4:l.config.FrameSize], l.frame[loadPorts+4:])
}
