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
	"weft/openflow"
	"weft/packet"
)

// Questions. A frame whose address weft-central must be asked for waits in its held slot.
// Its answer comes as a change of the networks' addresses, or as a question that nobody
// can answer; the frame is then treated like one to an unknown address.

const (
	// maxPortQuestions is the number of frames of one port that wait for answers. Beyond
	// it the port's frames are dropped as packet.DropNoAddress, so that one port which
	// makes addresses up leaves other ports' questions room.
	maxPortQuestions = 64
	// questionTimeout is how long a frame waits; then it is dropped as
	// packet.DropNoAddress. It is shorter than datapath.HeldTimeoutNS.
	questionTimeout = time.Second
	// questionTick is the time between two looks for frames that have waited too long.
	questionTick = 100 * time.Millisecond
	// askAgain is how long a megaflow for an address that nobody has stays. The next
	// frame asks again.
	askAgain = 5 * time.Second
)

// questions are the frames that wait for answers. mu is taken last: inside Pipeline.mu.
type questions struct {
	mu      sync.Mutex
	waiting map[openflow.Question][]waitingFrame
	ports   map[uint32]*portQuestions
	unasked []openflow.Question // in order of arrival; misses come from ports in turn
	wake    chan struct{}       // a question is in unasked
	began   chan struct{}       // a frame waits
}

type waitingFrame struct {
	workers *workers.Workers
	held    underlay.HeldFrame
	miss    datapath.Upcall
	port    uint32
	sinceNS uint64
}

// portQuestions counts a port's frames that wait, and those that were dropped.
type portQuestions struct {
	waiting int
	dropped uint64
}

func newQuestions() *questions {
	return &questions{waiting: map[openflow.Question][]waitingFrame{}, ports: map[uint32]*portQuestions{}, wake: make(chan struct{}, 1), began: make(chan struct{}, 1)}
}

// hold makes a frame wait. It returns false at the port's limit.
func (qs *questions) hold(q openflow.Question, f *waitingFrame) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	p := qs.ports[f.port]
	if p == nil {
		p = new(portQuestions)
		qs.ports[f.port] = p
	}
	if p.waiting >= maxPortQuestions {
		p.dropped++
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

// none reports whether no frame waits.
func (qs *questions) none() bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return len(qs.waiting) == 0
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

// next returns the questions that nobody has been asked, each with a port that asks.
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

// limitRows emits the frames that wait, by port.
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

// askFirst makes a frame wait for the answer to its translation's question, or drops it.
// It returns false if there is nobody to ask.
func (pl *Pipeline) askFirst(w *workers.Workers, held underlay.HeldFrame, up *datapath.Upcall, q openflow.Question) bool {
	if pl.declared == nil {
		return false
	}
	if !pl.questions.hold(q, &waitingFrame{w, held, *up, ownerOf(&up.Key), clock.Monotonic()}) {
		w.Queue(held.Worker, datapath.AppendDropHeld(nil, held.Slot, packet.DropNoAddress))
	}
	return true
}

// askQuestions asks for addresses until ctx ends. It asks without a lock: whoever is asked
// may wait for one that waits for the pipeline.
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

// dropUnanswered drops frames that have waited for questionTimeout, until ctx ends. It
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
			drop(pl.questions.take(true, func(_ openflow.Question, oldest *waitingFrame) bool {
				return now-min(now, oldest.sinceNS) >= uint64(questionTimeout)
			}))
		}
	}
}

func (pl *Pipeline) askNext() {
	pl.answerKnown() // an answer may have come while the frame was translated
	list, ports := pl.questions.next()
	view := pl.View()
	for i, q := range list {
		vni, _ := q.Segment.VNI()
		if name, ok := view.PortName(ports[i]); !ok || !pl.declared.Ask(name, vni, q.MAC, q.IP) {
			drop(pl.questions.take(true, func(o openflow.Question, _ *waitingFrame) bool { return o == q }))
		}
	}
}

func drop(frames []waitingFrame) {
	for i := range frames {
		f := &frames[i]
		f.workers.Push(f.held.Worker, datapath.AppendDropHeld(nil, f.held.Slot, packet.DropNoAddress))
	}
}

// AnswerQuestions looks the frames up again whose address is known now, or is one of
// absent. The caller has revalidated, and holds no lock but the lock of changes.
func (pl *Pipeline) AnswerQuestions(absent []openflow.Question) {
	pl.answerKnown()
	unanswered := pl.questions.take(false, func(q openflow.Question, _ *waitingFrame) bool { return slices.Contains(absent, q) })
	for i := range unanswered {
		f := &unanswered[i]
		a := answers{d: pl, w: f.workers, worker: f.held.Worker, asked: true}
		a.all([]datapath.Upcall{f.miss})
	}
}

func (pl *Pipeline) answerKnown() {
	answered := pl.questions.take(false, func(q openflow.Question, _ *waitingFrame) bool { return pl.macs.knows(q) })
	for i := range answered {
		f := &answered[i]
		pl.answer(f.workers, f.held.Worker, []datapath.Upcall{f.miss}, false)
	}
}

// knows reports whether the table answers a question. A network that is gone answers all
// of its questions.
func (m *macs) knows(q openflow.Question) (ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.table.Network(q.Segment) == nil {
		return true
	}
	if q.IP.IsValid() {
		_, ok = m.table.HostOf(q.Segment, q.IP)
	} else {
		_, ok = m.table.Place(q.Segment, q.MAC)
	}
	return ok
}
