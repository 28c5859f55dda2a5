// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"slices"
	"sync"
	"time"

	"weft/control/limits"
	"weft/control/loop"
	"weft/control/underlay"
	"weft/control/workers"
	"weft/datapath"
	"weft/internal/clock"
	"weft/openflow/fdb"
	"weft/packet"
)

const (
	// maxPortQuestions limits the stored frames of one port that wait for the location of an address.
	// For further frames of the port, the switch does not ask the service weft-central.
	maxPortQuestions = 64
	// newQuestions is the part of maxPortQuestions that is reserved for frames to addresses for which
	// no frame waits yet. Otherwise many frames to one address could keep the port from asking for
	// other addresses.
	newQuestions = 16
	// questionTimeout is the time after which a frame stops waiting. It is shorter than the time
	// after which the worker drops the frame (datapath/held.go, heldTimeoutNS). If the frame is then dropped,
	// it counts as packet.DropNoAddress.
	questionTimeout = time.Second
	// questionTick is the time between two checks of the waiting frames against questionTimeout.
	questionTick = 100 * time.Millisecond
)

// questions asks weft-central, the service that configures the networks of many hosts, where an
// address is. Until the answer arrives, the workers store the frames to this address. If no host has
// the address, such a frame is treated like any frame to an unknown address. If no answer arrives,
// the frame is dropped if the network has the setting Asked, and treated like a frame to an unknown
// address otherwise.
//
// questions.mu guards the waiting frames. It is taken after Pipeline.mu. Under questions.mu, only
// answerer.Knows is called, which takes the lock of the address table. The goroutines of Run hold no
// lock while they ask and forward frames.
type questions struct {
	answerer answerer

	mu      sync.Mutex
	waiting map[fdb.Question][]questionFrame
	ports   map[uint32]*portQuestions
	unasked []fdb.Question // questions not asked yet, in order of arrival; missQueue lets senders take turns
	wake    chan struct{}  // a question is in unasked
	began   chan struct{}  // a frame waits
}

// questionFrame is a frame that a worker stores until the service weft-central has told where its
// address is.
type questionFrame struct {
	Workers *workers.Workers
	Held    underlay.HeldFrame
	Miss    datapath.Upcall
	Port    uint32 // sender
	Must    bool   // without an answer the frame is dropped
	sinceNS uint64
}

// answerer is the Pipeline; tests replace it. Knows is called under questions.mu, so it may only
// take locks that are taken after that lock. The other methods are called without a lock, or under
// the configuration lock.
type answerer interface {
	// Knows reports whether the switch knows where the address in q is.
	Knows(q fdb.Question) bool
	PortName(number uint32) (string, bool)
	// Ask asks the service weft-central where the address in q is. It returns false if no answer will
	// come.
	Ask(port string, q fdb.Question) bool
	// Resume looks up a waiting frame again and forwards it. If absent is true, no host has the
	// address, and the frame is treated like any frame to an unknown address.
	Resume(f *questionFrame, absent bool)
}

// portQuestions counts the frames of a port that wait for the location of an address, and those that
// were dropped instead.
type portQuestions struct {
	waiting int
	dropped uint64
}

func makeQuestions(a answerer) *questions {
	return &questions{answerer: a, waiting: map[fdb.Question][]questionFrame{}, ports: map[uint32]*portQuestions{}, wake: make(chan struct{}, 1), began: make(chan struct{}, 1)}
}

// Hold makes a frame wait for the answer to q. It returns false if too many frames of the port wait
// already. If the frame's field Must is set, the frame then counts as dropped, and the caller drops
// it.
func (qs *questions) Hold(q fdb.Question, f *questionFrame) bool {
	f.sinceNS = clock.Monotonic()
	if qs.hold(q, f) {
		return true
	}
	if f.Must {
		qs.refuse(f.Port)
	}
	return false
}

func (qs *questions) hold(q fdb.Question, f *questionFrame) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	p := qs.ports[f.Port]
	if p == nil {
		p = new(portQuestions)
		qs.ports[f.Port] = p
	}
	asked := len(qs.waiting[q]) > 0
	if p.waiting >= maxPortQuestions || asked && p.waiting >= maxPortQuestions-newQuestions {
		return false
	}
	p.waiting++
	if !asked {
		qs.unasked = append(qs.unasked, q)
		loop.Notify(qs.wake)
	}
	qs.waiting[q] = append(qs.waiting[q], *f)
	loop.Notify(qs.began)
	return true
}

func (qs *questions) none() bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return len(qs.waiting) == 0
}

// refuse counts a frame that is dropped because too many frames of its port wait.
func (qs *questions) refuse(port uint32) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	qs.ports[port].dropped++
}

// take removes and returns the frames that wait for an address for which "pick" returns true. If
// dropped is true, it counts the frames as dropped.
func (qs *questions) take(dropped bool, pick func(q fdb.Question, oldest *questionFrame) bool) (frames []questionFrame) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for q, list := range qs.waiting {
		if !pick(q, &list[0]) {
			continue
		}
		delete(qs.waiting, q)
		frames = append(frames, list...)
		for i := range list {
			p := qs.ports[list[i].Port]
			p.waiting--
			if dropped {
				p.dropped++
			}
		}
	}
	return frames
}

func (qs *questions) next() (list []fdb.Question, ports []uint32) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for _, q := range qs.unasked {
		if frames := qs.waiting[q]; len(frames) > 0 {
			list, ports = append(list, q), append(ports, frames[0].Port)
		}
	}
	qs.unasked = qs.unasked[:0]
	return list, ports
}

// LimitRows reports how many frames wait, and the limit. It is a limits.Source.
func (qs *questions) LimitRows(emit func(limits.Row)) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	var all portQuestions
	for no, p := range qs.ports {
		all.waiting += p.waiting
		all.dropped += p.dropped
		if p.waiting > 0 || p.dropped > 0 {
			emit(limits.Row{Name: "questions", Unit: "frames", Holder: limits.Port(no), Used: uint64(p.waiting), Limit: maxPortQuestions, Refused: p.dropped})
		}
	}
	emit(limits.Row{Name: "questions", Unit: "frames", Holder: limits.All(), Used: uint64(all.waiting), Refused: all.dropped})
}

// Run asks the service weft-central for addresses, and ends the wait of frames without an answer,
// until ctx ends.
func (qs *questions) Run(ctx context.Context) {
	var done sync.WaitGroup
	done.Go(func() { qs.ask(ctx) })
	done.Go(func() { qs.dropUnanswered(ctx) })
	done.Wait()
}

// ask asks the agent of the service weft-central for the addresses that frames wait for, until ctx
// ends. It holds no lock, because the agent may wait for the pipeline.
func (qs *questions) ask(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-qs.wake:
			qs.askNext()
		}
	}
}

// dropUnanswered ends the wait of frames after questionTimeout, until ctx ends. It needs no timer
// while no frame waits. It runs in a goroutine of its own, because ask may wait for the service
// weft-central.
func (qs *questions) dropUnanswered(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-qs.began:
		}
		for !qs.none() {
			if !loop.Sleep(ctx, questionTick) {
				return
			}
			now := clock.Monotonic()
			qs.giveUp(func(_ fdb.Question, oldest *questionFrame) bool {
				return now-min(now, oldest.sinceNS) >= uint64(questionTimeout)
			})
		}
	}
}

func (qs *questions) askNext() {
	qs.resumeKnown() // an answer may have arrived while the frame was translated
	list, ports := qs.next()
	for i, q := range list {
		if name, ok := qs.answerer.PortName(ports[i]); !ok || !qs.answerer.Ask(name, q) {
			qs.giveUp(func(o fdb.Question, _ *questionFrame) bool { return o == q })
		}
	}
}

// giveUp ends the wait of frames for which no answer will come. The function "pick" selects them.
func (qs *questions) giveUp(pick func(q fdb.Question, oldest *questionFrame) bool) {
	dropHeld(qs.take(true, func(q fdb.Question, oldest *questionFrame) bool {
		return oldest.Must && pick(q, oldest)
	}))
	qs.resume(qs.take(false, pick), true)
}

func dropHeld(frames []questionFrame) {
	for i := range frames {
		f := &frames[i]
		f.Workers.Push(f.Held.Worker, datapath.AppendDropHeld(nil, f.Held.Ref, packet.DropNoAddress))
	}
}

// Answer forwards the frames whose address the switch knows now, and the frames whose address is in
// "absent": no host has it. The caller has updated the megaflows, and holds only the configuration
// lock.
func (qs *questions) Answer(absent []fdb.Question) {
	qs.resumeKnown()
	qs.resume(qs.take(false, func(q fdb.Question, _ *questionFrame) bool { return slices.Contains(absent, q) }), true)
}

func (qs *questions) resumeKnown() {
	qs.resume(qs.take(false, func(q fdb.Question, _ *questionFrame) bool { return qs.answerer.Knows(q) }), false)
}

func (qs *questions) resume(frames []questionFrame, absent bool) {
	for i := range frames {
		qs.answerer.Resume(&frames[i], absent)
	}
}
