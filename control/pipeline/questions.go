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
	// maxPortQuestions limits the held frames of one port that wait for answers. No
	// question is asked for further frames of the port.
	maxPortQuestions = 64
	// newQuestions is the part of maxPortQuestions that is reserved for frames to addresses for which
	// no frame waits yet. Otherwise frames to one address without an answer could keep the port from
	// asking for other addresses.
	newQuestions = 16
	// questionTimeout is the time after which a frame stops waiting. It is below
	// datapath.HeldTimeoutNS. A frame that is then dropped counts as
	// packet.DropNoAddress.
	questionTimeout = time.Second
	// questionTick is the interval at which waiting frames are checked against
	// questionTimeout.
	questionTick = 100 * time.Millisecond
)

// questions holds frames to addresses of declared networks that the switch does not know,
// while the switch asks weft-central for them. If nobody has the address, a frame is
// treated like a frame to an unknown address. If no answer comes, the network's setting
// Asked decides: the frame is dropped if Asked is set, and treated like a frame to an
// unknown address otherwise.
//
// questions.mu guards the waiting frames. It is taken after Pipeline.mu. The only
// function called under questions.mu is answerer.Knows, which takes the lock of
// openflow/fdb. The goroutines of Run hold no lock while they ask and resume.
type questions struct {
	answerer answerer

	mu      sync.Mutex
	waiting map[fdb.Question][]questionFrame
	ports   map[uint32]*portQuestions
	unasked []fdb.Question // questions not asked yet, in order of arrival; missQueue lets senders take turns
	wake    chan struct{}  // a question is in unasked
	began   chan struct{}  // a frame waits
}

// questionFrame is a frame that a worker holds until weft-central answers for its address.
type questionFrame struct {
	Workers *workers.Workers
	Held    underlay.HeldFrame
	Miss    datapath.Upcall
	Port    uint32 // sender
	Must    bool   // without an answer the frame is dropped
	sinceNS uint64
}

// answerer is the pipeline. Knows is called under questions.mu and may take only locks that come
// after it. The other methods are called without a lock, or under the configuration lock.
type answerer interface {
	// Knows reports whether the switch knows the address that q asks for.
	Knows(q fdb.Question) bool
	PortName(number uint32) (string, bool)
	// Ask asks weft-central for the address in q. It returns false if no answer will
	// come.
	Ask(port string, q fdb.Question) bool
	// Resume forwards a held frame whose address is known. If absent is true, nobody
	// has the address, and the frame is treated like a frame to an unknown address.
	Resume(f *questionFrame, absent bool)
}

// portQuestions counts a port's waiting and dropped frames.
type portQuestions struct {
	waiting int
	dropped uint64
}

// makeQuestions returns questions without frames.
func makeQuestions(a answerer) *questions {
	return &questions{answerer: a, waiting: map[fdb.Question][]questionFrame{}, ports: map[uint32]*portQuestions{}, wake: make(chan struct{}, 1), began: make(chan struct{}, 1)}
}

// Hold makes a frame wait for the answer to q. It returns false if too many frames of the frame's
// port wait already. If Must is set, this frame then counts as dropped, and the caller drops it.
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

// take removes the frames that wait for one of the questions that pick selects. If
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

// LimitRows reports the use and the limit of waiting frames; it is a limits.Source.
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

// Run asks questions, and ends the wait of frames without an answer, until ctx ends.
func (qs *questions) Run(ctx context.Context) {
	var done sync.WaitGroup
	done.Go(func() { qs.ask(ctx) })
	done.Go(func() { qs.dropUnanswered(ctx) })
	done.Wait()
}

// ask sends questions for addresses to weft-central's agent until ctx ends. It holds no
// lock, because the agent may wait for the pipeline.
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

// dropUnanswered ends the wait of frames after questionTimeout, until ctx ends. It
// needs no timer while no frame waits. It runs in a goroutine of its own, because ask
// may wait for weft-central.
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

// giveUp ends the wait of the frames that pick selects, because their questions get no
// answer.
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

// Answer resumes the frames whose address is now known, and the frames whose question
// is in absent (nobody has the address). The caller has revalidated, and holds only the
// configuration lock.
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
