package control

import (
	"errors"
	"strings"
	"testing"

	"weft/conntrack"
	"weft/control/workers"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/packet"
)

// connect has n connections begin, as a worker would.
func (f *fakes) connect(n int) {
	f.t.Helper()
	f.d.pipeline.mu.RLock()
	defer f.d.pipeline.mu.RUnlock()
	tracker := conntrack.NewTracker(conntrack.Open(*f.d.pipeline.workers.Connections(), 1), 1)
	for i := range n {
		var b packet.Batch
		var key flowtable.Key
		var metas [packet.BatchSize]conntrack.Meta
		frame, header := b.Next()
		size := copy(header[:], []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0,
			0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
			byte(i >> 8), byte(i), 0, 9, 0, 8, 0, 0})
		b.Commit(frame, size)
		if why := flowtable.Extract(&b, frame, &key); why != packet.DropNone {
			f.t.Fatal(why)
		}
		tracker.Forget(^uint32(0))
		tracker.Process(&b, []uint8{0}, &metas, &conntrack.Request{Commit: true}, clock.Monotonic())
	}
}

// A flush that no engine carries out is refused, whether that is gone from the start
// or dies meanwhile; with one again it says what it has ended.
func TestFlushWithoutEngine(t *testing.T) {
	const connections = 100 // more than one command ends
	f := newFakes(t)
	f.connect(connections)
	refused := func(what string, n int, err error) {
		t.Helper()
		if !errors.Is(err, workers.ErrGone) || !strings.Contains(err.Error(), "try again") || n != 0 {
			t.Errorf("%s: %d connections, %v", what, n, err)
		}
	}
	flush := func() (int, error) { return f.d.pipeline.flushConnections(&conntrack.Filter{}) }

	f.withoutEngine(func() {
		n, err := flush()
		refused("no engine", n, err)
	})
	if n, err := flush(); n != connections || err != nil {
		t.Errorf("with one again: %d connections, %v", n, err)
	}

	f.worker().stalled.Store(true)
	type answer struct {
		n   int
		err error
	}
	ended := make(chan answer)
	go func() {
		n, err := flush()
		ended <- answer{n, err}
	}()
	f.changing()
	if err := f.last().Kill(); err != nil {
		t.Fatal(err)
	}
	a := <-ended
	refused("the engine dies meanwhile", a.n, a.err)
}
