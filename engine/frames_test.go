// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"runtime"
	"testing"

	"weft/port"
	"weft/port/porttest"
)

// replayDevice sends frames to itself, as many as its specification says. Its State has the engine's
// numbers of allocations and garbage collections.
type replayDevice struct{ *porttest.Device }

type processStats struct {
	Collections uint32
	Allocations uint64
	Sent        uint64
}

func openReplay(spec []byte, _ []int) (port.Device, error) {
	var frames int64
	if err := json.Unmarshal(spec, &frames); err != nil {
		return nil, err
	}
	d := porttest.New(1, porttest.Options{})
	d.TxQueues[0].Discard.Store(true)
	for range 64 {
		d.RxQueues[0].Inject(ethernet(200))
	}
	d.RxQueues[0].Replay(frames)
	return replayDevice{d}, nil
}

func (d replayDevice) State() []byte {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	state, _ := json.Marshal(processStats{m.NumGC, m.Mallocs, d.TxQueues[0].Packets.Load()})
	return state
}

// A million frames cause no garbage collection, and the workers allocate nothing.
func TestMillionFrames(t *testing.T) {
	const frames = 1_000_000
	c := spawnEngine(t, t.TempDir())
	_, m := startEngine(t, c, 1)
	replay := func(spec string) processStats {
		t.Helper()
		was := m.Shared[0].Counters.Frames
		var want uint64
		json.Unmarshal([]byte(spec), &want)
		if err := c.Attach(Attach{Port: 1, Name: "r", Kind: "replay", Spec: json.RawMessage(spec)}, nil); err != nil {
			t.Fatal(err)
		}
		await(t, "the frames", func() bool { return m.Shared[0].Counters.Frames >= was+want })
		state, err := c.Detach(1)
		if err != nil {
			t.Fatal(err)
		}
		var s processStats
		if err := json.Unmarshal(state, &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	install(t, m, 0, 1, 1)
	before := replay("64")
	after := replay("1000000")
	if after.Sent < frames {
		t.Fatalf("%d frames sent", after.Sent)
	}
	if after.Collections != 0 {
		t.Errorf("%d collections in the engine", after.Collections)
	}
	if n := after.Allocations - before.Allocations; n > frames/100 {
		t.Errorf("%d allocations in the engine", n)
	}
	var drops uint64
	for _, n := range m.Shared[0].Counters.Drops {
		drops += n
	}
	if drops != 0 {
		t.Errorf("%d drops", drops)
	}
}
