// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"slices"
	"sync"
	"time"

	"weft/control/limits"
	"weft/control/loop"
	"weft/control/megaflows"
	"weft/control/underlay"
	"weft/control/workers"
	"weft/datapath"
	"weft/internal/clock"
	"weft/openflow"
	"weft/packet"
)

// A frame to an unknown address of a declared network is held, and weft-central is
// asked for the address. If nobody has the address, the frame is treated as one to an
// unknown address. If no answer comes, the frame is dropped if the network has Asked,
// and is treated as one to an unknown address otherwise.

const (
	// maxPortQuestions limits the held frames of one port that wait for answers.
	// Further frames get no answer.
	maxPortQuestions = 64
	// A frame waits for questionTimeout, which is below datapath.HeldTimeoutNS. A
	// dropped frame counts as packet.DropNoAddress.
	questionTimeout = time.Second
	// questionTick is the interval of checks for questionTimeout.
	questionTick = 100 * time.Millisecond
	// askAgain is the lifetime of a megaflow for an address that nobody has.
	askAgain = 5 * time.Second
)

// questions has the frames that wait for answers. mu is taken after Pipeline.mu.
type questions struct {
	mu      sync.Mutex
	waiting map[openflow.Question][]waitingFrame
	ports   map[uint32]*portQuestions
	unasked []openflow.Question // in order of arrival; misses come from ports in turn
	wake    chan struct{}       // a question is in unasked
	began   chan struct{}       // a frame waits
}

type waitingFrame struct {
	workers  *workers.Workers
	held     underlay.HeldFrame
	miss     datapath.Upcall
	port     uint32
	required bool // without an answer the frame is dropped
	sinceNS  uint64
}

// portQuestions counts a port's waiting and dropped frames.
type portQuestions struct {
	waiting int
	dropped uint64
}

func newQuestions() *questions {
	return &questions{waiting: map[openflow.Question][]waitingFrame{}, ports: map[uint32]*portQuestions{}, wake: make(chan struct{}, 1), began: make(chan struct{}, 1)}
}

func (qs *questions) hold(q openflow.Question, f *waitingFrame) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	p := qs.ports[f.port]
	if p == nil {
		p = new(portQuestions)
		qs.ports[f.port] = p
	}
	if p.waiting >= maxPortQuestions {
		return false
	}
	p.waiting++
	if len(qs.waiting[q]) == 0 {
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

// refuse counts a frame of a port that is dropped at the port's limit.
func (qs *questions) refuse(port uint32) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	qs.ports[port].dropped++
}

// take removes the frames that wait for one of the questions that pick selects. dropped
// counts them as dropped.
func (qs *questions) take(dropped bool, pick func(q openflow.Question, oldest *waitingFrame) bool) (frames []waitingFrame) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for q, list := range qs.waiting {
		if !pick(q, &list[0]) {
			continue
		}
		delete(qs.waiting, q)
		frames = append(frames, list...)
		for i := range list {
			p := qs.ports[list[i].port]
			p.waiting--
			if dropped {
				p.dropped++
			}
		}
	}
	return frames
}

func (qs *questions) next() (list []openflow.Question, ports []uint32) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for _, q := range qs.unasked {
		if frames := qs.waiting[q]; len(frames) > 0 {
			list, ports = append(list, q), append(ports, frames[0].port)
		}
	}
	qs.unasked = qs.unasked[:0]
	return list, ports
}

func (qs *questions) limitRows(emit func(limits.Row)) {
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

// askFirst makes a frame wait for an answer, or drops it. It returns false if the frame
// is forwarded without an answer.
func (pl *Pipeline) askFirst(w *workers.Workers, held underlay.HeldFrame, up *datapath.Upcall, t *openflow.Translation) bool {
	if pl.declared == nil {
		return false
	}
	if !pl.questions.hold(t.Question, &waitingFrame{w, held, *up, megaflows.OwnerOf(&up.Key), t.MustAsk, clock.Monotonic()}) {
		if !t.MustAsk {
			return false
		}
		pl.questions.refuse(megaflows.OwnerOf(&up.Key))
		w.Queue(held.Worker, datapath.AppendDropHeld(nil, held.Ref, packet.DropNoAddress))
	}
	return true
}

// askQuestions asks for addresses until ctx ends. It holds no lock, because the agent
// may wait for the pipeline.
func (pl *Pipeline) askQuestions(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-pl.questions.wake:
			pl.askNext()
		}
	}
}

// dropUnanswered ends the wait of frames after questionTimeout, until ctx ends. It
// sleeps without a timer while no frame waits. It does not share a goroutine with
// askQuestions, because askQuestions may wait for weft-central.
func (pl *Pipeline) dropUnanswered(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-pl.questions.began:
		}
		for !pl.questions.none() {
			if !loop.Sleep(ctx, questionTick) {
				return
			}
			now := clock.Monotonic()
			pl.giveUp(func(_ openflow.Question, oldest *waitingFrame) bool {
				return now-min(now, oldest.sinceNS) >= uint64(questionTimeout)
			})
		}
	}
}

func (pl *Pipeline) askNext() {
	pl.answerKnown() // the answer may have come during the translation
	list, ports := pl.questions.next()
	view := pl.View()
	for i, q := range list {
		vni, _ := q.Segment.VNI()
		if name, ok := view.PortName(ports[i]); !ok || !pl.declared.Ask(name, vni, q.MAC, q.IP) {
			pl.giveUp(func(o openflow.Question, _ *waitingFrame) bool { return o == q })
		}
	}
}

// giveUp ends the wait of the frames that pick selects, whose questions get no answer.
func (pl *Pipeline) giveUp(pick func(q openflow.Question, oldest *waitingFrame) bool) {
	drop(pl.questions.take(true, func(q openflow.Question, oldest *waitingFrame) bool {
		return oldest.required && pick(q, oldest)
	}))
	pl.answerAbsent(pl.questions.take(false, pick))
}

// answerAbsent treats frames like frames to unknown addresses.
func (pl *Pipeline) answerAbsent(frames []waitingFrame) {
	for i := range frames {
		f := &frames[i]
		a := answers{d: pl, w: f.workers, worker: f.held.Worker, question: true}
		a.answerAll([]datapath.Upcall{f.miss})
	}
}

func drop(frames []waitingFrame) {
	for i := range frames {
		f := &frames[i]
		f.workers.Push(f.held.Worker, datapath.AppendDropHeld(nil, f.held.Ref, packet.DropNoAddress))
	}
}

// AnswerQuestions resumes the frames whose address is now known, or is in absent
// because nobody has it. The caller has revalidated, and holds only the lock of
// changes.
func (pl *Pipeline) AnswerQuestions(absent []openflow.Question) {
	pl.answerKnown()
	pl.answerAbsent(pl.questions.take(false, func(q openflow.Question, _ *waitingFrame) bool { return slices.Contains(absent, q) }))
}

func (pl *Pipeline) answerKnown() {
	answered := pl.questions.take(false, func(q openflow.Question, _ *waitingFrame) bool { return pl.macs.Knows(q) })
	for i := range answered {
		f := &answered[i]
		pl.answer(f.workers, f.held.Worker, []datapath.Upcall{f.miss}, false)
	}
}
