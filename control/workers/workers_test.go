// SPDX-License-Identifier: Apache-2.0

package workers

import (
	"encoding/binary"
	"testing"

	"weft/datapath"
	"weft/engine"
	"weft/flowtable"
	"weft/internal/shm"
	"weft/internal/waitfor"
)

func newMemory(t *testing.T, workers int) *engine.Memory {
	t.Helper()
	m, err := engine.NewMemory(engine.Start{Cores: make([]int, workers), Sizes: datapath.Sizes{
		Cache: flowtable.Sizes{Megaflows: 16, Exact: 16, Masks: 4, Actions: 64},
		Held:  16, CommandRing: 1 << 12, UpcallRing: 1 << 12, Templates: 16,
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func command(arg uint32) []byte { return datapath.AppendCommand(nil, datapath.CmdRemove, arg, nil) }

func take(c *shm.Consumer) (args []uint32) {
	for msg := c.Next(); msg != nil; msg = c.Next() {
		args = append(args, binary.LittleEndian.Uint32(msg[4:]))
	}
	c.Release()
	return args
}

// All workers get commands in the same order. WaitApplied waits until the last command
// is applied.
func TestCommandsArriveInOrder(t *testing.T) {
	m := newMemory(t, 2)
	w := New(m, nil)
	w.Broadcast(command(1))
	w.Queue(1, command(2))
	w.QueueAll(command(3))
	if !w.Push(0, command(4)) {
		t.Error("Push to a living engine returns false")
	}
	applied := make(chan error, 1)
	go func() { applied <- w.WaitApplied() }()
	select {
	case err := <-applied:
		t.Fatalf("applied before any worker has read: %v", err)
	default:
	}
	for i, want := range [][]uint32{{1, 3, 4}, {1, 2, 3}} {
		c := shm.NewConsumer(m.Shared[i].Commands)
		var got []uint32
		waitfor.True(t, "the commands", func() bool { got = append(got, take(c)...); return len(got) == len(want) })
		for n := range want {
			if got[n] != want[n] {
				t.Errorf("worker %d has read %v, want %v", i, got, want)
			}
		}
	}
	if err := <-applied; err != nil {
		t.Error(err)
	}
}

// A goroutine that waits because a command ring is full continues when the engine dies.
func TestDeadEngineTakesNothing(t *testing.T) {
	gone := make(chan struct{})
	w := New(newMemory(t, 1), gone)
	w.Broadcast(command(1))
	ended := make(chan error, 1)
	go func() {
		for w.Push(0, command(2)) { // the last Push waits until the engine dies
		}
		ended <- w.WaitApplied()
	}()
	close(gone)
	if err := <-ended; err != ErrGone {
		t.Errorf("ended with %v", err)
	}
	if w.Push(0, command(3)) || !w.Gone() {
		t.Error("Push to a dead engine returns true")
	}
}

// Statistics ignores counts of other generations of the slot.
func TestStatisticsAreOfAGeneration(t *testing.T) {
	m := newMemory(t, 2)
	w := New(m, nil)
	for i, sh := range m.Shared {
		f := &sh.Cache.Flows[3]
		f.Generation, f.Packets, f.Bytes, f.UsedNS = 7, 10, 100, uint64(50+i)
	}
	if p, b, used := w.Statistics(3, 7); p != 20 || b != 200 || used != 51 {
		t.Errorf("installed: %d packets, %d bytes, used at %d", p, b, used)
	}
	if g, same := w.Generation(3); g != 7 || !same {
		t.Errorf("generation %d, the same %v", g, same)
	}
	m.Shared[1].Cache.Flows[3].Generation = 8 // the worker has removed the flow
	if p, _, _ := w.Statistics(3, 7); p != 20 {
		t.Errorf("removed by one worker: %d packets", p)
	}
	if _, same := w.Generation(3); same {
		t.Error("two generations are the same")
	}
	if p, _, _ := w.Statistics(3, 9); p != 0 {
		t.Errorf("of the next use: %d packets", p)
	}
}
