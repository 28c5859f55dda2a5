// SPDX-License-Identifier: Apache-2.0

// Package workertest has a simulated worker for tests of the control process. It has a real cache and real
// rings, but flow keys instead of ports and frames.
package workertest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"weft/datapath"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/internal/shm"
	"weft/packet"
)

// Worker is one simulated worker. Its goroutine owns the exported fields; tests read
// them through On.
type Worker struct {
	Shared   *datapath.Shared
	Cache    *flowtable.Cache
	commands *shm.Consumer
	Upcalls  *shm.Producer
	do       chan func()
	stop     chan struct{}
	ended    chan struct{}
	Stalled  atomic.Bool // the worker does not read commands

	Held     uint32            // slot of the last held frame
	Retries  []uint32          // held frames that CmdRetry has resumed, in order; each is a slot number
	Executed map[uint32]int    // number of actions that CmdExecute has executed, by slot of the held frame
	dropped  map[uint32]uint32 // drop reason that CmdDropHeld gave, by slot of the held frame
	Frames   map[uint32]miss   // held frames by slot
	Lost     int               // number of misses after CmdRetry
	Captures [datapath.MaxCaptures]Capture
	Installs int
	Weights  map[uint32]uint32 // weights above 1, by port
	Injected []Injected        // frames of CmdInject, in order
	Consumed int               // number of held frames that control has taken for itself
}

// Injected is a frame that the control process has made and has told the worker to send.
type Injected struct {
	Output uint32 // port of the first action
	Frame  []byte
}

// Capture is a capture or live trace that the control process has started in the worker.
type Capture struct {
	Kind datapath.CaptureKind
	Snap uint32
}

type miss struct {
	key   flowtable.Key
	bytes uint64
}

// Wait waits until the worker has ended. The shared memory may then be unmapped.
func (w *Worker) Wait() { <-w.ended }

func (w *Worker) run() {
	defer close(w.ended)
	for {
		select {
		case <-w.stop:
			return
		case f := <-w.do:
			f()
		case <-time.After(20 * time.Microsecond):
		}
		for !w.Stalled.Load() {
			msg := w.commands.Next()
			if msg == nil {
				break
			}
			w.command(msg)
			w.commands.Release()
		}
	}
}

// On runs f on the worker's goroutine. It does nothing if the engine has died.
func (w *Worker) On(f func()) {
	done := make(chan struct{})
	select {
	case w.do <- func() { f(); close(done) }:
		<-done
	case <-w.stop:
	}
}

func (w *Worker) command(msg []byte) {
	op, arg := datapath.CommandOp(binary.LittleEndian.Uint32(msg)), binary.LittleEndian.Uint32(msg[4:])
	body := msg[8:]
	switch op {
	case datapath.CmdInstall:
		w.Installs++
		var key, mask flowtable.Key
		for i := range key {
			key[i] = binary.LittleEndian.Uint64(body[8*i:])
			mask[i] = binary.LittleEndian.Uint64(body[8*(len(key)+i):])
		}
		var actions []flowtable.Action
		for rest := body[16*len(key):]; len(rest) >= 16; rest = rest[16:] {
			actions = append(actions, flowtable.Action{
				Op: flowtable.Op(rest[0]), U16: binary.LittleEndian.Uint16(rest[2:]),
				U32: binary.LittleEndian.Uint32(rest[4:]), U64: binary.LittleEndian.Uint64(rest[8:]),
			})
		}
		if r := w.Cache.Install(arg, &key, &mask, actions); r != flowtable.Installed {
			panic(fmt.Sprintf("install refused: %d", r))
		}
	case datapath.CmdRemove:
		w.Cache.Remove(arg)
	case datapath.CmdRetry:
		w.Retries = append(w.Retries, arg)
		if f, ok := w.Frames[arg]; ok && !w.hit(&f.key, f.bytes) {
			w.Lost++
		}
		delete(w.Frames, arg)
	case datapath.CmdExecute:
		w.Executed[arg] = len(body) / 16
		delete(w.Frames, arg)
	case datapath.CmdCapture:
		w.Captures[arg] = Capture{
			Kind: datapath.CaptureKind(binary.LittleEndian.Uint32(body)), Snap: binary.LittleEndian.Uint32(body[8:]),
		}
	case datapath.CmdWeight:
		weight := binary.LittleEndian.Uint32(body)
		switch {
		case arg == 0 && weight == 1:
			clear(w.Weights)
		case weight == 1:
			delete(w.Weights, arg)
		default:
			w.Weights[arg] = weight
		}
	case datapath.CmdInject:
		n := 16 * int(binary.LittleEndian.Uint32(body))
		w.Injected = append(w.Injected, Injected{binary.LittleEndian.Uint32(body[8:]), bytes.Clone(body[4+n:])})
	case datapath.CmdDropHeld:
		if binary.LittleEndian.Uint32(body) == uint32(packet.Consumed) {
			w.Consumed++
		}
		w.dropped[arg] = binary.LittleEndian.Uint32(body)
		delete(w.Frames, arg)
	}
}

func (w *Worker) hit(key *flowtable.Key, bytes uint64) bool {
	slot, ok := w.Lookup(key)
	if ok {
		f := w.Cache.Flow(slot)
		atomic.AddUint64(&f.Packets, 1)
		atomic.AddUint64(&f.Bytes, bytes)
		atomic.StoreUint64(&f.UsedNS, clock.Monotonic())
	}
	return ok
}

// Lookup returns the slot of the megaflow that matches a key.
func (w *Worker) Lookup(key *flowtable.Key) (uint32, bool) {
	var keys [packet.BatchSize]flowtable.Key
	var out [packet.BatchSize]uint32
	var n flowtable.LookupCounts
	keys[0] = *key
	w.Cache.Lookup(&keys, 1, &out, &n)
	return out[0], out[0] != flowtable.NoSlot
}

// Frame handles a frame with this key and length. If no megaflow matches, the worker
// holds the frame and sends an upcall.
func (w *Worker) Frame(key flowtable.Key, bytes uint64) {
	w.On(func() {
		if w.hit(&key, bytes) {
			return
		}
		w.Held = (w.Held + 1) % uint32(len(w.Shared.Held))
		w.Frames[w.Held] = miss{key, bytes}
		atomic.StoreUint32(&w.Shared.Held[w.Held].Len, uint32(bytes))
		msg := binary.LittleEndian.AppendUint32(nil, uint32(datapath.UpMiss))
		msg = binary.LittleEndian.AppendUint32(msg, w.Held)
		for _, word := range key {
			msg = binary.LittleEndian.AppendUint64(msg, word)
		}
		if !w.Upcalls.Push(msg) {
			panic("upcall ring is full")
		}
	})
}

// Whole handles a frame like Frame. It also stores the frame's bytes, so that the control process can read
// them while the worker holds the frame.
func (w *Worker) Whole(key flowtable.Key, frame []byte) {
	w.On(func() {
		slot := (w.Held + 1) % uint32(len(w.Shared.Held))
		copy(w.Shared.HeldBytes[int(slot)*datapath.HeldBytes:], frame)
		atomic.StoreUint32(&w.Shared.Held[slot].State, datapath.HeldWaiting)
	})
	w.Frame(key, uint64(len(frame)))
}

// Waiting returns the number of frames that the worker holds until the control process answers their
// upcalls.
func (w *Worker) Waiting() (n int) {
	w.On(func() { n = len(w.Frames) })
	return n
}

// Show writes a record of a captured frame with one output port to the capture ring. head has the first
// bytes of the record: the capture, the kind, the cache, the verdict and the drop reason.
func (w *Worker) Show(head [5]byte, port, output uint32, data []byte) {
	w.On(func() {
		msg := make([]byte, 104+len(data))
		copy(msg, head[:])
		msg[5] = 1
		binary.LittleEndian.PutUint32(msg[8:], port)
		binary.LittleEndian.PutUint32(msg[12:], port)
		binary.LittleEndian.PutUint32(msg[24:], uint32(len(data)))
		binary.LittleEndian.PutUint64(msg[32:], clock.Monotonic())
		binary.LittleEndian.PutUint16(msg[68:], uint16(output))
		copy(msg[104:], data)
		if !shm.NewProducer(w.Shared.Captures, -1).Push(msg) {
			panic("capture ring is full")
		}
	})
}

// New starts a worker on shared memory. It runs until stop is closed.
func New(shared *datapath.Shared, upcallEvent int, stop chan struct{}) *Worker {
	w := &Worker{
		Shared: shared, do: make(chan func()), stop: stop, ended: make(chan struct{}),
		Cache:    flowtable.NewCache(shared.Cache, 1),
		commands: shm.NewConsumer(shared.Commands),
		Upcalls:  shm.NewProducer(shared.Upcalls, upcallEvent),
		Executed: map[uint32]int{}, Weights: map[uint32]uint32{}, dropped: map[uint32]uint32{}, Frames: map[uint32]miss{},
	}
	go w.run()
	return w
}
