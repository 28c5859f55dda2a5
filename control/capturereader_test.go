package control

import (
	"bytes"
	"runtime"
	"testing"

	"weft/datapath"
	"weft/packet"
)

// A turn is bounded: whoever wants a capture to end gets the lock in between, however
// fast frames come.
func TestCaptureTurnIsBounded(t *testing.T) {
	f := newFakes(t)
	s := &captureSession{frames: make(chan datapath.Capture, captureBacklog)}
	c := &captures{d: f.d, active: 1}
	c.sessions[0] = s
	head := [5]byte{0, byte(datapath.CaptureDrop), 0, byte(datapath.VerdictDropped), byte(packet.DropFlow)}
	for range 2*captureChunk + 1 {
		f.worker().show(head, 1, 0, nil)
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

// However often the last one who captures or follows connections ends and another
// begins, one goroutine reads the rings.
func TestOneReader(t *testing.T) {
	f := newFakes(t)
	var s *captureSession
	who := &connectionFollower{to: &monitor{}}
	for i := range 20 {
		if i > 0 {
			f.d.captures.end(s)
			f.d.connected.end(who)
		}
		var err error
		if s, err = f.d.captures.begin(datapath.Tap{Kind: datapath.TapDrops}); err != nil {
			t.Fatal(err)
		}
		f.d.connected.begin(who)
	}
	defer f.d.captures.end(s)
	defer f.d.connected.end(who)
	text := make([]byte, 1<<20)
	text = text[:runtime.Stack(text, true)]
	for _, reader := range []string{"(*captures).read(", "(*connectionEvents).read("} {
		if n := bytes.Count(text, []byte("control."+reader)); n > 1 {
			t.Errorf("%d goroutines in %s)", n, reader)
		}
	}
}
