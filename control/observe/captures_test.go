// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"weft/conntrack"
	"weft/datapath"
	"weft/internal/waitfor"
	"weft/openflow"
)

func newTestCaptures(t *testing.T) (*Captures, *testEngine, *testWorkers) {
	t.Helper()
	w := newTestWorkers(t)
	e := &testEngine{workers: w}
	return NewCaptures(e, slog.New(slog.DiscardHandler)), e, w
}

// A client that does not read its capture loses frames, and learns how many.
func TestCaptureLoses(t *testing.T) {
	c, _, w := newTestCaptures(t)
	s, err := c.Begin(datapath.Capture{Kind: datapath.CaptureDrops})
	if err != nil {
		t.Fatal(err)
	}
	const extra = 100
	for range captureBacklog + extra {
		w.show(t)
	}
	waitfor.True(t, "all are read", func() bool { return c.lostNow(s) == extra })
	c.End(s)
	if n := c.lost.Load(); n != extra {
		t.Errorf("%d lost", n)
	}
	if active, lost := c.Counts(); active != 0 || lost != extra {
		t.Errorf("%d sessions, %d frames lost", active, lost)
	}
}

// A capture continues with the next engine.
func TestCaptureFollowsTheEngine(t *testing.T) {
	c, e, before := newTestCaptures(t)
	s, err := c.Begin(datapath.Capture{Kind: datapath.CaptureDrops})
	if err != nil {
		t.Fatal(err)
	}
	if before.capture(0) != datapath.CaptureDrops {
		t.Errorf("the workers have capture %v", before.capture(0))
	}
	next := newTestWorkers(t)
	e.replace(next)
	waitfor.True(t, "the next workers have the capture", func() bool { return next.capture(0) == datapath.CaptureDrops })
	next.show(t)
	if f := <-s.frames; f.Kind != datapath.CapturedDrop {
		t.Errorf("%+v", f)
	}
	c.End(s)
	if next.capture(0) != datapath.CaptureNone {
		t.Errorf("after the end the workers have capture %v", next.capture(0))
	}
}

func TestCapturesAreLimited(t *testing.T) {
	c, _, _ := newTestCaptures(t)
	for range datapath.MaxCaptures {
		s, err := c.Begin(datapath.Capture{Kind: datapath.CaptureDrops})
		if err != nil {
			t.Fatal(err)
		}
		defer c.End(s)
	}
	if _, err := c.Begin(datapath.Capture{}); err == nil || !strings.Contains(err.Error(), fmt.Sprint(datapath.MaxCaptures)) {
		t.Errorf("one more: %v", err)
	}
	if n := c.refused.Load(); n != 1 {
		t.Errorf("%d refused, want 1", n)
	}
}

// A client can end its capture even if frames arrive without a pause.
func TestCaptureTurnIsBounded(t *testing.T) {
	c, _, w := newTestCaptures(t)
	s := &Session{frames: make(chan datapath.Captured, captureBacklog)}
	c.active, c.sessions[0] = 1, s
	for range 2*captureChunk + 1 {
		w.show(t)
	}
	for turn, want := range []int{captureChunk, captureChunk, 1, 0} {
		again, more := c.turn()
		if got := len(s.frames); !again || more != (turn < 2) || got != want {
			t.Errorf("turn %d: %d frames, again %v, more %v; want %d", turn, got, again, more, want)
		}
		for len(s.frames) > 0 {
			<-s.frames
		}
	}
}

// Only one goroutine reads the rings.
func TestOneReader(t *testing.T) {
	c, e, _ := newTestCaptures(t)
	events := NewConnectionEvents(e)
	var s *Session
	who := &ConnectionFollower{monitor: NewMonitor(openflow.FlowMod{}), kinds: conntrack.AllEvents}
	for i := range 20 {
		if i > 0 {
			c.End(s)
			events.End(who)
		}
		var err error
		if s, err = c.Begin(datapath.Capture{Kind: datapath.CaptureDrops}); err != nil {
			t.Fatal(err)
		}
		events.Begin(who)
	}
	defer c.End(s)
	defer events.End(who)
	text := make([]byte, 1<<20)
	text = text[:runtime.Stack(text, true)]
	for _, reader := range []string{"(*Captures).read(", "(*ConnectionEvents).read("} {
		if n := bytes.Count(text, []byte("observe."+reader)); n > 1 {
			t.Errorf("%d goroutines in %s)", n, reader)
		}
	}
}

// The bytes that a capture buffers for a client that does not read are limited.
func TestCaptureBacklogIsBoundedInBytes(t *testing.T) {
	s := &Session{frames: make(chan datapath.Captured, captureBacklog)}
	frame := datapath.Captured{Data: make([]byte, 1<<16)}
	const more = 100
	for range captureBacklogBytes>>16 + more {
		s.offer(frame)
	}
	if n := len(s.frames); n != captureBacklogBytes>>16 || s.lost.Load() != more {
		t.Errorf("%d frames of 64 KiB wait, %d are lost", n, s.lost.Load())
	}
}
