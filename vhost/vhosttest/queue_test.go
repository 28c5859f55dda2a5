// SPDX-License-Identifier: Apache-2.0

package vhosttest

import (
	"bytes"
	"sync/atomic"
	"testing"
)

// Touch writes and reads a word in each cache line of a frame, and leaves the contents unchanged.
func TestTouch(t *testing.T) {
	l, err := NewLoad(LoadConfig{FrameSize: 200, Touch: true, Core: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e := l.ends[0]
	buf := e.rx.Slot(0)[HeaderLen(l.config.Features):][:200]
	before := bytes.Clone(buf)
	l.touch(e, 0)
	if !bytes.Equal(buf, before) {
		t.Error("the frame has changed")
	}
	whole := e.sum
	for at := 0; at < len(buf); at += 64 {
		sum := e.sum
		clear(buf[at:min(at+64, len(buf))])
		l.touch(e, 0)
		if e.sum-sum == whole || bytes.Equal(buf[at:min(at+64, len(buf))], make([]byte, min(64, len(buf)-at))) {
			t.Errorf("the line at %d was not read or not written", at)
		}
	}
}

// Two devices on one ring write used elements that no correct device would write. Recv and Reclaim count
// them as misused and continue.
func TestCorruptUsedElements(t *testing.T) {
	g, err := New(Options{Num: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	rx, tx := g.Rx[0], g.Tx[0]
	use := func(q *Queue, id, length uint32) {
		q.elems[q.seen&7] = usedElem{id, length}
		atomic.AddUint32(&q.used[0], 1<<16)
	}
	rx.Refill()
	for _, e := range []struct {
		name       string
		id, length uint32
		bytes      int
	}{
		{"length 0", 0, 0, 0},
		{"within the header", 1, 5, 0},
		{"longer than the buffer", 2, 1 << 20, g.BufLen - HeaderLen(g.Features)},
		{"no such buffer", 1000, 64, 0},
	} {
		use(rx, e.id, e.length)
		if frame, _, ok := rx.Recv(nil); !ok || len(frame) != e.bytes {
			t.Errorf("%s: %d bytes, %v; want %d", e.name, len(frame), ok, e.bytes)
		}
	}
	if rx.Misused != 2 {
		t.Errorf("%d corrupt elements on the receive ring, want 2", rx.Misused)
	}
	use(tx, 1000, 0)
	if n := tx.Reclaim(); n != 1 || tx.Misused != 1 || tx.Free() != tx.Slots() {
		t.Errorf("%d elements, %d corrupt, %d buffers free; want 1, 1, %d", n, tx.Misused, tx.Free(), tx.Slots())
	}
}
