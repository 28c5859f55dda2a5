// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"sync"
	"time"
)

// progress calls the function "tell" with the result of each interval of a measurement. If "tell" is
// nil, it does nothing.
type progress struct {
	tell     func(Interval, bool)
	interval time.Duration
	count    *live

	mu       sync.Mutex
	start    time.Time // start of the current phase
	measured bool
	shift    float64 // time of the phase's start in seconds of the measurement; negative in the warm-up
	from     Interval
	ticks    chan struct{} // closed at the end
	done     chan struct{}
}

func (p *progress) begin(measured bool, warmup float64) {
	if p.tell == nil {
		return
	}
	p.flush(p.interval / 20)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start, p.measured, p.shift = time.Now(), measured, 0-warmup
	p.from = Interval{To: p.shift, Frames: p.count.frames.Load(), Bytes: p.count.bytes.Load()}
	if p.ticks == nil {
		p.ticks, p.done = make(chan struct{}), make(chan struct{})
		go p.run(p.ticks, p.done)
	}
}

func (p *progress) run(stop, done chan struct{}) {
	defer close(done)
	t := time.NewTicker(p.interval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			p.flush(p.interval / 20)
		case <-stop:
			return
		}
	}
}

func (p *progress) flush(minimum time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.start.IsZero() {
		return
	}
	at := Interval{To: p.shift + time.Since(p.start).Seconds(), Frames: p.count.frames.Load(), Bytes: p.count.bytes.Load()}
	if at.To-p.from.To < minimum.Seconds() {
		return
	}
	p.tell(Interval{From: p.from.To, To: at.To, Frames: at.Frames - p.from.Frames, Bytes: at.Bytes - p.from.Bytes}, p.measured)
	p.from = at
}

func (p *progress) end() {
	if p.tell == nil || p.ticks == nil {
		return
	}
	close(p.ticks)
	<-p.done
	p.flush(0)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ticks, p.start = nil, time.Time{}
}
